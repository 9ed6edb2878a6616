"""The program of a rank: its instructions, and the buffers that they name."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import cast

from fourfold.model.work import SavedParts
from fourfold.program.buffers import mark
from fourfold.program.instruction import Instruction
from fourfold.program.partitions import Partition, cut_into_partitions
from fourfold.program.pattern import Steps, split_name


@dataclass(frozen=True)
class BufferKind:
    """Buffers that differ by their microbatch alone: their name without it, and the bytes of each. `microbatches` None: one buffer,
    of no microbatch."""

    text: str
    bytes: int
    microbatches: frozenset[int] | None = None

    def names(self) -> list[str]:
        """In no order."""
        return [self.text] if self.microbatches is None else [f"{self.text}{mark(m)}" for m in self.microbatches]

    @property
    def example(self) -> str:
        """One of the names."""
        return self.text if self.microbatches is None else f"{self.text}{mark(min(self.microbatches))}"


class Buffers(Mapping[str, int]):
    """Buffers with their bytes, as a mapping in the order of their names, which is made when somebody asks for it."""

    def __init__(self, kinds: Iterable[BufferKind]) -> None:
        self.kinds = tuple(kinds)

    @classmethod
    def of(cls, sizes: Mapping[str, int]) -> "Buffers":
        """Buffers from an ordinary mapping, in its order."""
        found: dict[tuple[str, int], set[int]] = {}
        kinds = []
        for name, size in sizes.items():
            text, m = split_name(name)
            if m is None:
                kinds.append(BufferKind(name, size))
            else:
                found.setdefault((text, size), set()).add(m)
        result = cls([*kinds, *(BufferKind(*key, frozenset(numbers)) for key, numbers in found.items())])
        result.order = list(sizes)
        return result

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The bytes of every buffer, in no order."""
        return {name: kind.bytes for kind in self.kinds for name in kind.names()}

    @cached_property
    def order(self) -> list[str]:
        return sorted(self.sizes)

    def __getitem__(self, name: str) -> int:
        return self.sizes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.order)

    def __len__(self) -> int:
        return sum(1 if kind.microbatches is None else len(kind.microbatches) for kind in self.kinds)


@dataclass(frozen=True)
class Program:
    """One rank class's step: ranks that differ only in data, tensor, context or expert coordinates run the same list.

    `buffers` gives every named buffer's bytes. `resident` are live before the first instruction and after the last.
    `kind`: `train`, or `evaluate` (forward only). `saved_parts`: by segment, parts of its `saved/` buffers.
    """

    pp_rank: int
    kind: str
    instructions: Sequence[Instruction]
    buffers: Mapping[str, int]
    resident: tuple[str, ...]
    saved_parts: dict[str, SavedParts] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.instructions, Steps):
            object.__setattr__(self, "instructions", Steps(instructions=self.instructions))
        if not isinstance(self.buffers, Buffers):
            object.__setattr__(self, "buffers", Buffers.of(self.buffers))

    @property
    def steps(self) -> Steps:
        """The instructions, as patterns too."""
        return cast(Steps, self.instructions)

    @property
    def buffer_kinds(self) -> tuple[BufferKind, ...]:
        """The buffers, those that differ by their microbatch alone together."""
        return cast(Buffers, self.buffers).kinds

    @cached_property
    def partitions(self) -> tuple[Partition, list[Partition]]:
        """The instructions, cut into partitions that have no buffer in common."""
        return cut_into_partitions(self.steps, self.resident)

    def with_instructions(self, instructions: list[Instruction]) -> "Program":
        return replace(self, instructions=Steps(instructions=instructions))
