"""`auto`: the compute order with the shortest step that fits in memory, for stages of any durations."""

from collections.abc import Sequence

from fourfold.program.schedule.compute import Orders
from fourfold.program.schedule.execution import execute
from fourfold.program.schedule.fixed import fixed_orders, same_placement
from fourfold.program.schedule.placement import loop_placement
from fourfold.program.schedule.times import StageTimes


def auto_orders(
    stage_ranks: Sequence[int],
    num_microbatches: int,
    times: StageTimes,
    memory_limit: float | Sequence[float] | None = None,
) -> Orders:
    """The order of every rank."""
    num_ranks = max(stage_ranks) + 1
    virtual_stages = len(stage_ranks) // num_ranks
    is_v = tuple(stage_ranks) != loop_placement(num_ranks, virtual_stages)
    names = same_placement(num_ranks, virtual_stages, is_v)
    candidates = [fixed_orders(name, num_ranks, virtual_stages, num_microbatches) for name in names]
    return min(candidates, key=lambda orders: execute(orders, stage_ranks, times).makespan)
