"""The columns of a schedule say what its timeline waits for, to the bit, under any times."""

import numpy as np
import pytest

from fourfold.program.schedule import SCHEDULES, StageTimes, find_schedule, schedule_orders, stage_ranks
from fourfold.program.schedule.execution import activation_levels
from fourfold.program.slots import Slots
from fourfold.program.timeline import timeline


@pytest.mark.parametrize("schedule", [each.name for each in SCHEDULES])
@pytest.mark.parametrize(("ranks", "virtual", "microbatches"), [(4, 2, 8), (3, 3, 5), (2, 1, 1), (1, 1, 2)])
def test_a_slot_starts_when_what_its_columns_name_is_over(
    schedule: str, ranks: int, virtual: int, microbatches: int
) -> None:
    found = find_schedule(schedule)
    virtual = max(found.min_virtual_stages, virtual)
    virtual = min(virtual, found.max_virtual_stages or virtual)
    orders, owners = schedule_orders(schedule, ranks, virtual, microbatches), stage_ranks(schedule, ranks, virtual)
    slots, random = Slots.of(orders, owners), np.random.default_rng(0)
    for transfer, zero in ((0.0, 1.0), (0.3, 1.0), (0.1, 0.0)):
        forward, inputs, weights, held = (tuple(random.random(len(owners)).tolist()) for _ in range(4))
        times = StageTimes(forward, inputs, tuple(zero * each for each in weights), transfer, held)
        run = timeline(orders, owners, times).run
        starts, ends = (np.array([time for row in rows for time in row]) for rows in (run.starts, run.ends))
        rank = np.repeat(np.arange(ranks), np.diff(slots.first))
        arrived = ends[slots.need] + np.where(rank[slots.need] == rank, 0.0, transfer)
        free = np.where(slots.before < 0, 0.0, ends[slots.before])
        np.testing.assert_array_equal(starts, np.where(slots.need < 0, free, np.maximum(free, arrived)))
        assert [row.tolist() for row in slots.activation_levels(times)] == activation_levels(orders, times)
