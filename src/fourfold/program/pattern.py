"""Patterns: instructions that differ by their microbatch alone, and a list of instructions as patterns and microbatches.

A step repeats few patterns for many microbatches. Compiler passes, liveness and the verifier look at patterns, so that their work
grows with what differs. The instructions themselves are written out when somebody asks for them.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple, Self, overload

from fourfold.program.buffers import mark
from fourfold.program.instruction import Instruction, Op, Opcode

_ANY = " m*"
"""Stands for the microbatch in the short form of a pattern."""
_NUMBER = re.compile(r" m(\d{1,6})(?= |$)")
_MOST = 10**6
"""Microbatches from here on are words like any others."""


class Name(NamedTuple):
    """A buffer of a pattern. `own`: of the instruction's microbatch, whose number ends the name and is left out in `text`."""

    text: str
    own: bool

    def of(self, m: int | None) -> str:
        """The buffer's name."""
        return f"{self.text}{mark(m)}" if self.own and m is not None else self.text


Names = tuple[Name, ...]


class Pattern:
    """An instruction for any microbatch; `of(m)` is the instruction for one. Two patterns are equal only if they are one object.

    `handle`: an instruction's, with `m*` in place of its own microbatch. Its other fields are those of every instruction.
    """

    def __init__(
        self, example: Instruction, numbered: bool, handle: str | None, names: tuple[Names, Names, Names]
    ) -> None:
        self.op, self.segment, _, self.peer, _, _, _, _, self.work, self.workspace_bytes, self.stream = example
        self.handle = handle
        self.reads, self.writes, self.frees = names
        self._numbered = numbered
        self._made: dict[int | None, Instruction] = {} if numbered else {None: example}

    @classmethod
    def of_first(cls, first: Instruction) -> Self:
        """The pattern of the instruction for microbatch 0, or of one that belongs to none."""
        m, names, handle = _read(first)
        return cls(first, m is not None, handle, names)

    def of(self, m: int | None) -> Instruction:
        """The instruction for this microbatch."""
        found = self._made.get(m)
        if found is None:
            waits, end = self.op is Op.WAIT, f"/m{m}"
            handle = self.handle.replace(_ANY, f" m{m}") if waits and self.handle else self.handle
            reads, writes, frees = self.reads, self.writes, self.frees
            found = self._made[m] = tuple.__new__(  # four times as fast as by its own constructor
                Instruction,
                (
                    self.op,
                    self.segment,
                    None if waits else m,
                    self.peer,
                    handle,
                    tuple([text + end if own else text for text, own in reads]) if reads else (),
                    tuple([text + end if own else text for text, own in writes]) if writes else (),
                    tuple([text + end if own else text for text, own in frees]) if frees else (),
                    self.work,
                    self.workspace_bytes,
                    self.stream,
                ),
            )
        return found

    @cached_property
    def short(self) -> str:
        """The short form, with `m*` in place of the microbatch."""
        return self.first.short.replace(" m0", _ANY, 1) if self._numbered else self.first.short

    @cached_property
    def gradients(self) -> list[str]:
        """The units to whose full gradients it adds."""
        return [written[5:] for written, _ in self.writes if written.startswith("grad/")]

    @property
    def strays(self) -> bool:
        """Whether it names another microbatch's buffers."""
        names = (text for part in (self.reads, self.writes, self.frees) for text, own in part if not own)
        return any("/m" in text and split_name(text)[1] is not None for text in names)

    def part(self, own: bool, op: Opcode) -> "Pattern":
        """With another operation, and with those buffers alone that are the microbatch's own, or that are not."""
        reads, writes, frees = (
            tuple([each for each in names if each.own == own]) for names in (self.reads, self.writes, self.frees)
        )
        if op is self.op and (reads, writes, frees) == (self.reads, self.writes, self.frees):
            return self
        handle = self.handle if op is Op.WAIT else None
        return Pattern(self.first._replace(op=op, handle=handle), self._numbered, handle, (reads, writes, frees))

    def like(self, first: Instruction) -> "Pattern":
        """The pattern of an instruction that takes the place of its first."""
        m = 0 if self._numbered else None
        names = _names(first.reads, m), _names(first.writes, m), _names(first.frees, m)
        return Pattern(first, self._numbered, self.handle, names)

    @property
    def first(self) -> Instruction:
        """The instruction for microbatch 0, or the one that belongs to none."""
        return self.of(0 if self._numbered else None)

    def joined(self, frees: tuple[str, ...] = ()) -> "Pattern":
        """The WAIT for what it starts, which then frees these buffers, named as for microbatch 0."""
        return Pattern.of_first(Instruction(Op.WAIT, handle=self.first.short, frees=frees))


