"""The interval of a predicted figure, as text and as a JSON list; nothing where no published run tells of it."""

from collections.abc import Callable

from fourfold.evidence import Interval, interval
from fourfold.evidence.interval import Quantity
from fourfold.simulate.summary import StepSummary


def interval_of(quantity: Quantity, summary: StepSummary) -> Interval | None:
    """The interval of the step's seconds, or of its largest memory."""
    return interval(quantity, summary.step.simulation.prices)


def predicted(quantity: Quantity, summary: StepSummary) -> float:
    """The step's seconds, or the bytes of the fullest device."""
    return summary.seconds if quantity == "time" else max(summary.step.device_bytes)


def interval_text(quantity: Quantity, summary: StepSummary, written: Callable[[float], str]) -> str:
    """` (80 %: 3.1 s to 3.9 s)`, with the space before it. `written`: a number as a person reads it."""
    found = interval_of(quantity, summary)
    if found is None:
        return ""
    low, high = found.around(predicted(quantity, summary))
    return f" ({100 * found.share:.0f} %: {written(low)} to {written(high)})"


def interval_document(quantity: Quantity, summary: StepSummary) -> list[float] | None:
    """[low, high], in the unit of the figure."""
    found = interval_of(quantity, summary)
    return None if found is None else list(found.around(predicted(quantity, summary)))
