"""The search: bounds of every layout, then sharper prices of those that look fastest, until the fastest are known.

Deterministic as long as no budget runs out. A layout is left out for one of four reasons, all counted: its memory's bound does not
fit, its time's bound is worse than the best, its simulated memory does not fit, or a budget ran out before it.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np

from fourfold.config import UserError
from fourfold.layout import resolve_layout
from fourfold.plan.blocks import BlockShape
from fourfold.plan.bound import Bounder, Bounds
from fourfold.plan.request import Candidate, Request
from fourfold.plan.space import block_shapes
from fourfold.program.buffers import Lowering
from fourfold.simulate.stage_times import estimate_makespan
from fourfold.simulate.step import StepPrediction, predict_step

Progress = Callable[[str, float], None]
"""What is being done, and the share of it that is."""

KEPT = 4_000
"""Layouts whose bounds are kept for simulation."""
LEAN = (0.75, 0.5, 0.25)
"""Shares of the memory limit for which a layout that holds no more is looked for."""
RELATIVES = 3
"""Layouts that are simulated of those which differ in how data parallelism is divided alone."""
BOUND, LIKE, TIMELINE, CORRECTED, SIMULATED = range(5)
"""How sharp the price of a layout is."""


@dataclass(frozen=True)
class Priced:
    """A layout that was simulated. `device_bytes`: of every pipeline rank."""

    candidate: Candidate
    seconds: float
    device_bytes: tuple[int, ...]
    bound_seconds: float = 0.0

    @property
    def memory_bytes(self) -> int:
        """Of the device that holds the most."""
        return max(self.device_bytes)


@dataclass
class Counts:
    """Where the layouts went. `not_searched`: their bounds are better than the best, but others looked better still."""

    layouts: int = 0
    too_large: int = 0
    worse_bound: int = 0
    simulated: int = 0
    simulated_too_large: int = 0
    like_a_simulated_one: int = 0
    timelines: int = 0
    refused: int = 0
    not_searched: int = 0
    shapes_not_priced: int = 0


@dataclass(frozen=True)
class Found:
    """What a search found, best first. `smallest`: the least memory that any layout needs, where none fits. `lean`: layouts that
    hold clearly less than the best."""

    request: Request
    best: tuple[Priced, ...]
    counts: Counts
    seconds: float
    smallest: tuple[Candidate, float] | None = None
    lean: tuple[Priced, ...] = ()


@dataclass
class _Pool:
    """The best bounds so far."""

    request: Request
    counts: Counts
    tables: list[Bounds] = field(default_factory=list)
    seconds: list[np.ndarray] = field(default_factory=list)
    memory: list[np.ndarray] = field(default_factory=list)
    origin: list[np.ndarray] = field(default_factory=list)
    smallest: tuple[Candidate, float] | None = None
    lean: list[tuple[float, float, Candidate]] = field(default_factory=list)
    """For each share of the memory limit in `LEAN`, the layout with the best bound of those that hold no more by their bounds."""

    def add(self, bounds: Bounds) -> None:
        counts = self.counts
        counts.layouts += len(bounds)
        fits = bounds.memory_bytes <= self.request.memory_bytes
        counts.too_large += int((~fits).sum())
        if not fits.any():
            least = int(bounds.memory_bytes.argmin())
            if self.smallest is None or bounds.memory_bytes[least] < self.smallest[1]:
                self.smallest = (bounds.candidate(least), float(bounds.memory_bytes[least]))
            return
        rows = np.flatnonzero(fits)
        self._keep_lean(bounds)
        self.seconds.append(bounds.seconds[rows])
        self.memory.append(bounds.memory_bytes[rows])
        self.origin.append(np.stack([np.full(len(rows), len(self.tables)), rows]))
        self.tables.append(bounds)
        if sum(map(len, self.seconds)) > 4 * KEPT:
            self._trim()

    def _keep_lean(self, bounds: Bounds) -> None:
        if not self.lean:
            self.lean = [(float("inf"), 0.0, bounds.candidate(0))] * len(LEAN)
        for place, share in enumerate(LEAN):
            seconds = np.where(bounds.memory_bytes <= share * self.request.memory_bytes, bounds.seconds, np.inf)
            row = int(seconds.argmin())
            if seconds[row] < self.lean[place][0]:
                self.lean[place] = (float(seconds[row]), share, bounds.candidate(row))

    def _trim(self) -> None:
        seconds, memory, origin = self.columns()
        keep = np.argsort(seconds, kind="stable")[:KEPT]
        self.counts.worse_bound += len(seconds) - len(keep)
        self.seconds, self.memory, self.origin = [seconds[keep]], [memory[keep]], [origin[:, keep]]

    def columns(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        if not self.seconds:
            return np.zeros(0), np.zeros(0), np.zeros((2, 0), dtype=int)
        return np.concatenate(self.seconds), np.concatenate(self.memory), np.concatenate(self.origin, axis=1)

    def candidate(self, origin: np.ndarray) -> Candidate:
        return self.tables[int(origin[0])].candidate(int(origin[1]))

    def parts(self, origin: np.ndarray) -> "Parts":
        """Of a layout's bound."""
        table, row = self.tables[int(origin[0])], int(origin[1])
        return Parts(
            float(table.compute_seconds[row]), float(table.beside_seconds[row]), float(table.after_seconds[row])
        )


