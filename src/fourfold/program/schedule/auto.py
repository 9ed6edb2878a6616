"""`auto`: the compute order with the shortest step that fits in memory, for stages of any durations."""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise, product

from fourfold.config import UserError
from fourfold.program.schedule.built_in import usual_schedule, with_placement
from fourfold.program.schedule.compute import BACKWARD, FORWARD, Orders, numbered
from fourfold.program.schedule.execution import execute, peak_activations
from fourfold.program.schedule.greedy import Rule, list_schedule
from fourfold.program.schedule.record import MemoryLimit, Schedule, loop_placement, v_placement
from fourfold.program.schedule.search import improve
from fourfold.program.schedule.times import StageTimes
from fourfold.program.schedule.v_shape import ZB_V

_GREEDY_ENTRIES = 150_000
_SEARCH_ENTRIES = 150_000
"""How many entries the two phases may time: each below a second of one core. Counted, so that the result is the same anywhere."""
_ROUNDING = 1 + 1e-9
"""Sums of floats in another order differ by less."""
_STARTS = 8
_LEAST_SEARCH = 50
"""The local search starts from so many of the best, or from fewer where it could not time so many orders from each."""


def auto_orders(
    stage_ranks: Sequence[int],
    num_microbatches: int,
    times: StageTimes,
    memory_limit: MemoryLimit = None,
) -> Orders:
    """The order of every rank, after the automatic search of Qi et al. 2023: never a longer step than any built-in schedule on
    the same placement that fits.

    The built-in schedules, and list schedules under many rules, are timed; from the best a local search goes on. Whatever is
    random elsewhere is not here: the same arguments give the same orders. `memory_limit`: as in `schedule_orders`. Raises
    `UserError` where one microbatch alone does not fit.
    """
    limits = _limits(stage_ranks, num_microbatches, times, memory_limit)
    bound = step_bound(stage_ranks, num_microbatches, times) * _ROUNDING
    found: dict[Orders, float] = {}
    for orders in _candidates(stage_ranks, num_microbatches, times, limits):
        if all(peak <= limit for peak, limit in zip(peak_activations(orders, times), limits, strict=True)):
            found[orders] = execute(orders, stage_ranks, times).makespan
            if found[orders] <= bound:
                return orders
    budget = _SEARCH_ENTRIES // (3 * len(stage_ranks) * num_microbatches)
    starts = sorted(found, key=lambda orders: found[orders])[: max(1, min(_STARTS, budget // _LEAST_SEARCH))]
    improved = [improve(orders, stage_ranks, times, limits, bound, budget // len(starts)) for orders in starts]
    return min(improved, key=lambda orders: execute(orders, stage_ranks, times).makespan)


def step_bound(stage_ranks: Sequence[int], num_microbatches: int, times: StageTimes) -> float:
    """No order is shorter: a rank waits for its first activation and then has all its work to do, and one microbatch goes
    down all stages and back."""
    work = [
        num_microbatches * sum(t) for t in zip(times.forward, times.input_gradient, times.weight_gradient, strict=True)
    ]
    late = [times.transfer if a != b else 0.0 for a, b in pairwise(stage_ranks)]
    bounds = [sum(times.forward) + sum(times.input_gradient) + times.weight_gradient[0] + 2 * sum(late)]
    for rank in set(stage_ranks):
        held = [stage for stage, r in enumerate(stage_ranks) if r == rank]
        bounds.append(sum(times.forward[: held[0]]) + sum(late[: held[0]]) + sum(work[stage] for stage in held))
    return max(bounds)


def _candidates(
    stage_ranks: Sequence[int], num_microbatches: int, times: StageTimes, limits: Sequence[float]
) -> Iterator[Orders]:
    num_ranks = max(stage_ranks) + 1
    virtual_stages = len(stage_ranks) // num_ranks
    yield _one_at_a_time(stage_ranks, num_microbatches)
    for schedule in with_placement(stage_ranks):
        yield schedule.orders(num_ranks, virtual_stages, num_microbatches, None, None)
    entries = 3 * len(stage_ranks) * num_microbatches
    for rule in _rules(virtual_stages)[: max(4, _GREEDY_ENTRIES // entries)]:
        yield list_schedule(stage_ranks, num_microbatches, times, limits, rule)


def _one_at_a_time(stage_ranks: Sequence[int], num_microbatches: int) -> Orders:
    """`naive` on any placement: what fits if anything does."""
    num_stages = len(stage_ranks)
    trip = [(FORWARD, s) for s in range(num_stages)] + [(BACKWARD, s) for s in reversed(range(num_stages))]
    return tuple(
        tuple(numbered([kind for kind in trip if stage_ranks[kind[1]] == rank] * num_microbatches, num_microbatches))
        for rank in range(max(stage_ranks) + 1)
    )


def _rules(virtual_stages: int) -> list[Rule]:
    """All combinations; those that differ in depth first, since that matters most."""
    both = (False, True)
    several = both if virtual_stages > 1 else (True,)
    depths = (0.0, 1.0, 0.75, 0.5, 1.25, 1.5, 2.0, math.inf)
    return [
        Rule(depth, patience, eager, reserve, breadth)
        for patience, eager, breadth, reserve, depth in product((0.0, 0.5, 1.0), both, several, several, depths)
    ]


def _limits(stage_ranks: Sequence[int], num_microbatches: int, times: StageTimes, stated: MemoryLimit) -> list[float]:
    num_ranks = max(stage_ranks) + 1
    if stated is None:
        virtual_stages = len(stage_ranks) // num_ranks
        plain = ZB_V if _is_v(stage_ranks) else usual_schedule(virtual_stages)
        orders = plain.orders(num_ranks, virtual_stages, num_microbatches, None, None)
        return [max(peak_activations(orders, times)) * _ROUNDING] * num_ranks
    limits = [float(stated)] * num_ranks if isinstance(stated, int | float) else [float(limit) for limit in stated]
    if len(limits) != num_ranks:
        raise ValueError(f"{len(limits)} memory limits for {num_ranks} ranks")
    for rank, limit in enumerate(limits):
        least = sum(a for a, r in zip(times.activations, stage_ranks, strict=True) if r == rank)
        if not limit >= least:
            raise UserError(
                f"schedule 'auto': rank {rank} may hold {limit:g} of activations, but one microbatch holds {least:g} there; "
                f"what works: recompute, or a smaller layout.microbatch_sequences"
            )
    return [limit * _ROUNDING for limit in limits]


def _is_v(stage_ranks: Sequence[int]) -> bool:
    return len(stage_ranks) > 1 and tuple(stage_ranks) == v_placement(max(stage_ranks) + 1)


def _placement(num_ranks: int, virtual_stages: int) -> tuple[int, ...]:
    """A V with two stages a rank, which then needs the memory of 1F1B; a loop otherwise."""
    return v_placement(num_ranks) if virtual_stages == 2 else loop_placement(num_ranks, virtual_stages)


def _orders(
    num_ranks: int, virtual_stages: int, num_microbatches: int, times: StageTimes | None, memory_limit: MemoryLimit
) -> Orders:
    ranks = _placement(num_ranks, virtual_stages)
    return auto_orders(ranks, num_microbatches, times or StageTimes.uniform(len(ranks)), memory_limit)


AUTO = Schedule(
    name="auto",
    summary="The shortest step that a search finds within the memory, for stages of any durations.",
    paper="Qi et al. 2023, section 3",
    orders=_orders,
    placement=_placement,
    splits_backward=True,
    needs_times=True,
    steady_rounds=None,
)
