"""A timeline in words, numbers and colours: its figures, and the part of it that is drawn, for drawings and the JSON document."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fourfold.config import UserError
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


MOST_ROWS = 16
"""More ranks than this are sampled, unless they are asked for."""


@dataclass(frozen=True)
class Window:
    """`begin`, `end`: in the timeline's unit. `ranks`: of the rows, in order."""

    begin: float
    end: float
    ranks: tuple[int, ...]

    @property
    def length(self) -> float:
        return self.end - self.begin

    def is_full(self, timeline: Timeline) -> bool:
        """Whether all of the step's time is in it."""
        return self.begin == 0 and self.end == timeline.makespan


def full_window(timeline: Timeline) -> Window:
    """All time, and all ranks or a sample of them that has the first and the last."""
    count = timeline.num_ranks
    if count <= MOST_ROWS:
        return Window(0.0, timeline.makespan, tuple(range(count)))
    sample = {round(row * (count - 1) / (MOST_ROWS - 1)) for row in range(MOST_ROWS)}
    return Window(0.0, timeline.makespan, tuple(sorted(sample)))


def read_window(timeline: Timeline, begin: str | None, end: str | None, ranks: str | None) -> Window:
    """The window of `--from`, `--to` and `--pp-ranks`. Raises `UserError` naming the option."""
    full = full_window(timeline)
    start = full.begin if begin is None else _point(timeline, begin, "--from")[0]
    stop = full.end if end is None else _point(timeline, end, "--to")[1]
    if not 0 <= start < stop or start >= timeline.makespan:
        raise UserError(
            f"--from {begin or 0} --to {end or 'the end'}: nothing lies between; allowed: 0 to {timeline.makespan:.6g}, or m0 to "
            f"m{_last_microbatch(timeline)}; what works: --from m0 --to m1"
        )
    return Window(start, min(stop, timeline.makespan), _ranks(timeline, ranks) if ranks is not None else full.ranks)


def _point(timeline: Timeline, text: str, option: str) -> tuple[float, float]:
    """A time, or when a microbatch begins and ends: `m12`."""
    if re.fullmatch(r"m[0-9]{1,9}", text):
        events = [e for row in timeline.events for e in row if e.microbatch == int(text[1:])]
        if events:
            return min(e.start for e in events), max(e.end for e in events)
    elif re.fullmatch(r"[0-9]{1,18}(\.[0-9]{1,9})?([eE]\+?[0-9]{1,2})?", text):
        return float(text), float(text)
    raise UserError(
        f"{option} {text[:40]}: allowed: a time from 0 to {timeline.makespan:.6g}, as the axis has it, or a microbatch from m0 to "
        f"m{_last_microbatch(timeline)}; a value that works: {option} m0"
    )


def _last_microbatch(timeline: Timeline) -> int:
    return max((e.microbatch for row in timeline.events for e in row), default=0)


def _ranks(timeline: Timeline, text: str) -> tuple[int, ...]:
    """`0-3,63` -> 0, 1, 2, 3, 63."""
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,6})(?:-([0-9]{1,6}))?\s*", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if not first <= last < timeline.num_ranks:
            most = timeline.num_ranks - 1
            raise UserError(
                f"--pp-ranks {text[:60]}: allowed: pipeline ranks from 0 to {most}, as 0-3,{most}; a value that works: --pp-ranks 0"
            )
        found.update(range(first, last + 1))
    return tuple(sorted(found))
