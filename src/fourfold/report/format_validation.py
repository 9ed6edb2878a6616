"""Measured runs beside their predictions, and software fitted to them, in lines."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, median

from fourfold.report.format_comparison import signed
from fourfold.report.units import format_bytes, per_cent, seconds_text, table
from fourfold.validate import Case, CaseOutcome, Errors, Metrics, Validation
from fourfold.validate.fit import Residual, SoftwareFit, average_error

_HEAD = ("case", "devices", "measured", "predicted", "error", "memory measured", "predicted", "error", "fits")
WIDEST = 48


def validation_lines(found: Validation) -> list[str]:
    """All lines for a terminal."""
    refused = [outcome for outcome in found.outcomes if outcome.prediction.refused is not None]
    lines = table(_HEAD, [_row(outcome) for outcome in found.outcomes])
    lines += ["", *_metric_lines(found.metrics)]
    return lines + [f"not predicted: {outcome.case.name}: {outcome.prediction.refused}" for outcome in refused]


def _row(outcome: CaseOutcome) -> list[str]:
    case, prediction = outcome.case, outcome.prediction
    fits = "" if prediction.fits is None else "yes" if prediction.fits else "no"
    return [
        case.name if len(case.name) <= WIDEST else f"{case.name[: WIDEST - 1]}…",
        f"{case.num_devices:,}",
        "out of memory" if case.measured.out_of_memory else _known(case.measured_seconds, seconds_text),
        _known(prediction.step_seconds, seconds_text),
        _known(outcome.step_error, signed),
        _known(case.measured.peak_memory_bytes, format_bytes),
        _known(prediction.memory_bytes, format_bytes),
        _known(outcome.memory_error, signed),
        fits,
    ]


def _metric_lines(metrics: Metrics) -> list[str]:
    lines = []
    if metrics.step.count:
        line = f"step time  {_errors(metrics.step, 'steps')}"
        if metrics.null_mean is not None and metrics.skill is not None:
            line += f"; one constant MFU for each device and format: mean {per_cent(metrics.null_mean)}, "
            line += f"of which the prediction's is {per_cent(metrics.skill)}"
        lines.append(line)
    if metrics.memory.count:
        lines.append(f"memory     {_errors(metrics.memory, 'peaks')}")
    ranking = metrics.ranking
    if ranking.groups and ranking.regret_median is not None and ranking.regret_max is not None:
        order = "" if ranking.correlation_mean is None else f"rank correlation {ranking.correlation_mean:.2f}, "
        lines.append(
            f"layouts    {ranking.layouts} in {ranking.groups} groups that differ in nothing else: {order}"
            f"regret median {per_cent(ranking.regret_median)}, at most {per_cent(ranking.regret_max)}"
        )
    fit = metrics.fit
    if fit.ran:
        lines.append(f"fit        {fit.ran_predicted_to_fit} of {fit.ran} runs that ran are predicted to fit")
    if fit.failed:
        lines.append(
            f"           {fit.failed_predicted_not_to_fit} of {fit.failed} that ran out of memory are predicted not to"
        )
    return lines or ["nothing to compare"]


def _errors(errors: Errors, what: str) -> str:
    figures = (errors.median or 0.0, errors.mean or 0.0)
    median, mean = map(per_cent, figures)
    return f"{errors.count} {what}: median error {median}, mean {mean}, bias {signed(errors.bias or 0.0)}"


def _known(value: float | None, text: Callable[[float], str]) -> str:
    return "" if value is None else text(value)


_FIGURES = {"step": "step time", "memory": "memory"}


def fit_lines(found: SoftwareFit, cases: Sequence[Case], out: Path | None) -> list[str]:
    """All lines for a terminal."""
    left_out = {(each.case, each.figure): each.error for each in found.left_out}
    rows = []
    for before, after in zip(found.before, found.after, strict=True):
        error = left_out[before.case, before.figure]
        name = cases[before.case].name
        errors = (before.error, after.error) if len(cases) == 1 else (before.error, after.error, error)
        rows.append([name, _FIGURES[before.figure], *(signed(math.expm1(each)) for each in errors)])
    head = ("case", "figure", "error", "fitted", "fitted to the others")[: 4 if len(cases) == 1 else 5]
    lines = [*table(head, rows), ""]
    for figure, words in _FIGURES.items():
        if any(each.figure == figure for each in found.before):
            text = f"{words:<10} median error {_median(found.before, figure)}, fitted {_median(found.after, figure)}"
            if len(cases) > 1:
                text += f", each by the others {_median(found.left_out, figure)}"
            lines.append(text)
            if figure in found.stays:
                was, would = (per_cent(average_error(mean, each, figure)) for each in (found.before, found.left_out))
                lines.append(
                    f"{'':<10} its constants stay: the runs predict each other no better (mean error {would}, as shipped {was})"
                )
    if not found.helps:
        works = "what works: runs of one model or one format at a time, or more of them"
        return [*lines, "", f"no constant is changed{f', and {out} is not written' if out else ''}; {works}"]
    moved = [[name, f"{found.prior[name]:.4g}", f"{value:.4g}"] for name, value in found.constants.items()]
    lines += ["", *table(("constant", found.base, "fitted"), moved)]
    if out is not None:
        lines += ["", f"written to {out}; what to do with it: fourfold plan ... --software {out}"]
    else:
        lines += ["", "nothing is written; --out mine.toml keeps it for --software mine.toml"]
    return lines


def _median(errors: Sequence[Residual], figure: str) -> str:
    return per_cent(average_error(median, errors, figure))
