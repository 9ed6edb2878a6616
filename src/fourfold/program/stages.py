"""Which segments make a pipeline stage: consecutive ones, divided so that the slowest stage is as fast as can be."""

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise

from fourfold.config import UserError
from fourfold.layout import Layout


def stage_sizes(
    stated: Sequence[int] | None, costs: Sequence[float], layout: Layout, modules: int = 0
) -> tuple[int, ...]:
    """How many segments each stage has: as stated (`layout.segments_per_stage`), or divided by cost. Raises `UserError`.

    `modules`: of multi-token prediction, before the head. They are not stated: like the head, whose unembedding they share, they
    are the last stage's.
    """
    costs = [*costs[: len(costs) - modules - 1], sum(costs[len(costs) - modules - 1 :])]
    *before, last = _sizes(stated, costs, layout)
    return (*before, last + modules)


def _sizes(stated: Sequence[int] | None, costs: Sequence[float], layout: Layout) -> tuple[int, ...]:
    stages, total = layout.pp * layout.virtual_stages, len(costs)
    if stated is None:
        return divide(costs, stages)
    if len(stated) != stages or sum(stated) != total or min(stated) < 1:
        fit = divide([1.0] * total, stages)
        raise UserError(
            f"layout.segments_per_stage = {list(stated)} does not divide the {total} segments (embedding, {total - 2} blocks, "
            f"head) among {stages} stages; a value that works: {list(fit)}"
        )
    return tuple(stated)


def divide(costs: Sequence[float], num_stages: int) -> tuple[int, ...]:
    """How many consecutive segments each stage gets, at least one each.

    The largest stage's cost is the least possible; among the divisions that reach it, the one whose costs are most even (least sum
    of squares); among those, the one that gives early stages more. Needs `num_stages` <= number of segments.
    """
    largest = max(costs) or 1.0
    return _divide(tuple(round(cost / largest, 12) for cost in costs), num_stages)


@lru_cache(maxsize=1024)
def _divide(costs: tuple[float, ...], num_stages: int) -> tuple[int, ...]:
    """Divides costs, in parts of the largest; layouts that split a segment's work alike have the same costs."""
    total = len(costs)
    sums = [0.0, *accumulate(costs)]
    worst = _least_maximum(sums, num_stages) * (1 + 1e-12)
    # best[i]: (sum of squares, sizes) of segments i.. divided among the stages that remain
    best: list[tuple[float, tuple[int, ...]] | None] = [None] * total + [(0.0, ())]
    for stages_left in range(1, num_stages + 1):
        following, best = best, [None] * (total + 1)
        for start in range(total - stages_left, -1, -1):
            farthest = min(total - stages_left + 1, bisect_right(sums, sums[start] + worst * (1 + 1e-9)) - 1)
            for end in range(farthest, start, -1):
                rest, cost = following[end], sums[end] - sums[start]
                if rest is None or cost > worst:
                    continue
                candidate = (rest[0] + cost * cost, (end - start, *rest[1]))
                current = best[start]
                if current is None or candidate[0] < current[0] * (1 - 1e-12):
                    best[start] = candidate
    found = best[0]
    assert found is not None
    return found[1]


def _least_maximum(sums: Sequence[float], num_stages: int) -> float:
    """The least possible cost of the largest stage: bisection, each limit tried by filling stage after stage. Fewer stages than
    allowed will do, for one of several segments can be cut."""
    costs = [b - a for a, b in pairwise(sums)]
    low, high = max(*costs, sums[-1] / num_stages) * (1 - 1e-12), sums[-1]
    while low < (middle := (low + high) / 2) < high:
        largest = _fill(costs, middle, num_stages)
        if largest is None:
            low = middle
        else:
            high = largest
    return high


def _fill(costs: Sequence[float], limit: float, num_stages: int) -> float | None:
    """The largest stage where every stage takes what it may; None if the stages do not hold everything."""
    stages, current, largest = 1, 0.0, 0.0
    for cost in costs:
        if current + cost > limit and current:
            stages, current = stages + 1, 0.0
        current += cost
        largest = max(largest, current)
        if stages > num_stages or current > limit:
            return None
    return largest
