"""The search: what is known of layouts is sharpened level by level, then moves go from the best of them to others near it.

1. Bounds of memory and of time of all layouts, a table at a time (`plan/bounding.py`). Those that look fastest are kept.
2. A queue of these, of which that one is sharpened which looks fastest, from its bound to the simulation of its program: the seven
   levels stand in `plan/queue.py`.
3. `MOVES` from those that were simulated and fit: `plan/moves/` knows the layouts near one, and a function here what becomes of
   them.

This is done among layouts that are likely to fit; where there are none, among those that fit at all. Each time it is done once more
with all optimizer states in the host's memory, where that may be worth it. Deterministic: the budget is work, not time, and
`plan/budget.py` says which part has what share of it. A layout is left out since its memory's bound does not fit, its time's
bound is worse than the best, its simulated memory does not fit, or the budget was spent before it: `Counts` has the numbers.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

from fourfold.plan.bound import may_mix
from fourfold.plan.bounding import Counts, Progress, bound_all
from fourfold.plan.budget import BUDGET, SHARES, SearchBudget
from fourfold.plan.candidate import Candidate
from fourfold.plan.moves.climb import Climb
from fourfold.plan.moves.less_memory import CLEARLY, LowMemory, holding, of_least_memory
from fourfold.plan.moves.overlap import overlapped
from fourfold.plan.pricing import Priced, Pricer
from fourfold.plan.queue import LayoutQueue
from fourfold.plan.request import Request
from fourfold.simulate.paused_garbage_collection import without_collection

FIRST = 3
"""Layouts of different degrees that the queue is to find before moves begin."""
CLEARLY_FASTER = 0.99
"""Share of the best time that a layout takes at most which is less likely to fit and shown for its speed."""
STATES_AWAY = 0.98
"""Share of the best time for which layouts with their optimizer states in the host's memory are searched."""


@dataclass(frozen=True)
class Found:
    """Layouts that a search found, best first. `smallest`: the least memory that any layout needs, where none fits. `low_memory`:
    one that holds clearly less than the best, where that is not near the memory limit. `surely_fits`: the best that is not near
    it. `riskier`: a faster one that is less likely to fit than was asked for. `refusal`: why the last layout that cannot run
    cannot. `away_seconds`: as in `Pool`."""

    request: Request
    best: tuple[Priced, ...]
    counts: Counts
    seconds: float
    smallest: tuple[Candidate, float] | None = None
    low_memory: Priced | None = None
    surely_fits: Priced | None = None
    riskier: Priced | None = None
    refusal: str | None = None
    away_seconds: float = float("inf")


def search(
    request: Request,
    budget: SearchBudget | float = BUDGET,
    keep: int = 8,
    progress: Progress | None = None,
    fixed: Mapping[str, int | str] | None = None,
    known: Sequence[Priced] = (),
    pricer: Pricer | None = None,
) -> Found:
    """The `keep` best layouts that are likely to fit, in order; where there are none, those that fit at all. `fixed`: fields that
    layouts must have, as in `Request.fixing`. `known`: layouts that were simulated before; those that fit and have the fields are
    found too. `pricer`: of the same step."""
    request = request.fixing(fixed or {})
    work = budget if isinstance(budget, SearchBudget) else SearchBudget(budget)
    asked, risky = pricer or Pricer(request), LowMemory(request.memory_bytes)
    with without_collection():
        for limit in sorted({request.likely_bytes, request.memory_bytes}):
            stay = asked.within(replace(request, memory_bytes=limit), work.part())
            found = _Search(stay, known, progress, risky=risky).found(keep)
            if _may_gain_away(found):
                away = stay.within(replace(stay.request, offload_optimizer=True), stay.budget.part())
                rival = found.best[0] if found.best else None
                found = _joined(found, _Search(away, known, progress, rival).found(keep), keep)
            if found.best:
                break
        if found.best and request.likely_bytes < request.memory_bytes:
            found = _with_riskier(asked.within(request, work.part(SHARES.riskier)), found, keep, risky)
    return replace(found, request=request)


