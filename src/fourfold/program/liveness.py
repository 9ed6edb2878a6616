"""Memory of a program by liveness of its named buffers: the curve, and the instruction and buffers that make the peak."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fourfold.program.buffers import mark, on_host
from fourfold.program.instruction import Opcode
from fourfold.program.pattern import Name, Pattern, Step, split_name
from fourfold.program.program import Program


@dataclass(frozen=True)
class MemoryPeak:
    """The most bytes live at once: at which instruction, and which buffers (largest first) with the instruction's workspace."""

    bytes: int
    index: int
    workspace_bytes: int
    buffers: tuple[tuple[str, int], ...]

    def by_kind(self) -> dict[str, int]:
        """Bytes at the peak by kind of buffer (`params`, `saved`, ...), largest first."""
        sums: dict[str, int] = {"workspace": self.workspace_bytes} if self.workspace_bytes else {}
        for name, size in self.buffers:
            kind = name.partition("/")[0]
            sums[kind] = sums.get(kind, 0) + size
        return dict(sorted(sums.items(), key=lambda item: -item[1]))


def at_its_most(sizes: Mapping[str, int], frees: Iterable[str], workspace_bytes: int) -> tuple[dict[str, int], int]:
    """Bytes of live buffers, and workspace, when an instruction holds most. A workspace below zero says that it lets go of what it
    frees before all that it writes is there: so much of what it frees is gone by then."""
    found, gone = dict(sizes), max(0, -workspace_bytes)
    for name in frees:
        part = min(gone, found.get(name, 0))
        if part:
            found[name] -= part
            gone -= part
    return {name: size for name, size in found.items() if size}, max(0, workspace_bytes) - gone


def memory_curve(program: Program) -> list[int]:
    """Bytes live on the device while each instruction runs: what was live, what it writes, its workspace."""
    return _Liveness(program).run(program.steps.steps)


def host_peak_bytes(program: Program) -> int:
    """The most bytes that offloaded buffers take in the host's memory."""
    return max(_Liveness(program, host=True).run(program.steps.steps), default=0)


Row = tuple[set[int | None], bool, int | None, int | None]
"""A buffer of a pattern: which of its name without the microbatch are live, whether it is the instruction's microbatch's own, else
its microbatch, and its bytes (None: those of each microbatch)."""


class _Liveness:
    """The live buffers of a program on the device, or in the memory of its `host`. `live`: their microbatches, by name without
    microbatch."""

    def __init__(self, program: Program, host: bool = False) -> None:
        self._host = host
        self.buffers, self.known = program.buffers, _known_sizes(program)
        self.live: dict[str, set[int | None]] = {}
        self.rows = {
            pattern: (self._rows(pattern.writes), self._rows(pattern.frees), 0 if host else pattern.workspace_bytes)
            for pattern in program.steps.microbatches
        }
        self.total = 0
        for live, _, number, size in self._rows([Name(each, False) for each in set(program.resident)]):
            live.add(number)
            self.total += self._bytes(live, number) if size is None else size

    def _rows(self, names: Iterable[Name]) -> list[Row]:
        return [self._row(name) for name in names if on_host(name.text) == self._host]

    def _row(self, name: Name) -> Row:
        text, number = (name.text, None) if name.own else split_name(name.text)
        size = self.known.get(name)
        if size is None and not name.own:
            size = self.buffers.get(name.text)
        return self.live.setdefault(text, set()), name.own, number, size

    def run(self, steps: Sequence[Step]) -> list[int]:
        """The curve of these steps, after which `live` is what is live."""
        rows, total, curve = self.rows, self.total, list[int]()
        for pattern, m in steps:
            written, freed, workspace = rows[pattern]
            for live, own, number, size in written:
                which = m if own else number
                if which not in live:
                    live.add(which)
                    total += self._bytes(live, which) if size is None else size
            curve.append(total + workspace)
            for live, own, number, size in freed:
                which = m if own else number
                if which in live:
                    live.remove(which)
                    total -= self._bytes(live, which) if size is None else size
        self.total = total
        return curve

    def _bytes(self, live: set[int | None], which: int | None) -> int:
        text = next(text for text, each in self.live.items() if each is live)
        return self.buffers[_named(text, which)]

    def names(self) -> Iterator[str]:
        """Names of the live buffers."""
        return (_named(text, which) for text, live in self.live.items() for which in live)


def _named(text: str, microbatch: int | None) -> str:
    return text if microbatch is None else f"{text}{mark(microbatch)}"


def _known_sizes(program: Program) -> dict[tuple[str, bool], int | None]:
    """Bytes of the buffers of a `Name`; None where microbatches have buffers of different sizes."""
    known: dict[tuple[str, bool], int | None] = {}
    for kind in program.buffer_kinds:
        name = kind.text, kind.microbatches is not None
        known[name] = None if name in known else kind.bytes
    return known


def peak_bytes(program: Program) -> int:
    """The highest point of the curve."""
    return max(memory_curve(program))


def highest_bytes(program: Program, curve: Sequence[int]) -> dict[tuple[Opcode, str | None], int]:
    """The highest point of the program's curve among the instructions of each operation and segment."""
    highest: dict[Pattern, int] = {}
    for (pattern, _), live in zip(program.steps.steps, curve, strict=True):
        if live > highest.get(pattern, -1):
            highest[pattern] = live
    found: dict[tuple[Opcode, str | None], int] = {}
    for pattern, live in highest.items():
        key = pattern.op, pattern.segment
        found[key] = max(live, found.get(key, -1))
    return found


def memory_peak(program: Program, curve: Sequence[int] | None = None) -> MemoryPeak:
    """The first instruction at which the curve is highest. `curve`: the program's, where it is known."""
    curve = curve or memory_curve(program)
    index = curve.index(max(curve))
    pattern, m = program.steps.steps[index]
    liveness = _Liveness(program)
    liveness.run(program.steps.steps[:index])
    live = {*liveness.names(), *(each.of(m) for each in pattern.writes if not on_host(each.text))}
    sizes = {name: program.buffers[name] for name in live}
    sizes, workspace = at_its_most(sizes, (each.of(m) for each in pattern.frees), pattern.workspace_bytes)
    buffers = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))
    return MemoryPeak(curve[index], index, workspace, tuple(buffers))


def ledger(program: Program) -> dict[str, int]:
    """Bytes that one rank sends in the step, by axes."""
    totals: dict[str, int] = {}
    for pattern, microbatches in program.steps.microbatches.items():
        for collective in pattern.work.collectives:
            sent = collective.sent_bytes * len(microbatches)
            totals[collective.axes] = totals.get(collective.axes, 0) + sent
    return dict(sorted(totals.items()))


def host_traffic(program: Program) -> dict[str, int]:
    """Bytes that one rank copies to its host's memory in the step (`to host`), and from it (`from host`); empty where none."""
    totals: dict[str, int] = {}
    for pattern, microbatches in program.steps.microbatches.items():
        if pattern.op.is_host_copy:
            way = pattern.op.info.stream.replace("_", " ")
            totals[way] = totals.get(way, 0) + pattern.work.host_bytes * len(microbatches)
    return totals
