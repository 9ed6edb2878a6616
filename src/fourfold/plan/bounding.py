"""Bounds of all layouts, shape by shape: which shapes need prices of their own, where their layouts go, and the best of them.

A recording costs most, and few shapes are near the best. A shape is passed over where a floor of its bounds says that none of its
layouts can be among those that are kept.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fourfold.layout.mesh import ORDERS
from fourfold.plan.blocks import FLOOR_SHARE, BlockPrice
from fourfold.plan.bound import Bounder, Bounds, Parts
from fourfold.plan.budget import FLOOR, ROW, SHAPE, SHARPER, SearchBudget
from fourfold.plan.candidate import BlockShape, Candidate
from fourfold.plan.moves.less_memory import LowMemory
from fourfold.plan.pricing import Priced, Pricer
from fourfold.plan.request import Request
from fourfold.plan.space import block_shapes

KEPT = 1_000
"""Layouts whose bounds are kept for simulation."""
Progress = Callable[[str, float], None]
"""Called with what is being done, and the share of it that is done."""


@dataclass
class Counts:
    """Where the layouts went. `not_searched`: their bounds are better than the best, but others looked better still.
    `end_ranks_too_large`: the programs of the first two pipeline ranks and the last were lowered, and hold too much.
    `mixed`: layouts that are too large, for whose blocks ways with their activations were looked for.
    `least_memory`: layouts that were simulated for their memory, where none of the fastest fits. `slower_shapes`: shapes of a
    replica all of whose layouts are slower, which were not counted."""

    layouts: int = 0
    too_large: int = 0
    worse_bound: int = 0
    simulated: int = 0
    simulated_too_large: int = 0
    end_ranks_too_large: int = 0
    timelines: int = 0
    refused: int = 0
    not_searched: int = 0
    shapes_not_priced: int = 0
    slower_shapes: int = 0
    least_memory: int = 0
    mixed: int = 0


@dataclass
class Pool:
    """The best bounds so far. `limit`: a layout with a worse score is not kept. `scores`, `memory`, `origin`: parallel columns;
    rows of `origin` stand in `tables`, by the order in which these came."""

    request: Request
    counts: Counts
    limit: float = math.inf
    tables: dict[int, Bounds] = field(default_factory=dict)
    scores: list[np.ndarray] = field(default_factory=list)
    memory: list[np.ndarray] = field(default_factory=list)
    origin: list[np.ndarray] = field(default_factory=list)
    smallest: tuple[Candidate, float] | None = None
    least: list[tuple[float, Candidate]] = field(default_factory=list)
    """The layout of each shape with the least bound of memory, where that fits, with the bound."""
    away_seconds: float = math.inf
    """About the least time of a layout that fits if its optimizer states lie in the host's memory and not otherwise, by bounds."""
    _added: int = 0

    def add(self, bounds: Bounds, scores: NDArray[np.float64]) -> None:
        """The layouts of a table, with the bounds of their scores."""
        counts = self.counts
        counts.layouts += len(bounds)
        fits = bounds.memory_bytes <= self.request.memory_bytes
        self._note_states(bounds)
        counts.too_large += int((~fits).sum())
        least = int(bounds.memory_bytes.argmin())
        held, candidate = float(bounds.memory_bytes[least]), bounds.candidate(least)
        if not fits.any():
            if self.smallest is None or held < self.smallest[1]:
                self.smallest = (candidate, held)
            return
        self.least.append((held, candidate))
        kept = fits & (scores <= self.limit)
        counts.worse_bound += int((fits & ~kept).sum())
        rows = np.flatnonzero(kept)
        if not len(rows):
            return
        self.scores.append(scores[rows])
        self.memory.append(bounds.memory_bytes[rows])
        self.origin.append(np.stack([np.full(len(rows), self._added), rows]))
        self.tables[self._added] = bounds
        self._added += 1
        if sum(map(len, self.scores)) > 2 * KEPT:
            self._trim()

    def needs(self, bounds: Bounds, scores: NDArray[np.float64]) -> bool:
        """Whether a layout of a table, with these bounds, may be kept, or be the first that fits or the smallest."""
        fits = bounds.memory_bytes <= self.request.memory_bytes
        return not self.least or bool((scores[fits] <= self.limit).any())

    def pass_over(self, bounds: Bounds) -> None:
        """Counts the layouts of a table that is not needed."""
        fits = bounds.memory_bytes <= self.request.memory_bytes
        self.counts.layouts += len(bounds)
        self._note_states(bounds)
        self.counts.too_large += int((~fits).sum())
        self.counts.worse_bound += int(fits.sum())
        if fits.any():
            least = int(bounds.memory_bytes.argmin())
            self.least.append((float(bounds.memory_bytes[least]), bounds.candidate(least)))

    def _note_states(self, bounds: Bounds) -> None:
        """Notes the time of the layouts of a table that their optimizer states alone keep from fitting."""
        request, states, held = self.request, bounds.states_bytes, bounds.memory_bytes
        if not request.states_may_leave:
            return
        fits_away = held - (1 + request.software.fragmentation) * states <= request.memory_bytes
        rows = (held > request.memory_bytes) & fits_away & (states <= request.host_bytes)
        if rows.any():
            seconds = bounds.seconds[rows] + states[rows] * (request.template.host_copy(1e9) / 1e9)
            self.away_seconds = min(self.away_seconds, float(seconds.min()))

    def _trim(self) -> None:
        scores, memory, origin = self.columns()
        keep = np.argsort(scores, kind="stable")[:KEPT]
        self.counts.worse_bound += len(scores) - len(keep)
        self.limit = float(scores[keep[-1]])
        self.scores, self.memory, self.origin = [scores[keep]], [memory[keep]], [origin[:, keep]]
        self.tables = {int(place): self.tables[int(place)] for place in np.unique(self.origin[0][0])}

    def columns(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(scores [n], bytes of memory [n], origins [2, n]: table and row) of the layouts kept."""
        if not self.scores:
            return np.zeros(0), np.zeros(0), np.zeros((2, 0), dtype=int)
        return np.concatenate(self.scores), np.concatenate(self.memory), np.concatenate(self.origin, axis=1)

    def candidate(self, origin: np.ndarray) -> Candidate:
        """The layout of an origin [2]: table and row."""
        return self.tables[int(origin[0])].candidate(int(origin[1]))

    def lacking_bytes(self, origin: np.ndarray) -> float:
        """Bytes that a layout holds too much that fits by what each block does with its activations."""
        return float(self.tables[int(origin[0])].lacking_bytes[int(origin[1])])

    def parts(self, origin: np.ndarray) -> Parts:
        """The parts of a layout's bound."""
        return self.tables[int(origin[0])].parts(int(origin[1]))


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
