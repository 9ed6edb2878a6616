"""The first screen of a plan: the verdict, the first rows, what it rests on, what to do next; all else behind `--verbose`."""

from collections.abc import Sequence
from math import isfinite

from fourfold.plan.planner import Plan
from fourfold.plan.pricing import Priced
from fourfold.plan.request import Request
from fourfold.report.format_outlook import format_behind, outlook_lines
from fourfold.report.format_plan import LIKE, asked_lines, explanation_lines, first_lines, plan_lines
from fourfold.report.format_simulation import format_software
from fourfold.report.units import duration, format_bytes, format_count, format_dollars, per_cent, seconds_text
from fourfold.results.fit import fit_of_priced
from fourfold.simulate.campaign import Campaign

ROWS = 3
"""Layouts that are shown."""
HEAD = f"{'':3}{'step':>9}  {'memory':>8}  {'fits':<12}  layout"
WIDTH = 9
"""Columns of a label."""


def screen_lines(plan: Plan, training: Campaign | None, elsewhere: Sequence[tuple[str, float | None]]) -> list[str]:
    """At most 25 lines of 160 columns. `elsewhere`: other software, and the seconds of the best layout under it; None where that
    cannot run it. Where nothing fits, all that is known."""
    if plan.best is None:
        return plan_lines(plan)
    rows = [_row(plan, place, each) for place, each in enumerate(plan.found.best[:ROWS], 1)]
    return [
        *first_lines(plan),
        *asked_lines(plan.request),
        *(_labelled("assumed", _assumed(plan.request))),
        *(_labelled("software", _software(plan.request, elsewhere))),
        *(_labelled("run", _training(training)) if training is not None else []),
        "",
        HEAD,
        *rows,
        *outlook_lines(plan, WIDTH),
        *_labelled("by rule", _by_rule(plan)),
        *explanation_lines(plan),
    ]


def _labelled(label: str, text: str) -> list[str]:
    return [f"{label:<{WIDTH}}{text}"] if text else []


def _row(plan: Plan, place: int, priced: Priced) -> str:
    time, held = seconds_text(priced.seconds), format_bytes(priced.memory_bytes)
    fits, words = fit_of_priced(plan, priced).cell, priced.candidate.words()
    return f"{place:>2} {time:>9}  {held:>8}  {fits:<12}  {words}{format_behind(priced, plan.best)}"


def _assumed(request: Request) -> str:
    """The links and software constants, which no simulation can know."""
    cluster, software = request.cluster, request.software
    below = (1, *(level.devices for level in cluster.levels))
    used = [each for each, inner in zip(cluster.levels, below, strict=False) if inner < request.devices]
    links = [f"{each.name} {format_bytes(each.bytes_per_second)}/s" for each in used]
    context = f"context {format_bytes(software.context_bytes)}"
    return ", ".join([*links, context, f"allocator {per_cent(software.fragmentation)}"])


def _software(request: Request, elsewhere: Sequence[tuple[str, float | None]]) -> str:
    """The software whose prices these are, whether anybody ran them, and what others take for the first layout."""
    name = format_software(request.template)
    if request.software.is_own and request.cluster.device.units:
        name += ", tried on one GPU"
    others = [f"{other} {seconds_text(seconds)}" for other, seconds in elsewhere if seconds is not None]
    cannot = [other for other, seconds in elsewhere if seconds is None]
    parts = [name, *([f"row 1 under {', '.join(others)}"] if others else [])]
    return "; ".join([*parts, *([f"{' and '.join(cannot)} cannot run row 1"] if cannot else [])])


def _training(run: Campaign) -> str:
    cost = f", {format_dollars(run.dollars)}" if run.dollars is not None and isfinite(run.dollars) else ""
    text = f"{format_count(run.tokens)} tokens: {duration(run.training_seconds)} of training"
    if run.failures is None:
        return f"{text}{cost}; no failure rate: --failure-hours"
    return f"{text}, {duration(run.seconds)} with a failure every {duration(run.failures.mean_seconds)}{cost}"


def _by_rule(plan: Plan) -> str:
    """The layout that a person would run without a search, in a line."""
    other, best = plan.heuristic_baseline, plan.best
    if other is None or best is None:
        return "no usual recipe fits or divides"
    ratio = other.seconds / best.seconds - 1
    loses = f"{per_cent(abs(ratio))} {'slower' if ratio > 0 else 'faster'}" if abs(ratio) > LIKE else "as fast"
    outside = ", outside of what was searched" if plan.baseline_is_outside else ""
    return f"{other.candidate.words()}: {seconds_text(other.seconds)}, {loses}{outside}"
