"""Bounds of all layouts, shape by shape: which shapes need prices of their own, and where their layouts go.

A recording costs most, and few shapes are near the best. A shape is passed over where a floor of its bounds says that none of its
layouts can be among those that are kept.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fourfold.layout.mesh import ORDERS
from fourfold.plan.blocks import FLOOR_SHARE, BlockPrice
from fourfold.plan.bound import Bounder, Bounds
from fourfold.plan.budget import FLOOR, ROW, SHAPE, SHARPER, SearchBudget
from fourfold.plan.candidate import BlockShape
from fourfold.plan.low_memory import LowMemory
from fourfold.plan.pool import Counts, Pool
from fourfold.plan.pricing import Priced, Pricer
from fourfold.plan.request import Request
from fourfold.plan.space import block_shapes

Progress = Callable[[str, float], None]
"""Called with what is being done, and the share of it that is done."""


class Bounded(NamedTuple):
    """Layouts worth simulating: the best by their bounds, the best of those that hold little, the best of those that are not
    near the memory limit (`plan.outlook`)."""

    pool: Pool
    small: LowMemory
    surely_fits: LowMemory

    @property
    def reach(self) -> float:
        """Seconds above which a layout is none of them."""
        return max(self.pool.limit, self.small.reach, self.surely_fits.reach) if self.pool.least else float("inf")

    def needs(self, bounds: Bounds, scores: NDArray[np.float64]) -> bool:
        """Whether a layout of a table, with these bounds, may be one of them."""
        return self.pool.needs(bounds, scores) or self.small.needs(bounds) or self.surely_fits.needs(bounds)

    def add(self, bounds: Bounds, scores: NDArray[np.float64]) -> None:
        """Keeps those of a table's layouts that are."""
        self.pool.add(bounds, scores)
        self.small.add(bounds)
        self.surely_fits.add(bounds)


def bound_all(
    pricer: Pricer,
    counts: Counts,
    budget: SearchBudget,
    progress: Progress | None,
    rival: Priced | None = None,
    riskier: LowMemory | None = None,
) -> Bounded:
    """Bounds of all layouts, those of plain shapes first in case the budget runs out. `rival`: a layout that was simulated; those
    whose bounds are worse are not kept, nor are those that hold little. `riskier`: notes the layouts under its limit, of shapes
    that are priced for the others."""
    request, outlook = pricer.request, pricer.outlook
    orders = request.constraints.choices("outermost", ORDERS, {}) or list(ORDERS)
    bounder = Bounder(request, orders[0], pricer.blocks, mixes=True)
    surely_fits = LowMemory(min(outlook.surely_fits_bytes, request.memory_bytes))
    found = Bounded(Pool(request, counts), LowMemory.of(request), surely_fits)
    if rival is not None:
        found = Bounded(Pool(request, counts, rival.score), LowMemory(0.0), LowMemory(0.0))
    shapes = sorted(block_shapes(request), key=_plain_first)
    least: dict[BlockShape, float] = {}
    done = 0
    for _, group in groupby(shapes, key=_plain_first):
        if budget.is_spent:
            counts.shapes_not_priced = len(shapes) - done
            break
        alike = list(group)
        done += len(alike)
        if progress is not None:
            progress("bounding", done / len(shapes))
        every = replace(alike[0], cp_method="")
        before = max(least.get(each, 0.0) for each in _cheaper(every))
        price = pricer.blocks.floor(every, without_context=True)
        low = max(FLOOR_SHARE * before, _ideal_seconds(request, every, price))
        least[every] = low
        if low > found.reach:
            counts.slower_shapes += len(alike)
            continue
        floor = bounder.bounds(alike[0], price)
        if floor is None:
            continue
        budget.spend(FLOOR + ROW * len(floor))
        scores, ideals = outlook.scores(floor), list[float]()
        for shape in alike:
            sharper, ideal = floor, low
            needed = found.needs(floor, scores)
            if needed and shape.cp > 1:
                budget.spend(SHARPER + ROW * len(floor))
                price = pricer.blocks.floor(shape)
                ideal = max(low, _ideal_seconds(request, shape, price))
                sharper = bounder.bounds(shape, price) or floor
                needed = found.needs(sharper, outlook.scores(sharper))
            bounds = bounder.bounds(shape) if needed else None
            if bounds is None:
                found.pool.pass_over(sharper)
            else:
                budget.spend(SHAPE + ROW * len(bounds))
                found.add(bounds, outlook.scores(bounds))
                if riskier is not None:
                    riskier.add(bounds)
                ideal = _ideal_seconds(request, shape, pricer.blocks.price(shape))
            ideals.append(ideal)
        least[every] = min(ideals)
    return found


def _plain_first(shape: BlockShape) -> tuple[int | str, ...]:
    """The order of shapes; the same for those that differ in how context parallelism goes, whose floors are the same."""
    split = shape.cp * shape.etp * shape.microbatch_sequences * max(1, shape.tp // 8)
    return split, shape.tp, shape.cp, shape.ep, shape.etp, shape.microbatch_sequences, shape.recompute


def _cheaper(shape: BlockShape) -> Iterator[BlockShape]:
    """Shapes whose blocks take no longer for a token: of half the context or tensor parallelism, without recomputation."""
    yield replace(shape, cp=shape.cp // 2)
    yield replace(shape, tp=shape.tp // 2, etp=max(1, shape.etp // 2))
    if shape.recompute != "none":
        yield replace(shape, recompute="none")


def _ideal_seconds(request: Request, shape: BlockShape, price: BlockPrice) -> float:
    """Seconds of a step in which nothing but blocks takes time, and no rank idles."""
    shares = request.devices * shape.microbatch_sequences / (shape.cp * shape.tp)
    return (price.forward_seconds + price.backward_seconds) * request.global_sequences / shares
