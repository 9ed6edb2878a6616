"""A plan: the search, the heuristic baseline and explanations, within one budget. The best is the best of all of them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fourfold.config import UserError
from fourfold.plan.budget import SearchBudget
from fourfold.plan.candidate import Candidate
from fourfold.plan.conflicts import contradiction, has_layouts, obstacles
from fourfold.plan.constraints import NO_CONSTRAINTS
from fourfold.plan.explain import explain
from fourfold.plan.fewest import enough_devices
from fourfold.plan.found import Found, best_first
from fourfold.plan.heuristic_baseline import heuristic_baseline
from fourfold.plan.pricing import Priced, Pricer
from fourfold.plan.request import Request
from fourfold.plan.result import Plan
from fourfold.plan.search import BUDGET, Progress, search
from fourfold.simulate.summary import StepSummary

BASELINE_SHARE, EXPLAINED_SHARE = 0.15, 0.25
"""Shares of the budget: the baseline's, and what each explanation takes beside it."""


def make_plan(
    request: Request,
    explained: Sequence[Mapping[str, int | str]] = (),
    budget: float = BUDGET,
    keep: int = 5,
    progress: Progress | None = None,
) -> Plan:
    """The `keep` fastest layouts that fit, beside the baseline and the best layouts with the fields in `explained`.

    The baseline takes part in the search. An explained layout that it missed joins the best, if it keeps to the constraints.
    Raises `UserError` where no layout keeps to all of them.
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
    missed = [each.priced for each in explanations if each.priced is not None]
    found = _joined(found, [priced for priced in missed if request.permits(priced.candidate)], keep)
    if not found.best:
        enough = enough_devices(request)
        return Plan(found, None, explanations, enough.devices if enough else None, obstacles=tuple(obstacles(request)))
    closer = _summary(pricer, found.best[0].candidate)
    return Plan(found, baseline, explanations, closer=closer, baseline_is_outside=outside)


def _joined(found: Found, others: Sequence[Priced], keep: int) -> Found:
    """The same with those of the others that are among the fastest."""
    return replace(found, best=tuple(best_first((*others, *found.best), keep)))


def _summary(pricer: Pricer, layout: Candidate) -> StepSummary:
    step = pricer.predict(layout)
    return StepSummary(step, pricer.request.global_sequences // (layout.dp * layout.microbatch_sequences))
