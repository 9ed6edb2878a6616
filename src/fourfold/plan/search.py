"""The search: bounds of every layout, the ranking of those that look fastest, the climb from the best of them.

Deterministic: its budget is work, not time. A layout is left out for one of four reasons, all counted: its memory's bound does not
fit, its time's bound is worse than the best, its simulated memory does not fit, or the budget was spent before it.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from fourfold.config import UserError
from fourfold.plan.activations import mixed
from fourfold.plan.bound import may_mix
from fourfold.plan.bounding import Progress, bound_all
from fourfold.plan.budget import SearchBudget
from fourfold.plan.candidate import Candidate
from fourfold.plan.climb import Climb
from fourfold.plan.found_layouts import Found, best_first
from fourfold.plan.low_memory import CLEARLY, LowMemory
from fourfold.plan.optimizer_offload import joined, worth_a_search
from fourfold.plan.overlapped import with_overlap
from fourfold.plan.pool import Counts, Pool
from fourfold.plan.pricing import Priced, Pricer
from fourfold.plan.ranking import LayoutRanking
from fourfold.plan.request import Request
from fourfold.simulate.paused_garbage_collection import without_collection

BUDGET = 40.0
"""Units of work (`plan/budget.py`), where nobody says otherwise."""
BOUND_SHARE = 2 / 3
"""Share of the budget that bounds may take."""
RANKING_SHARES = (0.5, 0.2, 0.1)
"""Shares of the budget that the ranking may take: while nothing was found to fit, once something was, once the best is known."""
CLIMB_SHARE, SETTLING_SHARE = 0.5, 0.05
"""Shares of the budget that climbs may take, and those layouts which others of the same degrees stood for."""
SMALLER_SHARE = 0.05
"""Share of the budget that each look for a layout that holds less takes."""
RISK_SHARE, CLEARLY_FASTER = 0.05, 0.99
"""Share of the budget that the look for a faster layout takes which is less likely to fit, and what of the best time it takes at
most."""
FIRST = 3
"""Layouts of different degrees that are looked for to climb from."""
LEAST = 24
"""Layouts of least memory that are simulated where none of the fastest fits."""


def search(
    request: Request,
    budget: SearchBudget | float = BUDGET,
    keep: int = 8,
    progress: Progress | None = None,
    fixed: Mapping[str, int | str] | None = None,
    known: Sequence[Priced] = (),
    pricer: Pricer | None = None,
) -> Found:
    """The `keep` best layouts that are likely to fit, in order; where there are none, those that fit at all. Two thirds of the
    budget at most go to bounds. Where none of the fastest fits, those of least memory are simulated until one does. `fixed`: fields
    that layouts must have, as in `Request.fixing`. `known`: layouts that were simulated before; those that fit and have the fields
    are found too. `pricer`: of the same step."""
    request = request.fixing(fixed or {})
    work = budget if isinstance(budget, SearchBudget) else SearchBudget(budget)
    asked = pricer or Pricer(request)
    riskier = LowMemory(request.memory_bytes)
    with without_collection():
        for limit in sorted({request.likely_bytes, request.memory_bytes}):
            part = asked.within(replace(request, memory_bytes=limit), work.part(1.0))
            found = _with_states_anywhere(part, keep, progress, known, riskier)
            if found.best:
                break
        if found.best:
            found = _with_riskier(asked.within(request, work.part(RISK_SHARE)), found, keep, riskier)
    return replace(found, request=request)


def _with_riskier(pricer: Pricer, found: Found, keep: int, others: LowMemory) -> Found:
    """With a layout that is clearly faster than the best and fits, but is less likely to than was asked for: one near the best, or
    one of the others."""
    first, likely = found.best[0], pricer.request.likely_bytes
    if likely >= pricer.request.memory_bytes:
        return found
    far = others.fastest(pricer, pricer.request.memory_bytes, CLEARLY_FASTER * first.seconds)
    more = [*Climb(pricer).path(first), *filter(None, [far])]
    found = replace(found, best=tuple(best_first([*found.best, *(p for p in more if p.memory_bytes <= likely)], keep)))
    riskier = min(more, key=lambda each: each.seconds, default=first)
    risks = riskier.memory_bytes > likely and riskier.seconds <= CLEARLY_FASTER * found.best[0].seconds
    return replace(found, riskier=riskier) if risks else found


def _with_states_anywhere(
    pricer: Pricer, keep: int, progress: Progress | None, known: Sequence[Priced], riskier: LowMemory
) -> Found:
    """Layouts with their optimizer states on the device, and all with them away where that may be worth it
    (`plan/optimizer_offload.py`)."""
    found = _search(pricer, keep, progress, known, riskier=riskier)
    if not worth_a_search(found):
        return found
    away = pricer.within(replace(pricer.request, offload_optimizer=True), pricer.budget.part(1.0))
    with suppress(UserError):  # none that overlaps its experts is among these
        found = joined(found, _search(away, keep, progress, known, found.best[0] if found.best else None), keep)
    return found


def _search(
    pricer: Pricer,
    keep: int,
    progress: Progress | None,
    known: Sequence[Priced],
    rival: Priced | None = None,
    riskier: LowMemory | None = None,
) -> Found:
    """`rival`: only layouts that are better than it are looked for. `riskier`: notes layouts that may fit, and need not be likely
    to."""
    started = time.monotonic()
    request, budget, counts, timelines = pricer.request, pricer.budget, Counts(), pricer.drawn
    pool, small, within_limit = bound_all(pricer, counts, budget.part(BOUND_SHARE), progress, rival, riskier)
    before = {p.candidate: p for p in known if request.permits(p.candidate) and p.memory_bytes <= request.memory_bytes}
    ranking = LayoutRanking(pricer, pool, counts, before)
    best = ranking.fastest(FIRST, RANKING_SHARES, progress)
    least = ranking.least
    if not best and rival is None:
        best, tried = _least_memory(pricer, pool)
        counts.least_memory = len(tried)
        least = min([*([least] if least else []), *tried], key=_held, default=None)
    if rival is not None:
        best = [each for each in best if each.score < rival.score]
    low_memory = surely_fits = None
    if best and not budget.is_spent:
        best = with_overlap(pricer, best)
        climb = Climb(pricer.within(request, budget.part(CLIMB_SHARE)))
        best += climb.from_best(best)
        best += (more := ranking.settled(min(map(_score, best)), budget.spent + SETTLING_SHARE * budget.limit))
        if more:
            best += climb.from_best(best)
        first = min(best, key=_score)
        held = first.memory_bytes
        sought = rival is None and not request.overlap_experts  # others are sought among passes in one piece
        if sought and all(each.is_near_limit for each in best):
            surely_fits = _holding(pricer, first, within_limit.limit, within_limit)
        if sought and surely_fits is None and held > small.limit:
            low_memory = _holding(pricer, first, CLEARLY * held, small)
    found = best_first(filter(None, [*best, low_memory, surely_fits]), len(best) + 2)
    best, surely_fits = found[:keep], next((each for each in found if not each.is_near_limit), None)
    counts.timelines = pricer.drawn - timelines
    better, worse = ranking.left(best[0].score if best else float("inf"))
    counts.not_searched += better
    counts.worse_bound += worse
    smallest = None if best else least or pool.smallest
    seconds, away = time.monotonic() - started, pool.away_seconds
    return Found(
        request,
        tuple(best),
        counts,
        seconds,
        smallest,
        low_memory,
        surely_fits,
        refusal=ranking.refusal,
        away_seconds=away,
    )


def _holding(pricer: Pricer, first: Priced, most: float, others: LowMemory) -> Priced | None:
    """The better of two that hold no more than so many bytes: the first layout with other ways of its blocks with their
    activations, and the fastest of others."""
    work = pricer.budget.part(SMALLER_SHARE)
    tighter = pricer.within(replace(pricer.request, memory_bytes=int(most)), work)
    other = others.fastest(pricer.within(pricer.request, work), most)
    own = mixed(tighter, first.candidate) if may_mix(pricer.request) and not work.is_spent else None
    return min(filter(None, (own, other)), key=_score, default=None)


def _score(priced: Priced) -> float:
    return priced.score


def _held(each: tuple[Candidate, float]) -> float:
    return each[1]


def _least_memory(pricer: Pricer, pool: Pool) -> tuple[list[Priced], list[tuple[Candidate, float]]]:
    """The first layout that fits, in the order of their bounds of memory, and all that were simulated, with what they hold."""
    tried: list[tuple[Candidate, float]] = []
    for _, candidate in sorted(pool.least, key=lambda each: (each[0], each[1].words())):
        if len(tried) == LEAST or pricer.budget.is_spent:
            break
        priced = pricer.price(candidate)
        if isinstance(priced, Priced):
            tried.append((candidate, float(priced.memory_bytes)))
            if priced.memory_bytes <= pricer.request.memory_bytes:
                return [priced], tried
    return [], tried
