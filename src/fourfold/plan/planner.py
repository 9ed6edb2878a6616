"""A plan: the search, the heuristic baseline and explanations, within one budget. The best is the best of all of them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fourfold.plan.budget import SearchBudget
from fourfold.plan.candidate import Candidate
from fourfold.plan.explain import explain
from fourfold.plan.fewest import enough_devices
from fourfold.plan.heuristic_baseline import heuristic_baseline
from fourfold.plan.pricing import Priced, Pricer
from fourfold.plan.request import Request
from fourfold.plan.result import Plan
from fourfold.plan.search import BUDGET, Found, Progress, search
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

    A baseline or an explained layout that the search missed joins the best.
    """
    work = SearchBudget(budget)
    baseline = heuristic_baseline(request, work.part(BASELINE_SHARE))
    found = search(request, work.part(1.0), keep=keep, progress=progress)
    explanations = tuple(explain(request, fields, found, EXPLAINED_SHARE * budget) for fields in explained)
    missed = [priced for priced in (baseline, *(each.priced for each in explanations)) if priced is not None]
    found = _joined(found, missed, keep)
    if not found.best:
        enough = enough_devices(request)
        return Plan(found, None, explanations, enough.devices if enough is not None else None)
    return Plan(found, baseline, explanations, closer=_summary(request, found.best[0].candidate))


def _joined(found: Found, others: Sequence[Priced], keep: int) -> Found:
    """The same with those of the others that are among the fastest."""
    every = {priced.candidate: priced for priced in (*others, *found.best)}.values()
    best = sorted(every, key=lambda p: (p.seconds, p.memory_bytes, p.candidate.words()))[:keep]
    return replace(found, best=tuple(best))


def _summary(request: Request, layout: Candidate) -> StepSummary:
    step = Pricer(request).predict(layout)
    return StepSummary(step, request.global_sequences // (layout.dp * layout.microbatch_sequences))
