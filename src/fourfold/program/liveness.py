"""Memory of a program by liveness of its named buffers: the curve, and the instruction and buffers that make the peak."""

from dataclasses import dataclass

from fourfold.program.instruction import Op, Program


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
    live = dict.fromkeys(program.resident)
    total = sum(program.buffers[name] for name in live)
    curve = []
    for step in program.instructions:
        for name in step.writes:
            if name not in live:
                live[name] = None
                total += program.buffers[name]
        curve.append(total + step.workspace_bytes)
        for name in step.frees:
            if name in live:
                del live[name]
                total -= program.buffers[name]
    return curve


def peak_bytes(program: Program) -> int:
    """The highest point of the curve."""
    return max(memory_curve(program))


def highest_bytes(program: Program) -> dict[tuple[Op, str | None], int]:
    """The highest point of the curve among the instructions of each operation and segment."""
    highest: dict[tuple[Op, str | None], int] = {}
    for step, live in zip(program.instructions, memory_curve(program), strict=True):
        key = step.op, step.segment
        if live > highest.get(key, -1):
            highest[key] = live
    return highest


def memory_peak(program: Program) -> MemoryPeak:
    """The first instruction at which the curve is highest."""
    curve = memory_curve(program)
    index = max(range(len(curve)), key=curve.__getitem__)
    live = set(program.resident)
    for step in program.instructions[:index]:
        live.update(step.writes)
        live.difference_update(step.frees)
    step = program.instructions[index]
    live.update(step.writes)
    buffers = sorted(((name, program.buffers[name]) for name in live), key=lambda item: (-item[1], item[0]))
    return MemoryPeak(curve[index], index, step.workspace_bytes, tuple(buffers))


def ledger(program: Program) -> dict[str, int]:
    """Bytes that one rank sends in the step, by axes."""
    totals: dict[str, int] = {}
    for step in program.instructions:
        for collective in step.collectives:
            totals[collective.axes] = totals.get(collective.axes, 0) + collective.sent_bytes
    return dict(sorted(totals.items()))
