"""Advice as lines and as a record: changes to copy, with what each gains; or what limits the step."""

from fourfold.plan.advice import Advice, LayoutChange
from fourfold.report.units import format_bytes, per_cent, seconds_text, spelled_out
from fourfold.results.fit import Fit, fit_of
from fourfold.results.prediction import AdviceDocument, ChangeDocument
from fourfold.results.record import shown
from fourfold.simulate.summary import StepSummary

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
