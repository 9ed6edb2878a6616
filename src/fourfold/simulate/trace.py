"""A simulated step as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open: the JSON trace event format. Arrows go
from a send to its receive, and through what pipeline ranks enter together."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fourfold.config import RunFailure
from fourfold.config.whole_file import whole_file
from fourfold.layout import Layout
from fourfold.program import Program
from fourfold.program.instruction import Instruction, Op
from fourfold.simulate.state import Place
from fourfold.simulate.step import Simulation

MOST_NAMED = 16
"""Ranks of a group that are named one by one."""
COMPUTE_TRACK = 1
"""Perfetto takes track 0 of all processes for one, the idle thread."""
MICROSECONDS = 1e6
HALF_NANOSECOND = 5e-4
"""Viewers cut times to full nanoseconds: an event that ended on the next one's start would come to overlap it, and be left out."""


class TracePoint(NamedTuple):
    """A moment on a track of a trace: the event of the track that lasts then is meant. `time` in microseconds."""

    process: int
    track: int
    time: float


def transfers(programs: Sequence[Program]) -> Iterator[tuple[Place, Place]]:
    """The send and the receive of every transfer: between two ranks they pair up in the order of their starts."""
    sent: dict[tuple[int, int], list[Place]] = {}
    received: dict[tuple[int, int], list[Place]] = {}
    for rank, program in enumerate(programs):
        for index, step in enumerate(program.instructions):
            if step.peer is not None and step.op.is_send:
                sent.setdefault((rank, step.peer), []).append((rank, index))
            elif step.peer is not None and step.op.is_receive:
                received.setdefault((step.peer, rank), []).append((rank, index))
    for channel, places in sent.items():
        yield from zip(places, received.get(channel, ()), strict=False)


def meetings(programs: Sequence[Program]) -> Iterator[list[Place]]:
    """The instructions that several pipeline ranks enter together, as sums over all stages."""
    found: dict[object, list[Place]] = {}
    for rank, program in enumerate(programs):
        seen: dict[object, int] = {}
        for index, step in enumerate(program.instructions):
            axes = {axis for each in step.collectives for axis in each.axes.split("+")}
            if axes & {"pp", "tied"}:
                key = step.op, step.segment
                seen[key] = seen.get(key, 0) + 1
                found.setdefault((key, seen[key]), []).append((rank, index))
    return (places for places in found.values() if len(places) > 1)


def joins(program: Program) -> dict[int, int]:
    """Index of the WAIT that joins what an instruction started, by that instruction's index."""
    started: dict[str, int] = {}
    found = {}
    for index, step in enumerate(program.instructions):
        if step.op is Op.WAIT and step.handle in started:
            found[started.pop(step.handle)] = index
        elif step.op.is_start:
            started[step.short] = index
    return found


def arrows(
    paths: Iterable[Sequence[Place]], points: Mapping[Place, TracePoint], name: str, first: int = 0
) -> Iterator[dict[str, Any]]:
    """Flow events along each path, through the places that are drawn. `first`: their ids count from here."""
    for number, path in enumerate(paths, first):
        drawn = [points[place] for place in path if place in points]
        if len(drawn) < 2:
            continue
        for index, (process, track, time) in enumerate(drawn):
            last = index + 1 == len(drawn)
            event = {"name": name, "cat": "flow", "ph": "f" if last else "t" if index else "s", "id": number}
            yield {**event, "pid": process, "tid": track, "ts": time, **({"bp": "e"} if last else {})}


def members(layout: Layout, pp_rank: int, axes: str) -> str:
    """The ranks of a group, of the first device of a pipeline rank: `0, 8, 16 and 24`; those of large groups in part."""
    first = next(rank for rank in range(layout.world_size) if layout.pp_rank(rank) == pp_rank)
    ranks = layout.group_of(first, tuple(axes.split("+")))
    text = ", ".join(map(str, ranks[:MOST_NAMED]))
    return text if len(ranks) <= MOST_NAMED else f"{text}, ... {ranks[-1]}"


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