class Parts(NamedTuple):
    """Of a bound: what the pipeline computes, traffic that this may hide, what comes after."""

    compute: float
    beside: float
    after: float


def search(
    request: Request,
    budget_seconds: float = 60.0,
    most_simulations: int = 60,
    keep: int = 8,
    progress: Progress | None = None,
    fixed: Mapping[str, int | str] | None = None,
) -> Found:
    """The `keep` fastest layouts that fit, in order. Half of the budget at most goes to bounds.

    A layout's price is sharpened as far as it must be, always that of the layout which looks fastest: its bound; the same times
    what the timeline of the same pipeline was over its bound for another shape; its own timeline; the same times what
    simulations of its like were over theirs at least; the simulation of its program.
    What is simulated and still looks fastest is the next best. Of layouts that differ in how data parallelism is divided alone, the
    best few are simulated. `fixed`: fields of `Candidate` that layouts must have.
    """
    started = time.monotonic()
    counts = Counts()
    pool = _bound_all(request, counts, started + budget_seconds / 2, progress, fixed or {})
    seconds, memory, origin = pool.columns()
    order = np.lexsort((memory, seconds))
    queue: list[tuple[float, int, int, Priced | None]] = [
        (float(seconds[index]), BOUND, place, None) for place, index in enumerate(order)
    ]
    heapify(queue)
    best: list[Priced] = []
    relatives: dict[Candidate, int] = {}
    corrections: dict[tuple[str, int, int, int], float] = {}
    fuller: dict[tuple[object, ...], float] = {}
    timelines = Timelines(request)
    while queue and len(best) < keep and counts.simulated < most_simulations:
        if time.monotonic() - started > budget_seconds:
            break
        now, level, place, priced = heappop(queue)
        where = origin[:, order[place]]
        if priced is not None:
            best.append(priced)
            continue
        candidate, parts = pool.candidate(where), pool.parts(where)
        try:
            if level in (BOUND, LIKE):
                compute = (timelines.like if level == BOUND else timelines.own)(candidate, parts.compute)
                heappush(queue, (max(compute, parts.beside) + parts.after, level + 1, place, None))
                continue
            kind = (candidate.schedule, candidate.pp, candidate.virtual_stages, candidate.zero)
            if level == TIMELINE and kind in corrections:
                heappush(queue, (now * corrections[kind], CORRECTED, place, None))
                continue
            sizes = (*kind, candidate.recompute, candidate.microbatch_sequences)
            bytes_bound = float(memory[order[place]])
            if bytes_bound * fuller.get(sizes, 1.0) > request.memory_bytes:
                counts.too_large += 1
                continue
            relative = family(candidate)
            if relatives.get(relative, 0) >= RELATIVES:
                counts.like_a_simulated_one += 1
                continue
            relatives[relative] = relatives.get(relative, 0) + 1
            step = predict_candidate(request, candidate)
        except UserError:
            counts.refused += 1
            continue
        counts.simulated += 1
        exact = max(timelines.own(candidate, parts.compute), parts.beside) + parts.after
        fuller[sizes] = min(fuller.get(sizes, float("inf")), max(step.device_bytes) / bytes_bound)
        corrections[kind] = min(corrections.get(kind, float("inf")), step.seconds / exact)
        result = Priced(candidate, step.seconds, step.device_bytes, float(seconds[order[place]]))
        if result.memory_bytes > request.memory_bytes:
            counts.simulated_too_large += 1
        else:
            heappush(queue, (result.seconds, SIMULATED, place, result))
        if progress is not None:
            progress("simulating", min(1.0, max(len(best) / keep, counts.simulated / most_simulations)))
    best += (p for *_, p in queue if p is not None)
    best = sorted(best, key=lambda p: (p.seconds, p.memory_bytes, p.candidate.words()))[:keep]
    lean = _lean(request, pool, best)
    counts.timelines = timelines.drawn
    threshold = best[0].seconds if best else float("inf")
    bounds = seconds[[order[place] for _, _, place, priced in queue if priced is None]]
    counts.not_searched += int((bounds < threshold).sum())
    counts.worse_bound += int((bounds >= threshold).sum())
    return Found(request, tuple(best), counts, time.monotonic() - started, pool.smallest, tuple(lean))