class _Search:
    """The search among a request's layouts, on its way. `best`: layouts that were simulated and fit. `rival`: only layouts that are
    better than it are looked for. `risky`: notes layouts that may fit, and need not be likely to."""

    def __init__(
        self,
        pricer: Pricer,
        known: Sequence[Priced],
        progress: Progress | None,
        rival: Priced | None = None,
        risky: LowMemory | None = None,
    ) -> None:
        self.pricer, self.request, self.budget, self.rival = pricer, pricer.request, pricer.budget, rival
        self.low_memory: Priced | None = None
        self.surely_fits: Priced | None = None
        self._started, self._drawn, self.counts = time.monotonic(), pricer.drawn, Counts()
        self.bounded = bound_all(pricer, self.counts, self.budget.part(SHARES.bounds), progress, rival, risky)
        mine = [each for each in known if self.request.permits(each.candidate)]
        before = {each.candidate: each for each in mine if each.memory_bytes <= self.request.memory_bytes}
        self.queue = LayoutQueue(pricer, self.bounded.pool, self.counts, before)
        self.best = self.queue.fastest(FIRST, SHARES.ranking, progress)

    def found(self, keep: int) -> Found:
        """The best layouts, after all moves."""
        tried: list[tuple[Candidate, float]] = [self.queue.least] if self.queue.least else []
        if not self.best and self.rival is None:
            self.best, more = of_least_memory(self.pricer, self.bounded.pool.least)
            self.counts.least_memory = len(more)
            tried += more
        if self.rival is not None:
            self.best = [each for each in self.best if each.score < self.rival.score]
        if self.best and not self.budget.is_spent:
            for move in MOVES:
                moved_to = move(self)  # which may let go of others
                self.best += moved_to
        best = best_first(filter(None, [*self.best, self.low_memory, self.surely_fits]), len(self.best) + 2)
        surely_fits = next((each for each in best if not each.is_near_limit), None)
        self.counts.timelines = self.pricer.drawn - self._drawn
        better, worse = self.queue.left(best[0].score if best else float("inf"))
        self.counts.not_searched += better
        self.counts.worse_bound += worse
        smallest = None if best else min(tried, key=lambda each: each[1], default=self.bounded.pool.smallest)
        seconds, away_seconds = time.monotonic() - self._started, self.bounded.pool.away_seconds
        return Found(
            self.request,
            tuple(best[:keep]),
            self.counts,
            seconds,
            smallest,
            self.low_memory,
            surely_fits,
            refusal=self.queue.refusal,
            away_seconds=away_seconds,
        )

    @property
    def first(self) -> Priced:
        """The best layout so far."""
        return min(self.best, key=lambda each: each.score)

    @cached_property
    def climb(self) -> Climb:
        """The climbs from its layouts, which remember where they were."""
        return Climb(self.pricer.within(self.request, self.budget.part(SHARES.climb)))


def _overlap(on: _Search) -> list[Priced]:
    """Layouts with all-to-alls of experts behind another microbatch: the best with it, and all that look better so than the best.
    These may be others: the best without it may have one microbatch, or wait for nothing because of how it is split."""
    found = overlapped(on.pricer, on.best)
    request = on.request
    if not request.overlap_is_open:
        return found
    budget = on.budget.part(SHARES.overlap)
    pricer, counts = on.pricer.within(replace(request, overlap_experts=True), budget), Counts()
    queue = LayoutQueue(pricer, on.bounded.pool, counts, {})
    found += queue.settled(min(each.score for each in [*on.best, *found]), budget.limit)
    on.counts.simulated += counts.simulated
    on.counts.mixed += counts.mixed
    return found


def _climb(on: _Search) -> list[Priced]:
    """Better layouts on the way up from the best, over neighbours that are one change away."""
    return on.climb.from_best(on.best)