def split_name(buffer: str) -> tuple[str, int | None]:
    """A buffer's name without its microbatch, and that; None where it ends in none."""
    text, _, number = buffer.rpartition("/m")
    if not text or len(number) > 6 or not number.isdecimal() or str(int(number)) != number:
        return buffer, None
    return text, int(number)


Step = tuple[Pattern, int | None]
"""An instruction: its pattern, and its microbatch. A WAIT's is that of what it joins."""


def _names(names: tuple[str, ...], m: int | None) -> Names:
    if m is None:
        return tuple([Name(each, False) for each in names])
    end = mark(m)
    size = len(end)
    return tuple([Name(each[:-size], True) if each.endswith(end) else Name(each, False) for each in names])


def _read(step: Instruction) -> tuple[int | None, tuple[Names, Names, Names], str | None]:
    """Microbatch and buffers of an instruction, and its handle with `m*` for the microbatch."""
    m, handle = step.microbatch, step.handle
    if step.op is Op.WAIT and m is None and handle:
        found = _NUMBER.search(handle)
        if found and str(int(found[1])) == found[1]:
            m, handle = int(found[1]), handle[: found.start()] + _ANY + handle[found.end() :]
    elif step.op is Op.WAIT or handle is not None:
        m = None
    if m is not None and not 0 <= m < _MOST:
        m, handle = None, step.handle
    return m, (_names(step.reads, m), _names(step.writes, m), _names(step.frees, m)), handle


def patterned(instructions: Iterable[Instruction]) -> list[Step]:
    """The steps whose instructions these are."""
    known: dict[object, Pattern] = {}
    steps = []
    for each in instructions:
        m, names, handle = _read(each)
        belongs = True if m is not None else each.microbatch
        key = belongs, each.op, each.segment, each.peer, handle, names, id(each.work), each.workspace_bytes, each.stream
        pattern = known.get(key)
        if pattern is None:
            pattern = known[key] = Pattern(each, m is not None, handle, names)
        steps.append((pattern, m))
    return steps


class Steps(Sequence[Instruction]):
    """A list of instructions, and the same as patterns and microbatches; either is made from the other when it is asked for."""

    def __init__(self, steps: list[Step] | None = None, instructions: Iterable[Instruction] = ()) -> None:
        if steps is None:
            self.instructions = tuple(instructions)
        else:
            self.steps = steps

    @cached_property
    def instructions(self) -> tuple[Instruction, ...]:
        return tuple([pattern.of(m) for pattern, m in self.steps])

    @cached_property
    def steps(self) -> list[Step]:
        return patterned(self.instructions)

    @cached_property
    def microbatches(self) -> dict[Pattern, list[int | None]]:
        """The microbatches of every pattern, in the order in which it comes."""
        found: dict[Pattern, list[int | None]] = {}
        for pattern, m in self.steps:
            if pattern in found:
                found[pattern].append(m)
            else:
                found[pattern] = [m]
        return found

    @overload
    def __getitem__(self, index: int) -> Instruction: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Instruction, ...]: ...
    def __getitem__(self, index: int | slice) -> Instruction | tuple[Instruction, ...]:
        if isinstance(index, int) and "instructions" not in self.__dict__:
            pattern, m = self.steps[index]
            return pattern.of(m)
        return self.instructions[index]

    def __iter__(self) -> Iterator[Instruction]:
        return iter(self.instructions)

    def __len__(self) -> int:
        return len(self.steps if "steps" in self.__dict__ else self.instructions)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Steps | tuple) and self.instructions == tuple(other))

    def __hash__(self) -> int:
        return hash(self.instructions)

    def __repr__(self) -> str:
        return repr(self.instructions)

    def mapped(self, change: Callable[[Instruction], Instruction]) -> "Steps":
        """Steps with instructions changed, those of a pattern all alike."""
        changed = {each: each.like(new) for each in self.microbatches if (new := change(each.first)) is not each.first}
        if not changed:
            return self
        result = Steps([(changed.get(pattern, pattern), m) for pattern, m in self.steps])
        result.microbatches = {changed.get(pattern, pattern): numbers for pattern, numbers in self.microbatches.items()}
        return result
