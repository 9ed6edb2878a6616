"""Memory over simulated time: what each pipeline rank's device holds, and of what kinds, from the liveness of its buffers."""

from collections.abc import Sequence
from dataclasses import dataclass

from fourfold.program import Instruction, Program
from fourfold.program.buffers import on_host
from fourfold.program.liveness import at_its_most
from fourfold.simulate.step import Simulation


@dataclass(frozen=True)
class MemoryOverTime:
    """Memory of one device, in spans of time of equal length: `ends` of the spans in seconds, the most `bytes` held in each, and
    what they were by kind of buffer at that moment (`by_kind[kind][span]`; `workspace` lives only while an instruction runs).

    The process's context and the allocator's fragmentation are not in it: `cost.memory.device_bytes` adds them.
    """

    ends: tuple[float, ...]
    bytes: tuple[int, ...]
    by_kind: dict[str, tuple[int, ...]]

    @property
    def peak(self) -> int:
        """Index of the span in which most is allocated."""
        return max(range(len(self.bytes)), key=self.bytes.__getitem__)


def memory_over_time(simulation: Simulation, rank: int, spans: int = 120) -> MemoryOverTime:
    """Memory of a pipeline rank's device, in at most `spans` spans. The highest is the peak that `Simulation.peaks` names."""
    return memory_along(simulation.held[rank], simulation.times.ranks[rank].starts, simulation.times.makespan, spans)


def memory_along(program: Program, starts: Sequence[float], makespan: float, spans: int = 120) -> MemoryOverTime:
    """Memory of a program's buffers whose instructions begin at `starts`, in seconds, measured or simulated."""
    spans = max(1, min(spans, len(starts)))
    length = makespan / spans
    highest: list[dict[str, int]] = [{} for _ in range(spans)]
    most = [-1] * spans
    held = _resident(program)
    total = sum(held.values())
    at = 0
    live = dict.fromkeys(name for name in program.resident if not on_host(name))
    for step, start in zip(program.instructions, starts, strict=True):
        span = min(spans - 1, int(start / length)) if length else 0
        while at < span:  # nothing begins in a span: what was held stays
            at += 1
            most[at], highest[at] = total, dict(held)
        for name in step.writes:
            if name not in live and not on_host(name):
                live[name] = None
                _change(held, name, program.buffers[name])
                total += program.buffers[name]
        if total + step.workspace_bytes > most[span]:
            most[span] = total + step.workspace_bytes
            highest[span] = _at_its_most(held, step, program)
        for name in step.frees:
            if name in live:
                del live[name]
                _change(held, name, -program.buffers[name])
                total -= program.buffers[name]
    for span in range(at + 1, spans):
        most[span], highest[span] = total, dict(held)
    kinds = dict.fromkeys(kind for each in highest for kind, size in each.items() if size)
    return MemoryOverTime(
        ends=tuple(length * (span + 1) for span in range(spans)),
        bytes=tuple(max(0, size) for size in most),
        by_kind={kind: tuple(each.get(kind, 0) for each in highest) for kind in kinds},
    )


def _at_its_most(held: dict[str, int], step: Instruction, program: Program) -> dict[str, int]:
    """Bytes by kind of buffer while an instruction runs, with its workspace."""
    if step.workspace_bytes >= 0:
        return {**held, "workspace": step.workspace_bytes}
    freed = {name: program.buffers[name] for name in step.frees if not on_host(name)}
    left, workspace = at_its_most(freed, freed, step.workspace_bytes)
    found = {**held, "workspace": workspace}
    for name, size in freed.items():
        _change(found, name, left.get(name, 0) - size)
    return found


def _resident(program: Program) -> dict[str, int]:
    held: dict[str, int] = {}
    for name in (each for each in program.resident if not on_host(each)):
        _change(held, name, program.buffers[name])
    return held


def _change(held: dict[str, int], name: str, size: int) -> None:
    kind = name.partition("/")[0]
    held[kind] = held.get(kind, 0) + size
