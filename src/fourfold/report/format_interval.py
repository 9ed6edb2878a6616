"""The interval of predicted figures, as a line of text and as JSON lists; nothing where no published run tells of it."""

from collections.abc import Callable

from fourfold.evidence import Interval, interval
from fourfold.evidence.interval import Quantity
from fourfold.report.format_simulation import seconds_text
from fourfold.report.units import format_bytes
from fourfold.simulate.summary import StepSummary


def interval_of(quantity: Quantity, summary: StepSummary) -> Interval | None:
    """The interval of the step's seconds, or of its largest memory."""
    return interval(quantity, summary.step.simulation.prices)


def predicted(quantity: Quantity, summary: StepSummary) -> float:
    """The step's seconds, or the bytes of the fullest device."""
    return summary.seconds if quantity == "time" else max(summary.step.device_bytes)


def interval_lines(summary: StepSummary) -> list[str]:
    """One line: between which figures 80 % of such runs lie; none where no published run tells."""
    parts = []
    shown: tuple[tuple[Quantity, str, Callable[[float], str]], ...] = (
        ("time", "step", seconds_text),
        ("memory", "memory", format_bytes),
    )
    for quantity, name, written in shown:
        found = interval_of(quantity, summary)
        if found is not None:
            low, high = found.around(predicted(quantity, summary))
            parts.append(f"{name} {written(low)} to {written(high)}")
    if not parts:
        return []
    return [f"interval   80 % of runs measure {', '.join(parts)}"]


def interval_document(quantity: Quantity, summary: StepSummary) -> list[float] | None:
    """[low, high], in the unit of the figure."""
    found = interval_of(quantity, summary)
    return None if found is None else list(found.around(predicted(quantity, summary)))
