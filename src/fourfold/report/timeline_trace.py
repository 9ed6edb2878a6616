"""A schedule's timeline as a trace for Perfetto: one process a rank, its computations, and a flow for every transfer."""

from collections.abc import Iterator
from typing import Any

from fourfold.program import Op
from fourfold.program.timeline import Timeline
from fourfold.report.timeline_text import OP_NAMES
from fourfold.simulate.state import Place
from fourfold.simulate.trace import COMPUTE_TRACK, TracePoint, arrows, microseconds, span, track_name


def timeline_trace(timeline: Timeline, schedule: str) -> dict[str, Any]:
    """The trace; a unit of the timeline is a second of it."""
    return {"displayTimeUnit": "ms", "traceEvents": list(_events(timeline, schedule))}


def _events(timeline: Timeline, schedule: str) -> Iterator[dict[str, Any]]:
    points: dict[Place, TracePoint] = {}
    makers: dict[tuple[bool, int, int], Place] = {}
    for rank, events in enumerate(timeline.events):
        yield track_name("process_name", rank, COMPUTE_TRACK, f"pipeline rank {rank}, {schedule}")
        yield {"name": "process_sort_index", "ph": "M", "pid": rank, "tid": COMPUTE_TRACK, "args": {"sort_index": rank}}
        yield track_name("thread_name", rank, COMPUTE_TRACK, "computation")
        for index, (start, end, op, stage, m) in enumerate(events):
            if end <= start:
                continue
            arguments = {"stage": stage, "microbatch": m}
            yield span(f"{op.value}{stage} m{m}", OP_NAMES[op], rank, COMPUTE_TRACK, start, end, arguments)
            points[rank, index] = TracePoint(rank, COMPUTE_TRACK, microseconds(start))
            if op is not Op.BACKWARD_WEIGHT:
                makers[op is Op.FORWARD, stage, m] = rank, index
    paths = []
    for each in timeline.transfers:
        forward = each.kind == "activation"
        ends = [(forward, stage, each.microbatch) for stage in (each.stage, each.stage + (1 if forward else -1))]
        if all(end in makers for end in ends):
            paths.append([makers[end] for end in ends])
    yield from arrows(paths, points, "transfer")
