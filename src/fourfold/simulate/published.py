"""A published figure of a run beside its prediction."""

from dataclasses import dataclass

from fourfold.config import ModelConfig, RunConfig
from fourfold.hardware import Device
from fourfold.layout import Layout
from fourfold.model.counts import step_flops_per_token


@dataclass(frozen=True)
class PublishedStep:
    """A step as the literature has it. `figure`: in the source's unit, with the seconds that it means."""

    source: str
    figure: str
    seconds: float

    def error(self, predicted_seconds: float) -> float:
        """Relative error, a share: predicted over published, less 1: positive where the prediction is too slow."""
        return predicted_seconds / self.seconds - 1

    def line(self, predicted_seconds: float) -> str:
        """The line of `fourfold simulate`."""
        error = self.error(predicted_seconds)
        return f"published  {self.figure}; predicted {abs(error):.1%} {'slower' if error > 0 else 'faster'} ({self.source})"


def published_step(config: RunConfig, model: ModelConfig, layout: Layout, device: Device) -> PublishedStep | None:
    """The published figure of a run; None where the run file states no figure."""
    section, devices = config.published, layout.world_size
    if section.step_seconds is not None:
        return PublishedStep(section.source, f"{section.step_seconds} s a step", section.step_seconds)
    tokens = config.batch.global_sequences * config.batch.sequence_length
    if section.tokens_per_second_per_device is not None:
        figure = f"{section.tokens_per_second_per_device:g} tokens/s/device"
        seconds = tokens / (section.tokens_per_second_per_device * devices)
    elif section.tflops_per_device is not None or section.mfu is not None:
        if section.tflops_per_device is not None:
            figure, device_flops = f"{section.tflops_per_device:g} TFLOP/s/device", section.tflops_per_device * 1e12
        else:
            assert section.mfu is not None
            figure, device_flops = f"MFU {section.mfu:.1%}", section.mfu * device.peak("bf16")
        recompute = config.layout.recompute if isinstance(config.layout.recompute, str) else "none"
        flops = step_flops_per_token(model, config.batch.sequence_length, section.flops, recompute) * tokens
        seconds = flops / (device_flops * devices)
    else:
        return None
    return PublishedStep(section.source, f"{figure}, {seconds:.3g} s a step", seconds)
