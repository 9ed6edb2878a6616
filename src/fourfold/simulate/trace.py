"""A simulated step as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open: the JSON trace event format.

One process a pipeline rank; its tracks are computation and each stream of communication, and a counter of the memory held.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fourfold.config import RunFailure
from fourfold.config.whole_file import whole_file
from fourfold.program.instruction import COMPUTE_OPS, Instruction, Op
from fourfold.simulate.step import Simulation

COMPUTE_TRACK = 0
MICROSECONDS = 1e6


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
    for rank in range(len(simulation.programs)):
        yield from _rank_events(simulation, rank)


def _rank_events(simulation: Simulation, rank: int) -> Iterator[dict[str, Any]]:
    times, steps = simulation.times.ranks[rank], simulation.programs[rank].instructions
    tracks = {name: 1 + i for i, name in enumerate(sorted({steps[i].stream for i in times.streams} - {"compute"}))}
    yield track_name("process_name", rank, COMPUTE_TRACK, f"pipeline rank {rank}")
    yield {"name": "process_sort_index", "ph": "M", "pid": rank, "tid": 0, "args": {"sort_index": rank}}
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
            yield span(step.short, kind, rank, COMPUTE_TRACK, start, end, arguments)
        if index in times.streams and step.stream in tracks:
            begin, stop = times.streams[index]
            if stop > begin:
                sizes = {"index": index, "bytes": sum(c.bytes for c in step.collectives)}
                yield span(step.short, "communication", rank, tracks[step.stream], begin, stop, sizes)


def category(step: Instruction) -> str:
    """Category of an instruction on the track of computation."""
    return "computation" if step.op in COMPUTE_OPS else "wait" if step.op is Op.WAIT else "other"


def track_name(what: str, rank: int, track: int, name: str) -> dict[str, Any]:
    """Names a process (`process_name`) or one of its tracks (`thread_name`)."""
    return {"name": what, "ph": "M", "pid": rank, "tid": track, "args": {"name": name}}


def span(
    name: str, kind: str, rank: int, track: int, start: float, end: float, arguments: dict[str, Any]
) -> dict[str, Any]:
    """Something that takes from `start` to `end`, in seconds."""
    return {
        "name": name,
        "cat": kind,
        "ph": "X",
        "ts": start * MICROSECONDS,
        "dur": (end - start) * MICROSECONDS,
        "pid": rank,
        "tid": track,
        "args": arguments,
    }
