"""A step as it ran and as it was predicted, side by side in one trace for Perfetto, with flows from sends to receives."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from fourfold.program import Op
from fourfold.results.comparison import Comparison, RankComparison
from fourfold.results.step_timeline import first_begun
from fourfold.simulate.state import Place
from fourfold.simulate.trace import (
    COMPUTE_TRACK,
    TracePoint,
    arrows,
    category,
    joins,
    microseconds,
    span,
    trace_events,
    track_name,
    transfers,
    write_events,
)

TRACE = "trace.json"
MEASURED = 100_000
"""Processes of measured ranks are numbered from here; those of predicted pipeline ranks from 0."""
BEFORE_END = 2e-3
"""Microseconds before an event's end at which it still lasts."""
MEASURED_FLOWS = 10_000_000
"""Flows between measured ranks are numbered from here."""


def write_run_trace(found: Comparison, path: Path) -> int:
    """Writes the trace; returns how many events it has. Raises `RunFailure` where the file cannot be written."""
    return write_events(_events(found), path)


def _events(found: Comparison) -> Iterator[dict[str, Any]]:
    begun = first_begun(found)
    points: dict[Place, TracePoint] = {}
    for rank in found.ranks:
        yield from _rank_events(rank, found, begun, points)
    waits = [joins(program) for program in found.programs]
    paths = [(sent, (rank, waits[rank].get(index, index))) for sent, (rank, index) in transfers(list(found.programs))]
    yield from arrows(paths, points, "transfer, measured", MEASURED_FLOWS)
    if found.step is not None:
        for event in trace_events(found.step.simulation):
            if event["name"] == "process_name":
                event["args"]["name"] += ", predicted"
            yield event


def _rank_events(
    rank: RankComparison, found: Comparison, begun: float, points: dict[Place, TracePoint]
) -> Iterator[dict[str, Any]]:
    """Events of a rank; notes in `points` where each instruction is drawn."""
    timeline, steps = rank.measured.timeline, found.programs[rank.pp_rank].instructions
    if timeline is None or len(timeline.ends) != len(steps):
        return
    process = MEASURED + rank.pp_rank
    title = f"pipeline rank {rank.pp_rank}, measured: step {timeline.step} on rank {rank.measured.rank}"
    yield track_name("process_name", process, COMPUTE_TRACK, title)
    yield {
        "name": "process_sort_index",
        "ph": "M",
        "pid": process,
        "tid": COMPUTE_TRACK,
        "args": {"sort_index": rank.pp_rank},
    }
    yield track_name("thread_name", process, COMPUTE_TRACK, "instructions")
    offset = timeline.begun - begun
    times = pairwise([offset, *(offset + end for end in timeline.ends)])
    drawn = [(index, *each) for index, each in enumerate(times) if microseconds(each[1]) > microseconds(each[0])]
    for index, start, end in drawn:
        yield span(steps[index].short, category(steps[index]), process, COMPUTE_TRACK, start, end, {"index": index})
    numbers = [index for index, _, _ in drawn]
    for index, step in enumerate(steps):
        # what is sent leaves the last instruction that took time, what is waited for reaches the next
        place = bisect_left(numbers, index) if step.op is Op.WAIT else bisect_right(numbers, index) - 1
        if 0 <= place < len(drawn):
            points[rank.pp_rank, index] = TracePoint(
                process, COMPUTE_TRACK, round(microseconds(drawn[place][2]) - BEFORE_END, 3)
            )
