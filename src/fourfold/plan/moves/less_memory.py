"""Layouts that hold less: for those who want headroom more than speed, and where none of the fastest fits."""

import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fourfold.config import UserError
from fourfold.plan.bound import Bounds, Parts, may_mix
from fourfold.plan.budget import SHARES
from fourfold.plan.candidate import Candidate
from fourfold.plan.moves.activations import mixed
from fourfold.plan.moves.overlap import overlapped
from fourfold.plan.pricing import Priced, Pricer
from fourfold.plan.request import Request
from fourfold.plan.space import Pipeline

SHARE = 0.4
"""Memory limit of the low-memory alternative by its bound, as a share of the request's limit."""
REACH = 1.05
"""How much worse than the best of such bounds another pipeline's may be: what schedules add to their bounds differs."""
TRIES = 4
"""Layouts that are simulated at most."""
CLEARLY = 0.75
"""Memory limit of the low-memory alternative, as a share of the best layout's peak."""
LEAST = 24
"""Layouts of least memory that are simulated where none of the fastest fits."""


class Small(NamedTuple):
    """A layout with little memory, and the parts of its bound."""

    seconds: float
    parts: Parts
    candidate: Candidate


@dataclass
class LowMemory:
    """The layout with the best bound of each pipeline, among those whose memory bound is at most `limit` bytes."""

    limit: float
    by_pipeline: dict[Pipeline, Small] = field(default_factory=dict)

    @classmethod
    def of(cls, request: Request) -> "LowMemory":
        """Collector for a request: `limit` is `SHARE` of what a device may hold, in bytes."""
        return cls(SHARE * request.memory_bytes)

    @property
    def reach(self) -> float:
        """Seconds above which a bound is too far from the best."""
        return REACH * min((small.seconds for small in self.by_pipeline.values()), default=math.inf)

    def needs(self, bounds: Bounds) -> bool:
        """Whether a layout of a table may be the best of its pipeline."""
        return len(self._rows(bounds)) > 0

    def _rows(self, bounds: Bounds) -> NDArray[np.int64]:
        """Rows of layouts that hold little and are better than what is known of their pipeline."""
        known = map(self.by_pipeline.get, bounds.pipelines)
        best = [math.inf if each is None else each.seconds for each in known]
        most = np.minimum(np.array(best), self.reach)[bounds.pipeline]
        return np.flatnonzero((bounds.kept_bytes <= self.limit) & (bounds.kept_seconds < most))

    def add(self, bounds: Bounds) -> None:
        """Keeps the fastest row of each pipeline of a table that holds little."""
        rows = self._rows(bounds)
        times = bounds.kept_seconds
        rows = rows[np.argsort(times[rows], kind="stable")]
        for row in map(int, rows[np.unique(bounds.pipeline[rows], return_index=True)[1]]):
            pipeline, parts = bounds.pipelines[int(bounds.pipeline[row])], bounds.parts(row)
            self.by_pipeline[pipeline] = Small(float(times[row]), parts._replace(spared=0.0), bounds.candidate(row))

    def fastest(self, pricer: Pricer, most: float, below: float = math.inf) -> Priced | None:
        """Simulates the ones whose timelines are the best, and below so many seconds, until one holds no more than `most` bytes: a
        bound of memory may be far below what is held. None where none of a few does before the budget is spent."""
        small = list(self.by_pipeline.values())
        queue = [(each.seconds, place, False) for place, each in enumerate(small)]
        heapify(queue)
        tried = 0
        while queue and tried < TRIES and not pricer.budget.is_spent:
            expected, place, drawn = heappop(queue)
            if expected >= below:
                break
            bound, parts, candidate = small[place]
            if drawn:
                tried += 1
                if (priced := pricer.fitting(candidate, most, bound)) is not None:
                    return priced
                continue
            with suppress(UserError):
                seconds = parts.around(pricer.timeline(candidate, parts.compute))
                heappush(queue, (seconds, place, True))
        return None


def holding(pricer: Pricer, first: Priced, most: float, others: LowMemory) -> Priced | None:
    """The best of those that hold no more than so many bytes: the first layout with other ways of its blocks with their
    activations, with its experts overlapped as well, and the fastest of others, which may overlap them too."""
    work = pricer.budget.part(SHARES.less_memory)
    tighter = pricer.within(replace(pricer.request, memory_bytes=int(most)), work)
    other = others.fastest(pricer.within(pricer.request, work), most)
    found = [other, *overlapped(tighter, [other])] if other is not None else []
    if may_mix(pricer.request):
        layouts = [first.candidate]
        if tighter.request.overlap_is_open and tighter.request.can_overlap(first.candidate):
            layouts.append(replace(first.candidate, overlap_experts=True))
        for layout in layouts:
            own = None if work.is_spent else mixed(tighter, layout)
            found += [] if own is None else [own]
    return min(found, key=lambda each: each.score, default=None)


def of_least_memory(
    pricer: Pricer, least: Iterable[tuple[float, Candidate]]
) -> tuple[list[Priced], list[tuple[Candidate, float]]]:
    """The first layout that fits, in the order of their bounds of memory, and all that were simulated, with their bytes.
    `least`: those bounds, with their layouts."""
    tried: list[tuple[Candidate, float]] = []
    for _, candidate in sorted(least, key=lambda each: (each[0], each[1].words())):
        if len(tried) == LEAST or pricer.budget.is_spent:
            break
        priced = pricer.price(candidate)
        if isinstance(priced, Priced):
            tried.append((candidate, float(priced.memory_bytes)))
            if priced.memory_bytes <= pricer.request.memory_bytes:
                return [priced], tried
    return [], tried