def _settle(on: _Search) -> list[Priced]:
    """Better ones among the layouts that others of the same degrees stood for in the queue, and the climb from these."""
    found = on.queue.settled(on.first.score, on.budget.spent + SHARES.settling * on.budget.limit)
    return [*found, *on.climb.from_best([*on.best, *found])] if found else []


def _hold_less(on: _Search) -> list[Priced]:
    """One that is not near the memory limit, where all so far are; else one that holds clearly less than the best. Neither is
    sought beside a rival, which has its own."""
    first, small, sure = on.first, on.bounded.small, on.bounded.surely_fits
    if on.rival is not None:
        return []
    if all(each.is_near_limit for each in on.best):
        on.surely_fits = holding(on.pricer, first, sure.limit, sure)
    if on.surely_fits is None and first.memory_bytes > small.limit:
        on.low_memory = holding(on.pricer, first, CLEARLY * first.memory_bytes, small)
    return []


MOVES: tuple[Callable[[_Search], list[Priced]], ...] = (_overlap, _climb, _settle, _hold_less)
"""Moves from the best layouts so far to others that were simulated and fit, in the order in which they are made."""


def _may_gain_away(found: Found) -> bool:
    """Whether layouts with all optimizer states in the host's memory are worth a search: nothing fits, or the best fits because it
    spares activations or states, and a layout whose states alone keep it from fitting looks faster. That is taken to be above its
    bound as the nearest to its own among the best. Where it is open what blocks do with their activations, where the states lie was
    chosen together with it (`moves/activations.py`)."""
    if not found.request.states_may_leave or found.away_seconds == float("inf") or may_mix(found.request):
        return False
    if not found.best:
        return True
    best = found.best[0]
    above = min((each.seconds / each.bound_seconds for each in found.best if each.bound_seconds), default=1.0)
    layout = best.candidate
    spares = bool(layout.activations) or layout.offload_optimizer or layout.recompute != "none"
    return spares and found.away_seconds * above < STATES_AWAY * best.seconds


def _joined(found: Found, away: Found, keep: int) -> Found:
    """The layouts of two searches in one order."""
    best = best_first([*found.best, *away.best], keep)
    surely_fits = best_first(filter(None, [found.surely_fits, away.surely_fits]), 1)
    sums = {each.name: getattr(found.counts, each.name) + getattr(away.counts, each.name) for each in fields(Counts)}
    smallest = min(filter(None, [found.smallest, away.smallest]), key=lambda each: each[1], default=None)
    return replace(
        found,
        best=tuple(best),
        counts=Counts(**sums),
        seconds=found.seconds + away.seconds,
        smallest=None if best else smallest,
        low_memory=found.low_memory or away.low_memory,
        surely_fits=surely_fits[0] if surely_fits else None,
        refusal=found.refusal or away.refusal,
    )


def _with_riskier(pricer: Pricer, found: Found, keep: int, risky: LowMemory) -> Found:
    """With a layout that is clearly faster than the best and fits, but is less likely to than was asked for: one near the best, or
    one of the `risky`."""
    first, likely = found.best[0], pricer.request.likely_bytes
    far = risky.fastest(pricer, pricer.request.memory_bytes, CLEARLY_FASTER * first.seconds)
    more = [*Climb(pricer).path(first), *filter(None, [far])]
    found = replace(found, best=tuple(best_first([*found.best, *(p for p in more if p.memory_bytes <= likely)], keep)))
    riskier = min(more, key=lambda each: each.seconds, default=first)
    risks = riskier.memory_bytes > likely and riskier.seconds <= CLEARLY_FASTER * found.best[0].seconds
    return replace(found, riskier=riskier) if risks else found


def best_first(priced: Iterable[Priced], keep: int) -> list[Priced]:
    """The best few, each layout once; of those that differ in the order of their axes alone, and are as fast, the first."""
    every = {each.candidate: each for each in priced}.values()
    ordered = sorted(every, key=lambda each: (each.score, each.memory_bytes, each.candidate.words()))
    alike = {(replace(each.candidate, outermost="pp"), each.seconds): each for each in reversed(ordered)}
    return [*alike.values()][::-1][:keep]
