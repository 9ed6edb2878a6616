"""The values that a step leaves in `metrics.jsonl`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fourfold.runtime.executor import StepResult
from fourfold.train.peak import Peak


@dataclass(frozen=True)
class Rates:
    """The figures that turn seconds of a step into rates. `tokens`: of a step, by its number; `flops_per_token`: of the model;
    `world_size` ranks share them."""

    tokens: Callable[[int], int]
    flops_per_token: float
    world_size: int
    peak: Peak

    def of(self, step: int, seconds: float) -> dict[str, float]:
        """Seconds of the step before step `step`, tokens per second, and model FLOPs as a share of the peak."""
        tokens_per_second = self.tokens(step - 1) / seconds
        mfu = self.peak.share(tokens_per_second * self.flops_per_token / self.world_size, step)
        return {"step_seconds": seconds, "tokens_per_second": tokens_per_second, "mfu": mfu}


def step_values(
    step: int, result: StepResult, lr: float, tokens: int, rates: Mapping[str, float], counted: Mapping[str, Any]
) -> dict[str, Any]:
    """`tokens`: seen so far. `rates`: as `Rates` gives them. `counted`: memory, bytes and skipped steps."""
    values: dict[str, Any] = {
        "step": step,
        "loss": result.loss,
        "grad_norm": result.grad_norm,
        "lr": lr,
        "tokens": tokens,
        **rates,
        **counted,
    }
    if result.expert_imbalance is not None:
        values["expert_load_max_over_mean"] = result.expert_imbalance
        values["auxiliary_loss"] = result.auxiliary_loss
    if result.mtp_loss is not None:
        values["mtp_loss"] = result.mtp_loss
    if result.z_loss is not None:
        values["z_loss"] = result.z_loss
    return values
