"""The queue: layouts in the order of what is known of their scores, each sharpened only as far as it must be.

Always that layout is looked at which looks fastest. The levels of what is known, each sharper than the one before:

    BOUND      the bound of its time
    LIKE       the same times what the timeline of the same pipeline was over its bound for another shape
    TIMELINE   its own timeline
    OF_OTHERS  the same and most of what simulations of layouts that resemble it added at least, before there are any of its like
    CORRECTED  its timeline times what simulations of its like were over theirs at least
    HELD       that its end ranks, usually the fullest, hold no more than they may
    SIMULATED  the simulation of its program

A layout that is simulated and still looks fastest is the next best. Each order of the axes is a layout of its own from LIKE on:
bounds hold for all.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from heapq import heapify, heappop, heappush
from typing import Literal, NamedTuple

import numpy as np

from fourfold.config import UserError
from fourfold.config.layout_section import Outermost
from fourfold.layout.mesh import ORDERS
from fourfold.plan.bound import Parts
from fourfold.plan.bounding import Counts, Pool, Progress
from fourfold.plan.candidate import Candidate
from fourfold.plan.moves.activations import mixed
from fourfold.plan.outlook import WORTH
from fourfold.plan.pricing import Priced, Pricer
from fourfold.plan.request import Request

ADDED, MOST_ADDED = 0.75, 0.05
"""How much of what simulations add at least, to a timeline or to the bound of memory, is taken to be added for a kind of pipeline
not simulated yet, and the most that is of a timeline."""
ALIKE, MIXED_ALIKE = 2, 1
"""Layouts of the same degrees that are simulated at first, and those for whose blocks ways with their activations are chosen."""
DOUBT = 0.02
"""The share that is added to the score of a layout that lacks as much as a device may hold, until it is simulated: copies have to
wait, too."""
FIRST_LEFT = 0.6
"""Share of a bound that is taken to be left where all-to-alls of experts overlap, until it is known of the layout's shape."""
UNSURE = 1.02
"""How many times the best score a layout's may seem to be that is still looked at, because it only seems so."""
BOUND, LIKE, TIMELINE, OF_OTHERS, CORRECTED, HELD, SIMULATED = range(7)
"""How sharp what is known of a layout is."""


class Entry(NamedTuple):
    """A layout in the queue, by its place among the bounds and the order of its axes. `bound`: a score that it has at least.
    `priced`: once it is simulated."""

    score: float
    level: int
    place: int
    outermost: Outermost | Literal[""] = ""
    bound: float = 0.0
    priced: Priced | None = None


class Kind(NamedTuple):
    """Layouts whose simulations add alike to their timelines."""

    schedule: str
    pp: int
    virtual_stages: int
    zero: int
    outermost: Outermost
    is_mixed: bool

    def resembles(self, other: "Kind") -> bool:
        """Whether both wait for the same: other stages, parameters, each microbatch's reductions, copies to the host."""
        return (self.pp > 1, max(1, self.zero), self.is_mixed) == (other.pp > 1, max(1, other.zero), other.is_mixed)


class Ranked(NamedTuple):
    """A layout of the queue: what is known of it before it is simulated."""

    candidate: Candidate
    parts: Parts
    memory_bytes: float
    weight: float
    lacking_bytes: float

    @property
    def is_mixed(self) -> bool:
        """Whether it fits by what each block does with its activations."""
        return self.lacking_bytes > 0

    @property
    def kind(self) -> Kind:
        """Kind of the layout, in whose layouts simulations add alike to timelines."""
        layout = self.candidate
        return Kind(layout.schedule, layout.pp, layout.virtual_stages, layout.zero, layout.outermost, self.is_mixed)

    @property
    def degrees(self) -> tuple[object, ...]:
        """A key shared by layouts of which few are simulated at first."""
        layout = self.candidate
        return (layout.tp, layout.cp, layout.pp, layout.ep, self.is_mixed)


def other_orders(request: Request, candidate: Candidate) -> Iterator[Outermost]:
    """Other orders of a mesh's axes that put some rank elsewhere on the cluster's interconnect levels. With the stages of a
    pipeline outermost, ranks that read different data are as near as can be, and messages between stages travel farthest. Any other
    order can win no more than what ranks wait for those messages, so that bounds for the first order hold for all."""
    if candidate.pp == 1 or request.devices <= request.cluster.levels[0].devices:
        return
    for outermost in ORDERS:
        moved = {"pp": 1, "dp_replicate": candidate.dp_replicate, "dp": candidate.dp}[outermost]
        same = outermost == "dp" and candidate.dp_shard == 1
        permitted = request.permits(replace(candidate, outermost=outermost))
        if outermost != candidate.outermost and moved > 1 and not same and permitted:
            yield outermost


