"""Schedules and their sizes, from the records; what a check refuses them with."""

from collections.abc import Callable

from hypothesis import strategies as st

from fourfold.config import UserError
from fourfold.program.schedule import BUILT_IN, SCHEDULES, find_schedule

NAMES = tuple(schedule.name for schedule in SCHEDULES)
FIXED = tuple(schedule.name for schedule in BUILT_IN)
"""Schedules whose orders depend on sizes alone."""


def with_stages(virtual_stages: int) -> tuple[str, ...]:
    """The schedules that take so many stages a rank."""
    return tuple(schedule.name for schedule in SCHEDULES if schedule.takes(virtual_stages))


def stages_of(name: str, most: int = 4) -> list[int]:
    """The numbers of stages a rank, up to `most`, that a schedule takes."""
    return [v for v in range(1, most + 1) if find_schedule(name).takes(v)]


def least_stages(name: str) -> int:
    return find_schedule(name).min_virtual_stages


@st.composite
def shapes(draw: st.DrawFn, most_ranks: int = 7) -> tuple[str, int, int, int]:
    """(schedule, P, v, M): P = 1, M < P and ragged M among them."""
    schedule = draw(st.sampled_from(FIXED))
    num_ranks, virtual = draw(st.integers(1, most_ranks)), draw(st.sampled_from(stages_of(schedule)))
    return schedule, num_ranks, virtual, draw(st.integers(1, 3 * most_ranks))


def fault_of(check: Callable[[], object]) -> str | None:
    """The message that the check refuses with; None where it does not."""
    try:
        check()
    except UserError as error:
        return str(error)
    return None
