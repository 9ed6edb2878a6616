"""A timeline in words, numbers and colours, as both drawings and the JSON document give it."""

from collections.abc import Callable
from typing import Any

from fourfold.program import Op
from fourfold.program.schedule.compute import SCHEDULED_OPS
from fourfold.program.timeline import Timeline
from fourfold.report.palette import LATER_STAGES, OPERATIONS
from fourfold.report.units import share_text

OP_NAMES = {op: OPERATIONS[op.value].name for op in SCHEDULED_OPS}
FILLS = {op: (OPERATIONS[op.value].light, LATER_STAGES[op.value]) for op in OP_NAMES}
"""Fill colours: of a rank's first stage, and of its later ones."""
INKS = ("#ffffff", "#000000")
"""Colours of the text on these fills."""

Format = Callable[[float], str]


def ops_used(timeline: Timeline) -> list[Op]:
    """The operations that occur, in the order of the legend."""
    seen = {event.op for events in timeline.events for event in events}
    return [op for op in OP_NAMES if op in seen]


def shortest_entry(timeline: Timeline) -> float:
    """The shortest duration of an entry that takes any time; 1 where none does."""
    return min((e.end - e.start for events in timeline.events for e in events if e.end > e.start), default=1.0)


def has_later_stages(timeline: Timeline) -> bool:
    return len(timeline.stage_ranks) > timeline.num_ranks


def chunk_of(timeline: Timeline, stage: int) -> int:
    """Which of its rank's stages it is, from 0."""
    return timeline.stage_ranks[:stage].count(timeline.stage_ranks[stage])


def headline(timeline: Timeline, schedule: str, format_time: Format) -> str:
    """`1f1b: 4 ranks, 8 microbatches: bubble 27.3 % of a step of 22`."""
    stages = len(timeline.stage_ranks) // timeline.num_ranks
    held = f" x {stages} stages" if stages > 1 else ""
    microbatches = 1 + max((e.microbatch for events in timeline.events for e in events), default=-1)
    inner, uneven = timeline.zero_bubble_fraction, timeline.imbalance_fraction
    remark = ""
    if uneven >= 5e-4:
        remark = f", {share_text(uneven)} because ranks have unequal work"
    elif inner < timeline.bubble_fraction - 5e-4:
        remark = f" ({share_text(inner)} if steps overlapped at their ends)"
    return (
        f"{schedule}: {_counted(timeline.num_ranks, 'rank')}{held}, {_counted(microbatches, 'microbatch', 'es')}: "
        f"bubble {share_text(timeline.bubble_fraction)} of a step of {format_time(timeline.makespan)}{remark}"
    )


def format_rank(timeline: Timeline, rank: int, format_activations: Format) -> tuple[str, str]:
    """A rank's bubble and its most live activations."""
    idle = timeline.idle[rank] / timeline.makespan if timeline.makespan else 0.0
    return share_text(idle), format_activations(timeline.peak_activations[rank])


def timeline_document(timeline: Timeline, schedule: str) -> dict[str, Any]:
    """Everything, for JSON. Times and activations are in the units of the stage times."""
    words = {op: op.value for op in OP_NAMES}
    rows = [[(start, end, words[op], *rest) for start, end, op, *rest in events] for events in timeline.events]
    return {**timeline_figures(timeline, schedule), "events": rows}


def timeline_figures(timeline: Timeline, schedule: str) -> dict[str, Any]:
    """A timeline's document without its events."""
    return {
        "schedule": schedule,
        "stage_ranks": list(timeline.stage_ranks),
        "makespan": timeline.makespan,
        "bubble_fraction": timeline.bubble_fraction,
        "bubble_over_ideal": timeline.bubble_over_ideal,
        "zero_bubble_fraction": timeline.zero_bubble_fraction,
        "busy": list(timeline.busy),
        "idle": list(timeline.idle),
        "imbalance_fraction": timeline.imbalance_fraction,
        "inner_idle": list(timeline.inner_idle),
        "peak_activations": list(timeline.peak_activations),
    }


def _counted(count: int, word: str, plural: str = "s") -> str:
    return f"{count} {word}{'' if count == 1 else plural}"
