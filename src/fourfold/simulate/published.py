"""A published figure of a run beside its prediction."""

from dataclasses import dataclass
from typing import Any

from fourfold.config import RunConfig
from fourfold.config.schema import PublishedSection
from fourfold.model.spec import step_flops_per_token
from fourfold.simulate.summary import StepSummary


@dataclass(frozen=True)
class PublishedStep:
    """Seconds of a step as the literature has them, and as predicted."""

    source: str
    figure: str
    seconds: float
    predicted_seconds: float

    @property
    def error(self) -> float:
        """Predicted over published, less 1: positive where the prediction is too slow."""
        return self.predicted_seconds / self.seconds - 1

    def line(self) -> str:
        """The line of `fourfold simulate`."""
        way = "slower" if self.error > 0 else "faster"
        return f"published  {self.figure}; predicted {abs(self.error):.1%} {way} ({self.source})"

    def document(self) -> dict[str, Any]:
        return {"source": self.source, "step_seconds": self.seconds, "error": self.error}


def published_step(section: PublishedSection, config: RunConfig, summary: StepSummary) -> PublishedStep | None:
    """None where the run file states no figure."""
    seconds, figure = section.step_seconds, f"{section.step_seconds} s a step"
    if section.tflops_per_device is not None:
        recompute = config.layout.recompute if isinstance(config.layout.recompute, str) else "none"
        model, length = summary.step.simulation.spec.model, config.batch.sequence_length
        flops = step_flops_per_token(model, length, section.flops, recompute) * summary.tokens
        seconds = flops / (section.tflops_per_device * 1e12 * summary.devices)
        figure = f"{section.tflops_per_device:g} TFLOP/s/device, {seconds:.3g} s a step"
    if seconds is None:
        return None
    return PublishedStep(section.source, figure, seconds, summary.seconds)
