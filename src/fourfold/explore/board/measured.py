"""A trained board: its last step as it ran, beside the order simulated with the times that its passes took."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, Literal

from fourfold.config import RunFailure
from fourfold.explore.board.request import Board
from fourfold.launch.run_folder import RunFolder
from fourfold.program import Program, RankView, rank_view
from fourfold.program.expand import expand_segments
from fourfold.program.instruction import Op
from fourfold.program.schedule import Compute, StageTimes
from fourfold.program.schedule.check import token
from fourfold.program.timeline import timeline
from fourfold.results.comparison import compare
from fourfold.results.record import record

Spans = dict[Compute, tuple[float, float]]


@record
class OrderTimeline:
    """The entries of a rank, in the order of its row, and seconds at which each begins and ends."""

    rank: int
    source: Literal["measured", "simulated"]
    entries: list[str]
    starts: list[float]
    ends: list[float]


@record
class MeasuredDocument:
    """The last step of a trained board and the same order simulated, in seconds. `pass_seconds`: by operation, the mean over
    stages and microbatches; the simulation takes the mean of each stage."""

    step: int
    measured_seconds: float
    simulated_seconds: float
    measured_bubble: float
    simulated_bubble: float
    pass_seconds: dict[str, float]
    timelines: list[OrderTimeline]


def measured_document(folder: Path, board: Board) -> dict[str, Any]:
    """`MeasuredDocument` of a run's folder. Raises `RunFailure` where it kept no step."""
    found = compare(RunFolder(folder))
    rows: dict[int, tuple[float, Spans]] = {}
    step = 0
    for each in found.ranks:
        kept, own = each.measured.timeline, each.pp_rank
        if kept is not None:
            view = rank_view(found.resolved.spec, own)
            rows[own] = kept.begun, _spans(found.programs[own], board.orders[own], view, kept.ends)
            step = kept.step
    if len(rows) < board.num_ranks:
        raise RunFailure("the run kept no step of every rank; what works: train it again")
    # the clock of all ranks, which are on one machine, from the first entry on
    first = min(begun + start for begun, row in rows.values() for start, _ in row.values())
    spans = {
        entry: (start + begun - first, end + begun - first)
        for begun, row in rows.values()
        for entry, (start, end) in row.items()
    }
    lasts = {entry: end - start for entry, (start, end) in spans.items()}
    simulated = timeline(board.orders, board.stage_ranks, _stage_times(lasts, len(board.stage_ranks)))
    timelines = []
    for rank, order in enumerate(board.orders):
        starts, ends = zip(*(spans[entry] for entry in order), strict=True)
        timelines.append(_timeline(rank, "measured", order, starts, ends))
        timelines.append(_timeline(rank, "simulated", order, simulated.run.starts[rank], simulated.run.ends[rank]))
    took = max(end for _, end in spans.values())
    by_op = defaultdict(list)
    for entry, seconds in lasts.items():
        by_op[entry.op.value].append(seconds)
    return {
        "step": step,
        "measured_seconds": took,
        "simulated_seconds": simulated.makespan,
        "measured_bubble": 1 - sum(lasts.values()) / (board.num_ranks * took),
        "simulated_bubble": simulated.bubble_fraction,
        "pass_seconds": {op: mean(seconds) for op, seconds in sorted(by_op.items())},
        "timelines": timelines,
    }


def _timeline(
    rank: int, source: str, order: Sequence[Compute], starts: Sequence[float], ends: Sequence[float]
) -> dict[str, Any]:
    return {
        "rank": rank,
        "source": source,
        "entries": list(map(token, order)),
        "starts": list(starts),
        "ends": list(ends),
    }


def _spans(program: Program, order: Sequence[Compute], view: RankView, ends: Sequence[float]) -> Spans:
    """By entry, from the begin of its first instruction to the end of its last, in seconds of the step."""
    groups = expand_segments(order, view)
    entry_of = {pattern.of(m).short: entry for entry, steps in zip(order, groups, strict=True) for pattern, m in steps}
    found: Spans = {}
    for step, begin, end in zip(program.instructions, [0.0, *ends], ends, strict=False):
        entry = entry_of.get(step.short)
        if entry is not None:
            found[entry] = found[entry][0] if entry in found else begin, end
    return found


def _stage_times(lasts: Mapping[Compute, float], num_stages: int) -> StageTimes:
    """Mean seconds of the passes of every stage; a full backward counts as an input half, where it has no halves."""

    def means(op: Op) -> list[float]:
        return [
            mean([seconds for entry, seconds in lasts.items() if entry[:2] == (op, stage)] or [0.0])
            for stage in range(num_stages)
        ]

    forward, full, inputs, weights = (
        means(op) for op in (Op.FORWARD, Op.BACKWARD, Op.BACKWARD_INPUT, Op.BACKWARD_WEIGHT)
    )
    halves = [i or max(0.0, b - w) for b, i, w in zip(full, inputs, weights, strict=True)]
    return StageTimes(tuple(forward), tuple(halves), tuple(weights))
