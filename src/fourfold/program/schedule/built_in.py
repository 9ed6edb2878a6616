"""The built-in schedules whose orders need no times: a schedule that is added goes into this tuple."""

from collections.abc import Iterator, Sequence

from fourfold.program.schedule.breadth_first import BREADTH_FIRST
from fourfold.program.schedule.interleaved import INTERLEAVED
from fourfold.program.schedule.one_stage import GPIPE, NAIVE, ONE_F_ONE_B
from fourfold.program.schedule.record import Schedule
from fourfold.program.schedule.v_shape import DUALPIPE_V, ZB_V
from fourfold.program.schedule.zero_bubble import ZB_H1, ZB_H2

BUILT_IN = (NAIVE, GPIPE, ONE_F_ONE_B, INTERLEAVED, BREADTH_FIRST, ZB_H1, ZB_H2, ZB_V, DUALPIPE_V)
"""In the order in which messages list them."""


def usual_schedule(virtual_stages: int) -> Schedule:
    """1F1B; interleaved where a rank has several stages."""
    return INTERLEAVED if virtual_stages > 1 else ONE_F_ONE_B


def with_placement(stage_ranks: Sequence[int]) -> Iterator[Schedule]:
    """The built-in schedules that put the stages on these ranks."""
    num_ranks = max(stage_ranks) + 1
    virtual_stages = len(stage_ranks) // num_ranks
    for schedule in BUILT_IN:
        if schedule.takes(virtual_stages) and schedule.placement(num_ranks, virtual_stages) == tuple(stage_ranks):
            yield schedule