def _lean(request: Request, pool: _Pool, best: Sequence[Priced]) -> list[Priced]:
    """Layouts that hold clearly less than the best, simulated."""
    found: dict[Candidate, Priced] = {}
    for seconds, share, candidate in pool.lean:
        if best and seconds < float("inf") and share * request.memory_bytes < best[0].memory_bytes:
            priced = price_candidate(request, candidate, seconds)
            if isinstance(priced, Priced) and priced.memory_bytes <= request.memory_bytes:
                found[candidate] = priced
    return list(found.values())


def family(candidate: Candidate) -> Candidate:
    """The layout whose data parallelism is divided in no way but ZeRO's over all of it."""
    return replace(candidate, dp_replicate=1, dp_shard=candidate.dp)


class Timelines:
    """The timelines of layouts' schedules, which do not depend on how data parallelism is divided."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._known: dict[Candidate, float] = {}
        self._ratios: dict[tuple[str, int, int, int, int], float] = {}

    @property
    def drawn(self) -> int:
        return len(self._known)

    def own(self, candidate: Candidate, bound: float) -> float:
        """Seconds, never less than the bound. Raises `UserError` where the layout cannot be."""
        key = replace(family(candidate), zero=0)
        if key not in self._known:
            facts = candidate_facts(self._request, candidate)
            self._known[key] = estimate_makespan(facts, self._request.prices(facts.layout))
        return max(bound, self._known[key])

    def like(self, candidate: Candidate, bound: float) -> float:
        """The bound times what another shape's timeline was over its own bound, in the same pipeline."""
        each = candidate.dp * candidate.microbatch_sequences
        key = (candidate.schedule, candidate.pp, candidate.virtual_stages, each, int(candidate.recompute == "full"))
        if key not in self._ratios:
            self._ratios[key] = self.own(candidate, bound) / bound if candidate.pp > 1 else 1.0
        return bound * self._ratios[key]


def _bound_all(
    request: Request, counts: Counts, deadline: float, progress: Progress | None, fixed: Mapping[str, int | str]
) -> _Pool:
    """Bounds of all layouts, those of plain shapes first in case the time runs out."""
    pool, bounder = _Pool(request, counts), Bounder(request)
    shapes = [shape for shape in block_shapes(request) if _agrees(shape, fixed)]
    shapes.sort(key=lambda s: (s.cp * s.etp * s.microbatch_sequences * max(1, s.tp // 8), s.tp))
    for index, shape in enumerate(shapes):
        if index % 16 == 0 and time.monotonic() > deadline:
            counts.shapes_not_priced = len(shapes) - index
            break
        bounds = bounder.bounds(shape)
        if bounds is not None:
            bounds = bounds.where(fixed)
        if bounds is not None and len(bounds):
            pool.add(bounds)
        if progress is not None and index % 32 == 0:
            progress("bounding", index / len(shapes))
    return pool


def _agrees(shape: BlockShape, fixed: Mapping[str, int | str]) -> bool:
    return all(getattr(shape, key) == value for key, value in fixed.items() if hasattr(shape, key))


def price_candidate(request: Request, candidate: Candidate, bound_seconds: float = 0.0) -> Priced | str:
    """Simulates a layout; a message where it cannot be."""
    try:
        step = predict_candidate(request, candidate)
    except UserError as error:
        return str(error)
    return Priced(candidate, step.seconds, step.device_bytes, bound_seconds)


def predict_candidate(request: Request, candidate: Candidate) -> StepPrediction:
    """The step that the runtime would execute. Raises `UserError` where the layout cannot be."""
    facts = candidate_facts(request, candidate)
    return predict_step(facts, request.prices(facts.layout))


def candidate_facts(request: Request, candidate: Candidate) -> Lowering:
    """What lowering reads."""
    config = request.run(candidate.section())
    return Lowering.of(config, request.model, resolve_layout(config, request.model), request.transport)


def pareto(priced: Sequence[Priced]) -> list[Priced]:
    """Those that no other beats in both time and memory, fastest first."""
    front: list[Priced] = []
    for each in sorted(priced, key=lambda p: (p.seconds, p.memory_bytes)):
        if not front or each.memory_bytes < front[-1].memory_bytes:
            front.append(each)
    return front
