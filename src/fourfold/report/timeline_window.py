"""The part of a timeline that a screen shows: some ranks, and the time between two points or two microbatches."""

import re
from dataclasses import dataclass

from fourfold.config import UserError
from fourfold.program.timeline import Timeline

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
