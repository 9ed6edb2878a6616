"""A simulated step as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open: the JSON trace event format.

One process a pipeline rank; its tracks are computation and each stream of communication, and a counter of the memory held. Flows go
from every send to its receive, and through what pipeline ranks enter together; a collective names the ranks of its group.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fourfold.config import RunFailure
from fourfold.config.whole_file import whole_file
from fourfold.program.instruction import Instruction, Op
from fourfold.simulate.flows import TracePoint, arrows, meetings, members, transfers
from fourfold.simulate.rank import Place
from fourfold.simulate.step import Simulation

COMPUTE_TRACK = 1
"""Perfetto takes track 0 of all processes for one, the idle thread."""
MICROSECONDS = 1e6
HALF_NANOSECOND = 5e-4
"""Viewers cut times to full nanoseconds: an event that ended on the next one's start would come to overlap it, and be left out."""


def write_trace(simulation: Simulation, path: Path) -> int:
    """Writes the simulated step; returns how many events it has. Raises `RunFailure` where the file cannot be written."""
    return write_events(trace_events(simulation), path)


def write_events(events: Iterable[dict[str, Any]], path: Path) -> int:
    """Writes a trace event by event, under another name until it is whole; returns how many there are. Raises `RunFailure` where
    the file cannot be written."""
    count = 0
    try:
        with whole_file(path) as file:
            file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
            for event in events:
                file.write((",\n" if count else "") + json.dumps(event, separators=(",", ":")))
                count += 1
            file.write("\n]}\n")
    except OSError as error:
        raise RunFailure(
            f"--trace {path}: cannot be written: {error.strerror}; what works: --trace trace.json in a folder that is there"
        ) from None
    return count


def trace_events(simulation: Simulation) -> Iterator[dict[str, Any]]:
    """Names of the tracks, then of every rank its instructions that take time, what its streams carry, and its memory."""
    points: dict[Place, TracePoint] = {}
    for rank in range(len(simulation.programs)):
        yield from _rank_events(simulation, rank, points)
    pairs = list(transfers(simulation.programs))
    yield from arrows(pairs, points, "transfer")
    yield from arrows(meetings(simulation.programs), points, "collective", len(pairs))


def _rank_events(simulation: Simulation, rank: int, points: dict[Place, TracePoint]) -> Iterator[dict[str, Any]]:
    """Events of a rank; notes in `points` where its communication is drawn."""
    times, steps = simulation.times.ranks[rank], simulation.programs[rank].instructions
    streams = {_carrier(steps[i]) for i in times.streams if steps[i].stream != "compute"}
    tracks = {name: COMPUTE_TRACK + 1 + i for i, name in enumerate(sorted(streams))}
    groups: dict[str, str] = {}
    yield track_name("process_name", rank, COMPUTE_TRACK, f"pipeline rank {rank}")
    yield {"name": "process_sort_index", "ph": "M", "pid": rank, "tid": COMPUTE_TRACK, "args": {"sort_index": rank}}
    for name, track in {"computation": COMPUTE_TRACK, **tracks}.items():
        yield track_name("thread_name", rank, track, name)
    held = simulation.curves[rank]
    before = -1
    for index, (step, start, end) in enumerate(zip(steps, times.starts, times.ends, strict=True)):
        if held[index] != before:
            before = held[index]
            yield {"name": "memory held", "ph": "C", "ts": start * MICROSECONDS, "pid": rank, "args": {"bytes": before}}
        if end > start:
            kind = category(step)
            arguments = {"index": index, **({"flops": step.flops} if step.flops else {})}
            if step.collectives:
                points[rank, index] = TracePoint(rank, COMPUTE_TRACK, microseconds(start))
            yield span(step.short, kind, rank, COMPUTE_TRACK, start, end, arguments)
        if index in times.streams and step.stream != "compute":
            begin, stop = times.streams[index]
            if stop > begin:
                sizes: dict[str, Any] = {
                    "index": index,
                    "bytes": sum(c.bytes for c in step.collectives) + step.work.host_bytes,
                }
                for each in step.collectives:
                    if each.axes not in groups and step.peer is None:
                        groups[each.axes] = members(simulation.spec.layout, rank, each.axes)
                    sizes[f"ranks of {each.axes}"] = groups.get(each.axes, f"{rank}, {step.peer} of pp")
                points[rank, index] = TracePoint(rank, tracks[_carrier(step)], microseconds(begin))
                yield span(step.short, "communication", rank, tracks[_carrier(step)], begin, stop, sizes)


def _carrier(step: Instruction) -> str:
    """The track of what a stream carries: both directions of a link are busy at once, and a track shows one thing at a time."""
    if step.peer is None:
        return step.stream
    return f"{step.stream}, {'to' if step.op.is_send else 'from'} rank {step.peer}"


def category(step: Instruction) -> str:
    """Category of an instruction on the track of computation."""
    return "computation" if step.op.is_compute else "wait" if step.op is Op.WAIT else "other"


def track_name(what: str, rank: int, track: int, name: str) -> dict[str, Any]:
    """Names a process (`process_name`) or one of its tracks (`thread_name`)."""
    return {"name": what, "ph": "M", "pid": rank, "tid": track, "args": {"name": name}}


def microseconds(seconds: float) -> float:
    """Microseconds, to full nanoseconds."""
    return round(seconds * MICROSECONDS, 3)


def span(
    name: str, kind: str, rank: int, track: int, start: float, end: float, arguments: dict[str, Any]
) -> dict[str, Any]:
    """Something that takes from `start` to `end`, in seconds."""
    return {
        "name": name,
        "cat": kind,
        "ph": "X",
        "ts": microseconds(start),
        "dur": round(microseconds(end) - microseconds(start) - HALF_NANOSECOND, 4),
        "pid": rank,
        "tid": track,
        "args": arguments,
    }
