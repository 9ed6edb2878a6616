"""A validation in a terminal: a row a case, then errors, skill, order of layouts and memory in one line each."""

from collections.abc import Callable

from fourfold.report.format_comparison import signed
from fourfold.report.units import format_bytes, per_cent, seconds_text, table
from fourfold.validate import CaseOutcome, Errors, Metrics, Validation

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
