"""Shapes of schedules, of any size; what a check refuses them with."""

from collections.abc import Callable

from hypothesis import strategies as st

from fourfold.config import UserError
from fourfold.program.schedule import SCHEDULES

ONE_STAGE = ("naive", "gpipe", "1f1b", "zb_h1", "zb_h2")
V_SHAPED = ("zb_v", "dualpipe_v")


@st.composite
def shapes(draw: st.DrawFn, most_ranks: int = 7) -> tuple[str, int, int, int]:
    """(schedule, P, v, M): P = 1, M < P and ragged M among them."""
    schedule = draw(st.sampled_from([name for name in SCHEDULES if name != "auto"]))
    num_ranks = draw(st.integers(1, most_ranks))
    virtual = 1 if schedule in ONE_STAGE else 2 if schedule in V_SHAPED else draw(st.integers(2, 4))
    return schedule, num_ranks, virtual, draw(st.integers(1, 3 * most_ranks))


def fault_of(check: Callable[[], object]) -> str | None:
    """The message that the check refuses with; None where it does not."""
    try:
        check()
    except UserError as error:
        return str(error)
    return None
