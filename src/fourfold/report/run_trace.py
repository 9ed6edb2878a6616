"""A step as it ran and as it was predicted, side by side in one trace for Perfetto."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fourfold.report.comparison import Comparison, RankComparison
from fourfold.simulate.trace import COMPUTE_TRACK, category, span, trace_events, track_name, write_events

TRACE = "trace.json"
MEASURED = 100_000
"""Processes of measured ranks are numbered from here; those of predicted pipeline ranks from 0."""


def write_run_trace(found: Comparison, path: Path) -> int:
    """Writes the trace; returns how many events it has. Raises `RunFailure` where the file cannot be written."""
    return write_events(_events(found), path)


def first_begun(found: Comparison) -> float:
    """When the first of the ranks whose steps were kept began (Unix time); ranks on other machines have clocks of their own."""
    return min((r.measured.timeline.begun for r in found.ranks if r.measured.timeline is not None), default=0.0)


def _events(found: Comparison) -> Iterator[dict[str, Any]]:
    begun = first_begun(found)
    for rank in found.ranks:
        yield from _rank_events(rank, found, begun)
    if found.step is not None:
        for event in trace_events(found.step.simulation):
            if event["name"] == "process_name":
                event["args"]["name"] += ", predicted"
            yield event


def _rank_events(rank: RankComparison, found: Comparison, begun: float) -> Iterator[dict[str, Any]]:
    timeline, steps = rank.measured.timeline, found.programs[rank.pp_rank].instructions
    if timeline is None or len(timeline.ends) != len(steps):
        return
    process = MEASURED + rank.pp_rank
    title = f"pipeline rank {rank.pp_rank}, measured: step {timeline.step} on rank {rank.measured.rank}"
    yield track_name("process_name", process, COMPUTE_TRACK, title)
    yield {"name": "process_sort_index", "ph": "M", "pid": process, "tid": 0, "args": {"sort_index": rank.pp_rank}}
    yield track_name("thread_name", process, COMPUTE_TRACK, "instructions")
    offset = before = timeline.begun - begun
    for index, (step, end) in enumerate(zip(steps, timeline.ends, strict=True)):
        yield span(step.short, category(step), process, COMPUTE_TRACK, before, offset + end, {"index": index})
        before = offset + end