class LayoutQueue:
    """Layouts of a pool. `known`: those that were simulated before, and fit. `least`: the least memory that one was simulated to
    hold that does not fit. `refusal`: why the last layout that cannot be cannot."""

    def __init__(self, pricer: Pricer, pool: Pool, counts: Counts, known: Mapping[Candidate, Priced]) -> None:
        self._pricer, self._pool, self._counts, self._known = pricer, pool, counts, known
        self.least: tuple[Candidate, float] | None = None
        self.refusal: str | None = None
        self.fits = bool(known)
        request = pricer.request
        self._first_order: Outermost = (request.constraints.choices("outermost", ORDERS, {}) or list(ORDERS))[0]
        scores, self._memory, self._origin = pool.columns()
        self._order = np.lexsort((self._memory, scores))
        if request.overlap_experts:
            scores = scores * FIRST_LEFT
        self._queue = [
            Entry(float(scores[index]), BOUND, place, "", float(scores[index]))
            for place, index in enumerate(self._order)
        ]
        self._queue += [
            Entry(p.score, SIMULATED, -number, "", p.score, p) for number, p in enumerate(known.values(), 1)
        ]
        heapify(self._queue)
        self._passed_over: list[Entry] = []
        self._ruled_out: list[Entry] = []
        self._counted: set[int] = set()
        self._alike: Counter[tuple[object, ...]] = Counter()
        self._corrections: dict[Kind, float] = {}
        self._fuller: dict[tuple[object, ...], float] = {}

    def fastest(self, number: int, shares: tuple[float, float, float], progress: Progress | None) -> list[Priced]:
        """The fastest layouts of different degrees, and all others that were simulated and fit. `shares`: of the budget, after
        which no more are looked at while nothing fits, while the best is not known, and then."""
        budget, found = self._pricer.budget, list[Priced]()
        before = budget.spent
        while self._queue and len(found) < number:
            nothing, something, best = shares
            share = best if found else something if self.fits else nothing
            if budget.is_spent or budget.spent - before > share * budget.limit:
                break
            entry = heappop(self._queue)
            if entry.priced is not None:
                found.append(entry.priced)
                continue
            self._sharpen(entry, few=True)
            if progress is not None:
                progress("simulating", min(1.0, len(found) / number))
        return [*found, *(each.priced for each in self._queue if each.priced is not None)]

    def settled(self, most: float, spent: float) -> list[Priced]:
        """All layouts better than a score, among those that others of the same degrees stood for: those that look fastest first,
        none that its bound rules out. Until so much of the budget is spent."""
        left = [each for each in (*self._queue, *self._passed_over) if each.priced is None]
        queue = self._queue = [
            each._replace(score=each.bound, level=TIMELINE) if each.level == OF_OTHERS else each for each in left
        ]
        heapify(queue)
        self._passed_over, found = [], list[Priced]()
        while queue and queue[0].score < UNSURE * most and self._pricer.budget.spent < spent:
            entry = heappop(queue)
            if entry.bound >= most or (entry.score >= most and self._is_mixed(entry)):
                self._ruled_out.append(entry)
            elif entry.priced is None:
                self._sharpen(entry, few=False)
            else:
                found.append(entry.priced)
                most = min(most, entry.score)
        return found

    def left(self, most: float) -> tuple[int, int]:
        """How many layouts that were not simulated may be better than a score by their bounds, and how many are not."""
        bounds: dict[int, float] = {}
        for each in (*self._queue, *self._passed_over, *self._ruled_out):
            if each.place >= 0 and each.place not in self._counted:
                bounds[each.place] = min(each.bound, bounds.get(each.place, math.inf))
        better = sum(bound < most for bound in bounds.values())
        return better, len(bounds) - better

    def _count(self, entry: Entry, what: str) -> None:
        """Counts what became of a layout, once for all orders of its axes."""
        if entry.place not in self._counted:
            self._counted.add(entry.place)
            setattr(self._counts, what, getattr(self._counts, what) + 1)

    def _where(self, entry: Entry) -> np.ndarray:
        """Where its bounds are in the pool."""
        return self._origin[:, self._order[entry.place]]

    def _is_mixed(self, entry: Entry) -> bool:
        return entry.priced is None and self._pool.lacking_bytes(self._where(entry)) > 0

    def _ranked(self, entry: Entry) -> Ranked:
        where = self._where(entry)
        overlaps = bool(self._pricer.request.overlap_experts)  # the pool may be of a request that leaves it open
        order = entry.outermost or self._first_order
        candidate = replace(self._pool.candidate(where), outermost=order, overlap_experts=overlaps)
        lacking = self._pool.lacking_bytes(where)
        weight = self._pricer.outlook.weight(candidate) * (WORTH if lacking else 1.0)
        return Ranked(
            candidate, self._pool.parts(where), float(self._memory[self._order[entry.place]]), weight, lacking
        )

    def _sharpen(self, entry: Entry, few: bool) -> None:
        """Puts a layout back with a sharper score, or drops it. `few`: passes it over where others have the same degrees."""
        ranked = self._ranked(entry)
        if ranked.candidate.overlap_experts and not self._pricer.request.can_overlap(ranked.candidate):
            return
        if few and self._alike[ranked.degrees] >= (MIXED_ALIKE if ranked.is_mixed else ALIKE):
            self._passed_over.append(entry)
            return
        try:
            for following in self._sharper(entry, ranked, few):
                heappush(self._queue, following)
        except UserError as error:
            self.refusal = str(error)
            self._count(entry, "refused")

    def _sharper(self, entry: Entry, ranked: Ranked, few: bool) -> list[Entry]:
        """The layout with a sharper score, in each order of its axes; none where it holds too much. Raises `UserError` where it
        cannot be."""
        pricer, (candidate, parts, _, weight, lacking) = self._pricer, ranked
        doubt, left = 1 + DOUBT * lacking / pricer.request.memory_bytes, pricer.overlapped_share(candidate)
        if entry.level == BOUND:
            orders = (candidate.outermost, *other_orders(pricer.request, candidate))
            computes = [(pricer.like(replace(candidate, outermost=order), parts.compute), order) for order in orders]
            scores = [(doubt * weight * left * parts.around(compute), order) for compute, order in computes]
            return [entry._replace(score=score, level=LIKE, outermost=order) for score, order in scores]
        exact = left * parts.around(pricer.timeline(candidate, parts.compute))
        if entry.level == LIKE:
            return [entry._replace(score=doubt * weight * exact, level=TIMELINE, bound=weight * exact)]
        corrections, kind = self._corrections, ranked.kind
        if entry.level < CORRECTED and kind in corrections:
            return [entry._replace(score=weight * exact * corrections[kind], level=CORRECTED)]
        others = [added for other, added in corrections.items() if other.resembles(kind)]
        if entry.level == TIMELINE and others and few:
            added = min(MOST_ADDED, ADDED * (min(others) - 1))
            return [entry._replace(score=entry.score * (1 + added), level=OF_OTHERS)]
        if candidate in self._known:
            self._count(entry, "simulated")
            self._correct(kind, self._known[candidate].seconds / exact)
            return []
        return self._mixed(entry, ranked, exact) if ranked.is_mixed else self._simulated(entry, ranked, exact, few)

    def _mixed(self, entry: Entry, ranked: Ranked, exact: float) -> list[Entry]:
        """The layout with the best way of each of its blocks with their activations."""
        self._alike[ranked.degrees] += 1
        self._count(entry, "mixed")
        priced = mixed(self._pricer, ranked.candidate)
        if priced is None:
            return []
        self._correct(ranked.kind, priced.seconds / exact)
        self.fits = True
        return [entry._replace(score=priced.score, level=SIMULATED, priced=priced)]

    def _simulated(self, entry: Entry, ranked: Ranked, exact: float, few: bool) -> list[Entry]:
        """The layout simulated; of a long pipeline the ranks that are the fullest before the others. `few`: passes it over where it
        seems to hold too much."""
        pricer, counts, candidate, bound = self._pricer, self._counts, ranked.candidate, ranked.memory_bytes
        most, fuller = pricer.request.memory_bytes, self._fuller
        sizes = (*ranked.kind, candidate.recompute, candidate.microbatch_sequences)
        like = ranked.kind._replace(virtual_stages=0)
        if few and bound * max(fuller.get(sizes, 1.0), 1 + ADDED * (fuller.get(like, 1.0) - 1)) > most:
            self._passed_over.append(entry)
            return []

        def note(held: float) -> None:
            for each in (sizes, like):
                fuller[each] = min(fuller.get(each, math.inf), held / bound)

        if candidate.pp > 2 and entry.level < HELD:
            held = pricer.end_ranks_bytes(candidate)
            if held <= most:
                return [entry._replace(level=HELD)]
            note(held)
            self._count(entry, "end_ranks_too_large")
            return []
        self._alike[ranked.degrees] += 1
        seconds, device_bytes = pricer.figures(candidate)
        self._count(entry, "simulated")
        note(max(device_bytes))
        self._correct(ranked.kind, seconds / exact)
        parts = ranked.parts
        priced = pricer.priced(candidate, seconds, device_bytes, parts.around(parts.compute))
        if priced.memory_bytes <= most:
            self.fits = True
            return [entry._replace(score=priced.score, level=SIMULATED, priced=priced)]
        counts.simulated_too_large += 1
        if self.least is None or priced.memory_bytes < self.least[1]:
            self.least = (candidate, float(priced.memory_bytes))
        return []

    def _correct(self, kind: Kind, added: float) -> None:
        self._corrections[kind] = min(self._corrections.get(kind, math.inf), added)
