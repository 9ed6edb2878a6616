"""Memory of a program by liveness of its named buffers: the curve, and the instruction and buffers that make the peak."""

from dataclasses import dataclass

from fourfold.program.instruction import Op
from fourfold.program.pattern import Pattern
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


def memory_curve(program: Program) -> list[int]:
    """Bytes live while each instruction runs: what was live, what it writes, its workspace."""
    live = set(program.resident)
    known = _known_sizes(program)
    total = sum([known.get((name, False)) or program.buffers[name] for name in live])
    sizes = {
        pattern: [
            [(text, own, known.get((text, own))) for text, own in names] for names in (pattern.writes, pattern.frees)
        ]
        for pattern in program.steps.microbatches
    }
    curve = []
    for pattern, m in program.steps.steps:
        written, freed = sizes[pattern]
        for text, own, size in written:
            name = f"{text}/m{m}" if own else text
            if name not in live:
                live.add(name)
                total += program.buffers[name] if size is None else size
        curve.append(total + pattern.workspace_bytes)
        for text, own, size in freed:
            name = f"{text}/m{m}" if own else text
            if name in live:
                live.remove(name)
                total -= program.buffers[name] if size is None else size
    return curve


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


def highest_bytes(program: Program) -> dict[tuple[Op, str | None], int]:
    """The highest point of the curve among the instructions of each operation and segment."""
    highest: dict[Pattern, int] = {}
    for (pattern, _), live in zip(program.steps.steps, memory_curve(program), strict=True):
        if live > highest.get(pattern, -1):
            highest[pattern] = live
    found: dict[tuple[Op, str | None], int] = {}
    for pattern, live in highest.items():
        key = pattern.op, pattern.segment
        found[key] = max(live, found.get(key, -1))
    return found


def memory_peak(program: Program) -> MemoryPeak:
    """The first instruction at which the curve is highest."""
    curve = memory_curve(program)
    index = max(range(len(curve)), key=curve.__getitem__)
    live, steps = set(program.resident), program.steps.steps
    for pattern, m in steps[:index]:
        live.update([each.of(m) for each in pattern.writes])
        live.difference_update([each.of(m) for each in pattern.frees])
    pattern, m = steps[index]
    live.update([each.of(m) for each in pattern.writes])
    buffers = sorted(((name, program.buffers[name]) for name in live), key=lambda item: (-item[1], item[0]))
    return MemoryPeak(curve[index], index, pattern.workspace_bytes, tuple(buffers))


def ledger(program: Program) -> dict[str, int]:
    """Bytes that one rank sends in the step, by axes."""
    totals: dict[str, int] = {}
    for pattern, microbatches in program.steps.microbatches.items():
        for collective in pattern.work.collectives:
            sent = collective.sent_bytes * len(microbatches)
            totals[collective.axes] = totals.get(collective.axes, 0) + sent
    return dict(sorted(totals.items()))
