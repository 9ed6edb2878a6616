"""A plan: the search, the heuristic baseline and explanations, within one budget."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fourfold.config import UserError
from fourfold.plan.advice import advise
from fourfold.plan.budget import SearchBudget
from fourfold.plan.conflicts import contradiction, has_layouts, obstacles
from fourfold.plan.constraints import NO_CONSTRAINTS
from fourfold.plan.explain import explain
from fourfold.plan.fewest import enough_devices
from fourfold.plan.heuristic_baseline import heuristic_baseline
from fourfold.plan.pricing import Pricer
from fourfold.plan.request import Request
from fourfold.plan.result import Plan
from fourfold.plan.search import BUDGET, Progress, search

BASELINE_SHARE, EXPLAINED_SHARE, ADVICE_SHARE, ENOUGH_SHARE = 0.15, 0.25, 0.02, 0.1
"""Shares of the budget: the baseline's, and what each explanation, the advice, and each larger size take beside it."""


def make_plan(
    request: Request,
    explained: Sequence[Mapping[str, int | str]] = (),
    budget: float = BUDGET,
    keep: int = 5,
    progress: Progress | None = None,
) -> Plan:
    """The `keep` fastest layouts that fit, beside the baseline and the best layouts with the fields in `explained`.

    The baseline takes part in the search. Explained layouts do not: what is asked changes nothing of what is found. Raises
    `UserError` where no layout keeps to all of them.
    """
    if request.constraints.limits and not has_layouts(request) and (why := contradiction(request)):
        raise UserError(why)
    work = SearchBudget(budget)
    pricer = Pricer(request, work)
    baseline, outside = heuristic_baseline(request, work.part(BASELINE_SHARE), pricer), False
    if baseline is None and request.constraints.limits:
        free = replace(request, constraints=NO_CONSTRAINTS)
        baseline, outside = heuristic_baseline(free, work.part(BASELINE_SHARE), pricer), True
    known = [baseline] if baseline is not None else []
    found = search(request, work.part(1.0), keep=keep, progress=progress, known=known, pricer=pricer)
    share = EXPLAINED_SHARE * budget
    explanations = tuple(explain(request, fields, found, share, known, pricer) for fields in explained)
    if not found.best:
        enough = enough_devices(request, ENOUGH_SHARE * budget)
        return Plan(found, None, explanations, enough.devices if enough else None, obstacles=tuple(obstacles(request)))
    best, likely = found.best[0], request.likely_bytes
    best_step = pricer.summary(best.candidate)
    limit = likely if best.memory_bytes <= likely else request.memory_bytes
    neighbourhood = pricer.within(replace(request, memory_bytes=limit), SearchBudget(ADVICE_SHARE * budget))
    advice = advise(neighbourhood, best.candidate, best_step)
    return Plan(found, baseline, explanations, best_step=best_step, baseline_is_outside=outside, advice=advice)
