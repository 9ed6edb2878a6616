"""Goodput and advice on saving, in lines."""

from fourfold.report.units import format_seconds
from fourfold.results.goodput import MeasuredGoodput

_ASSUMED = (3600.0, 24 * 3600.0)
"""Seconds between failures for which advice is given where none was seen."""


def goodput_lines(found: MeasuredGoodput, step_seconds: float | None) -> list[str]:
    """The lines of `fourfold report`: goodput by cause, and how often to save. `step_seconds`: of a typical step."""
    if not found.total_seconds:
        return []
    causes = sorted(found.seconds.items(), key=lambda pair: -pair[1])
    rest = ", ".join(f"{cause} {100 * seconds / found.total_seconds:.1f} %" for cause, seconds in causes if seconds > 0)
    plural = "" if found.failures == 1 else "s"
    lines = [
        f"goodput   {100 * found.share:.1f} % of {format_seconds(found.total_seconds)} became steps that are kept, with "
        f"{found.failures} failure{plural}; {rest}"
    ]
    if not found.saves:
        return lines
    for mean in (None,) if found.failures else _ASSUMED:
        advice = found.advice(mean)
        if advice is None:
            continue
        steps = f" ({max(1, round(advice.best_seconds / step_seconds))} steps)" if step_seconds else ""
        lines.append(
            f"saving    with a failure every {format_seconds(advice.mean_seconds)}: best every "
            f"{format_seconds(advice.best_seconds)}{steps}; expected goodput {100 * advice.expected_goodput:.1f} % "
            f"(a save {advice.save_seconds:.2g} s, a restart {advice.restart_seconds:.2g} s)"
        )
    return lines
