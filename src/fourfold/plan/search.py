"""The search: bounds of every layout, then sharper prices of those that look fastest, until the fastest are known.

Deterministic: its budget is work, not time. A layout is left out for one of four reasons, all counted: its memory's bound does not
fit, its time's bound is worse than the best, its simulated memory does not fit, or the budget was spent before it.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np

from fourfold.config import UserError
from fourfold.plan.activations import chosen_together
from fourfold.plan.bounding import Progress, bound_all
from fourfold.plan.budget import SearchBudget
from fourfold.plan.candidate import Candidate
from fourfold.plan.found import Found, best_first
from fourfold.plan.low_memory import CLEARLY
from fourfold.plan.overlapped import with_overlap
from fourfold.plan.partial_recompute import WORTH, made_to_fit, partially_recomputed
from fourfold.plan.placement import placed
from fourfold.plan.pool import Counts, Pool
from fourfold.plan.pricing import Priced, Pricer, family
from fourfold.plan.request import Request
from fourfold.plan.states_away import joined, worth_a_search
from fourfold.simulate.collection import without_collection

ADDED, MOST_ADDED = 0.75, 0.05
"""How much of what simulations add at least, to a timeline or to the bound of memory, is taken to be added for a kind of pipeline
not simulated yet, and the most that is of a timeline."""
BUDGET = 40.0
"""Units of work (`plan/budget.py`), where nobody says otherwise."""
BOUND_SHARE, SIMULATED_SHARE = 2 / 3, 5 / 6
"""Shares of the budget that bounds may take, and bounds and simulations together while nothing was found to fit."""
SETTLED_SHARE = 0.25
"""Share of the budget after which no more layouts are simulated, once the best is known: the others are alternatives."""
LEAST = 24
"""Layouts of least memory that are simulated where none of the fastest fits."""
MOST_AWAY = 6
"""Layouts with their optimizer states in the host's memory that are simulated beside others that fit."""
RELATIVES = 3
"""Layouts that are simulated of those which differ in how data parallelism is divided alone."""
BOUND, LIKE, TIMELINE, OF_OTHERS, CORRECTED, HELD, SIMULATED = range(7)
"""How sharp the price of a layout is."""


class Kind(NamedTuple):
    """Layouts whose simulations add alike to their timelines."""

    schedule: str
    pp: int
    virtual_stages: int
    zero: int

    def resembles(self, other: "Kind") -> bool:
        """Whether both wait for the same: other stages, parameters, each microbatch's reductions."""
        return (self.pp > 1, max(1, self.zero)) == (other.pp > 1, max(1, other.zero))


def search(
    request: Request,
    budget: SearchBudget | float = BUDGET,
    most_simulations: int = 60,
    keep: int = 8,
    progress: Progress | None = None,
    fixed: Mapping[str, int | str] | None = None,
    known: Sequence[Priced] = (),
    pricer: Pricer | None = None,
) -> Found:
    """The `keep` fastest layouts that fit, in order, with their optimizer states in the host's memory where the others' bounds say
    that it may be worth it (`plan/states_away.py`). Two thirds of the budget at most go to bounds. Where none of the fastest fits,
    those of least memory are simulated until one does. `fixed`: fields that layouts must have, as in `Request.fixing`. `known`:
    layouts that were simulated before; those that fit and have the fields are found too. `pricer`: of the same step."""
    request = request.fixing(fixed or {})
    work = budget if isinstance(budget, SearchBudget) else SearchBudget(budget)
    with without_collection():
        asked = (pricer or Pricer(request)).within(request, work)
        found = _search(asked, most_simulations, keep, progress, known)
        if not worth_a_search(found):
            return found
        asked = asked.within(replace(request, offload_optimizer=True), work.part(1.0))
        rival = found.best[0] if found.best else None
        few = (most_simulations, keep) if rival is None else (MOST_AWAY, 1)
        with suppress(UserError):  # none that overlaps its experts is among these
            found = joined(found, _search(asked, *few, progress, known, rival), keep)
        return found


