"""The columns of a schedule give its timeline, to the bit, under any times."""

import numpy as np
import pytest

from fourfold.config import UserError
from fourfold.program.instruction import Op
from fourfold.program.schedule import SCHEDULES, Compute, StageTimes, find_schedule, schedule_orders, stage_ranks
from fourfold.program.schedule.execution import activation_levels
from fourfold.program.slots import Slots
from fourfold.program.timeline import timeline


@pytest.mark.parametrize("schedule", [each.name for each in SCHEDULES])
@pytest.mark.parametrize(("ranks", "virtual", "microbatches"), [(4, 2, 8), (3, 3, 5), (2, 1, 1), (1, 1, 2)])
def test_columns_give_the_timeline(schedule: str, ranks: int, virtual: int, microbatches: int) -> None:
    found = find_schedule(schedule)
    virtual = max(found.min_virtual_stages, virtual)
    virtual = min(virtual, found.max_virtual_stages or virtual)
    orders, owners = schedule_orders(schedule, ranks, virtual, microbatches), stage_ranks(schedule, ranks, virtual)
    slots, random = Slots.of(orders, owners), np.random.default_rng(0)
    for transfer, zero in ((0.0, 1.0), (0.3, 1.0), (0.1, 0.0)):
        forward, inputs, weights, held = (tuple(random.random(len(owners)).tolist()) for _ in range(4))
        times = StageTimes(forward, inputs, tuple(zero * each for each in weights), transfer, held)
        expected = timeline(orders, owners, times)
        assert slots.timed(times) == expected
        assert [row.tolist() for row in slots.activation_levels(times)] == activation_levels(orders, times)


def test_orders_that_deadlock_have_no_columns() -> None:
    order = (Compute(Op.BACKWARD, 0, 0), Compute(Op.FORWARD, 0, 0))
    with pytest.raises(UserError):
        Slots.of([order], (0,))
