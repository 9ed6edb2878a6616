"""How sure a layout is and what would help: its memory, changes with what each gains."""

from fourfold.plan.advice import Advice, LayoutChange
from fourfold.plan.planner import Plan
from fourfold.plan.pricing import Priced
from fourfold.report.units import format_bytes, per_cent, seconds_text, spelled_out
from fourfold.results.fit import Fit, fit_of, fit_of_priced
from fourfold.results.plan import why_behind
from fourfold.results.prediction import AdviceDocument, ChangeDocument
from fourfold.results.record import shown
from fourfold.simulate.summary import StepSummary


def outlook_lines(plan: Plan, width: int = 11) -> list[str]:
    """Lines with labels of so many columns. Nothing on a machine that was measured: there predictions are its own."""
    best = plan.best
    if best is None or not best.out_of_memory:
        return []
    lines = []
    if best.is_near_limit:
        lines.append(f"{'surer':<{width}}{_instead(plan, best)}")
    if (riskier := plan.found.riskier) is not None:
        gain = f"{per_cent(1 - riskier.seconds / best.seconds)} less time, {format_bytes(riskier.memory_bytes)}"
        fits = fit_of_priced(plan, riskier).phrase
        lines.append(
            f"{'riskier':<{width}}{seconds_text(riskier.seconds)}, {gain}, {fits}: {riskier.candidate.words()}"
        )
    return lines


def format_behind(priced: Priced, best: Priced | None) -> str:
    """Behind the row of a layout that is faster than the first: why it is not first."""
    if best is None or priced.seconds >= best.seconds:
        return ""
    return f" | faster by {per_cent(best.seconds / priced.seconds - 1)}: {why_behind(priced, best)}"


def _instead(plan: Plan, best: Priced) -> str:
    """The best layout that surely fits, and what it costs."""
    other, rows = plan.found.surely_fits, plan.found.best
    if other is None:
        return "no layout was found that surely fits"
    name = f"row {rows.index(other) + 1}" if other in rows else other.candidate.words()
    slower = f"{per_cent(other.seconds / best.seconds - 1)} slower" if other.seconds > best.seconds else "no slower"
    held = f"{fit_of_priced(plan, other).phrase} with {format_bytes(other.memory_bytes)}"
    return f"{held}: {slower}, {seconds_text(other.seconds)}: {name}"


SHOWN = 3
"""Costs of a step that are named where nothing helps."""


def advice_lines(advice: Advice | None, summary: StepSummary) -> list[str]:
    """A line for each change, under `change`; else what limits the step, or the memory."""
    if advice is None:
        return [f"change  no neighbours of the schedule {summary.step.simulation.spec.layout.schedule} are known"]
    if not advice.changes:
        return [f"change  {_none(summary)}"]
    return [
        f"{'change' if number == 0 else '':<6}  {' '.join(each.overrides)}: {_gain(each, summary)}"
        for number, each in enumerate(advice.changes)
    ]


def advice_record(advice: Advice | None, summary: StepSummary) -> AdviceDocument | None:
    """Advice with its figures: gains are shares of the layout's own; `limit`: what the step spends its time on, where nothing
    helps."""
    if advice is None:
        return None
    changes = [
        shown(ChangeDocument, each, step_seconds=each.seconds, fit=_fit(each, summary), words=_gain(each, summary))
        for each in advice.changes
    ]
    return AdviceDocument(changes=changes, limit=None if changes else _none(summary))


def _gain(change: LayoutChange, summary: StepSummary) -> str:
    ratio = change.seconds / summary.seconds
    time = f"{per_cent(1 - ratio)} less time" if ratio <= 1 else f"{per_cent(ratio - 1)} more time"
    figures = f"{time} ({seconds_text(change.seconds)}), {format_bytes(change.memory_bytes)}"
    if summary.fits:
        return f"{figures}, {_fit(change, summary).phrase}"
    if change.fits:
        return f"{_fit(change, summary).phrase}, {figures}"
    return f"{figures}, still {format_bytes(change.memory_bytes - summary.memory_limit)} too much"


def _fit(change: LayoutChange, summary: StepSummary) -> Fit:
    """`change.fits`: false where the host's memory lacks, too."""
    found = fit_of(summary, change.memory_bytes)
    return found if change.fits or change.memory_bytes > summary.memory_limit else Fit("no", None)


def _none(summary: StepSummary) -> str:
    if not summary.fits:
        return "no single change makes it fit, or much smaller"
    most = list(summary.path.items())[:SHOWN]
    shares = ", ".join(f"{spelled_out(kind)} {per_cent(seconds / summary.seconds)}" for kind, seconds in most)
    return f"no single change helps; the step is {shares}"