def _search(
    pricer: Pricer,
    most_simulations: int,
    keep: int,
    progress: Progress | None,
    known: Sequence[Priced],
    rival: Priced | None = None,
) -> Found:
    """A layout's price is sharpened as far as it must be, always that of the layout which looks fastest: its bound; the same times
    what the timeline of the same pipeline was over its bound for another shape; its own timeline; the same times what
    simulations of its like were over theirs at least, or, before there are any, most of what those of others that resemble
    them were; the simulation of its program.
    A layout that is simulated and still looks fastest is the next best. Of layouts that differ in how data parallelism is divided
    alone, the best few are simulated. `rival`: only layouts that are better than it are looked for.
    """
    started = time.monotonic()
    request, budget, counts = pricer.request, pricer.budget, Counts()
    pool, small, roomy = bound_all(pricer, counts, budget.part(BOUND_SHARE), progress, rival)
    scores, memory, origin = pool.columns()
    order = np.lexsort((memory, scores))
    queue: list[tuple[float, int, int, Priced | None]] = [
        (float(scores[index]), BOUND, place, None) for place, index in enumerate(order)
    ]
    before = {p.candidate: p for p in known if request.permits(p.candidate) and p.memory_bytes <= request.memory_bytes}
    queue += [(p.score, SIMULATED, -number, p) for number, p in enumerate(before.values(), 1)]
    heapify(queue)
    best: list[Priced] = []
    outgrown: list[Priced] = []
    least: tuple[Candidate, float] | None = None
    relatives: dict[Candidate, int] = {}
    corrections: dict[Kind, float] = {}
    fuller: dict[tuple[object, ...], float] = {}
    fits, refusal, timelines = bool(before), None, pricer.drawn
    while queue and len(best) < keep and counts.simulated < most_simulations:
        if budget.spent > (SETTLED_SHARE if best else 1.0 if fits else SIMULATED_SHARE) * budget.limit:
            break
        score, level, place, priced = heappop(queue)
        if priced is not None:
            best.append(priced)
            continue
        where = origin[:, order[place]]
        candidate, parts = pool.candidate(where), pool.parts(where)
        bytes_bound, bound = float(memory[order[place]]), parts.around(parts.compute)
        weight = pricer.outlook.weight(candidate, bytes_bound)
        try:
            if level in (BOUND, LIKE):
                compute = (pricer.like if level == BOUND else pricer.timeline)(candidate, parts.compute)
                heappush(queue, (weight * parts.around(compute), level + 1, place, None))
                continue
            kind = Kind(candidate.schedule, candidate.pp, candidate.virtual_stages, candidate.zero)
            exact = parts.around(pricer.timeline(candidate, parts.compute))
            if level < CORRECTED and kind in corrections:
                heappush(queue, (weight * exact * corrections[kind], CORRECTED, place, None))
                continue
            if level == TIMELINE and (others := [c for other, c in corrections.items() if other.resembles(kind)]):
                added = min(MOST_ADDED, ADDED * (min(others) - 1))
                heappush(queue, (weight * exact * (1 + added), OF_OTHERS, place, None))
                continue
            sizes = (*kind, candidate.recompute, candidate.microbatch_sequences)
            like = kind._replace(virtual_stages=0)
            if (
                bytes_bound * max(fuller.get(sizes, 1.0), 1 + ADDED * (fuller.get(like, 1.0) - 1))
                > request.memory_bytes
            ):
                counts.too_large += 1
                outgrown.append(pricer.priced(candidate, exact, (int(bytes_bound),), bound))
                continue
            if candidate in before:
                counts.simulated += 1
                corrections[kind] = min(corrections.get(kind, float("inf")), before[candidate].seconds / exact)
                continue
            relative = family(candidate)
            if relatives.get(relative, 0) >= RELATIVES:
                counts.like_a_simulated_one += 1
                continue
            if candidate.pp > 2 and level < HELD:
                held = pricer.end_ranks_bytes(candidate)
                if held <= request.memory_bytes:
                    heappush(queue, (score / weight * pricer.outlook.weight(candidate, held), HELD, place, None))
                    continue
                counts.end_ranks_too_large += 1
                for each in (sizes, like):
                    fuller[each] = min(fuller.get(each, float("inf")), held / bytes_bound)
                outgrown.append(pricer.priced(candidate, exact, (held,), bound))
                continue
            relatives[relative] = relatives.get(relative, 0) + 1
            step = pricer.predict(candidate)
        except UserError as error:
            counts.refused, refusal = counts.refused + 1, str(error)
            continue
        counts.simulated += 1
        for each in (sizes, like):
            fuller[each] = min(fuller.get(each, float("inf")), max(step.device_bytes) / bytes_bound)
        corrections[kind] = min(corrections.get(kind, float("inf")), step.seconds / exact)
        result = pricer.priced(candidate, step.seconds, step.device_bytes, bound)
        if result.memory_bytes > request.memory_bytes:
            counts.simulated_too_large += 1
            outgrown.append(result)
            if least is None or result.memory_bytes < least[1]:
                least = (candidate, float(result.memory_bytes))
        else:
            fits = True
            heappush(queue, (result.score, SIMULATED, place, result))
        if progress is not None:
            progress("simulating", min(1.0, max(len(best) / keep, counts.simulated / most_simulations)))
    best += (p for *_, p in queue if p is not None)
    if not best and rival is None:
        best, tried = _least_memory(pricer, pool)
        counts.least_memory = len(tried)
        least = min([*([least] if least else []), *tried], key=_held, default=None)
    low_memory = not_tight = None
    if rival is not None:
        best = [each for each in best if each.score < rival.score]
    if best and not budget.is_spent:
        best += _partial(pricer, best, outgrown)
        best = with_overlap(pricer, best)
        best = placed(pricer, best)
        held = min(best, key=_score).memory_bytes
        sought = (
            rival is None and not request.overlap_experts
        )  # layouts with less memory are sought among passes in one piece
        if sought and all(each.is_tight for each in best):
            not_tight = roomy.fastest(pricer, roomy.limit)
        if sought and not_tight is None and held > small.limit:
            low_memory = small.fastest(pricer, CLEARLY * held)
    found = best_first(filter(None, [*best, low_memory, not_tight]), len(best) + 2)
    best, not_tight = found[:keep], next((each for each in found if not each.is_tight), None)
    counts.timelines = pricer.drawn - timelines
    threshold = best[0].score if best else float("inf")
    bounds = scores[[order[place] for _, _, place, priced in queue if priced is None]]
    counts.not_searched += int((bounds < threshold).sum())
    counts.worse_bound += int((bounds >= threshold).sum())
    seconds_spent = time.monotonic() - started
    smallest = None if best else least or pool.smallest
    away = pool.away_seconds
    return Found(request, tuple(best), counts, seconds_spent, smallest, low_memory, not_tight, refusal, away)


def _score(priced: Priced) -> float:
    return priced.score


def _partial(pricer: Pricer, best: Sequence[Priced], outgrown: Sequence[Priced]) -> list[Priced]:
    """The cheapest way of each block, of the fastest layout that is too large without recomputation, where that would be better
    than the best, else of the best, where that recomputes. Recomputing some blocks alone, of the best, and where nothing was chosen
    for each block, of the one that is too large."""
    first = min(best, key=_score)
    faster = [p for p in outgrown if p.candidate.recompute == "none" and p.score < WORTH * first.score]
    target, together = min(faster or [first], key=_score), None
    if faster or first.candidate.recompute != "none":
        together = chosen_together(pricer, target.candidate)
    found = [together]
    if together is None or faster:
        found.append(partially_recomputed(pricer, first))
    if together is None and faster:
        found.append(made_to_fit(pricer, target))
    return [p for p in found if p is not None]


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
