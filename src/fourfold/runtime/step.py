"""Input and result of a step: a rank's microbatches; the loss and the norm; the instruction that waited in vain."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from fourfold.config import ModelConfig, RunFailure
from fourfold.model.environment import Microbatch
from fourfold.program import Instruction
from fourfold.runtime.device import read_back

Observer = Callable[[int, Instruction], None]
"""Called after each instruction, with its index."""


class StepData(Protocol):
    """This rank's part of one global batch."""

    @property
    def num_targets(self) -> int | tuple[int, ...]:
        """Valid target tokens among this rank's microbatches; with multi-token prediction, of the head and of every module."""
        ...

    def load(self, microbatch: int) -> Microbatch: ...


@dataclass(frozen=True)
class StepResult:
    """The result of one step. `loss`: mean over the valid targets of the full global batch, in nats; `auxiliary_loss`: the sum
    of the routers' balance and z losses; `expert_imbalance`: the worst router's largest load of an expert over the mean;
    `mtp_loss`: the mean of the losses of MTP modules, each a mean over its own valid targets; `z_loss`: the logits' z-loss, a mean
    over the valid targets, times its weight."""

    loss: float
    grad_norm: float
    skipped: bool
    num_targets: int
    auxiliary_loss: float = 0.0
    expert_imbalance: float | None = None
    mtp_loss: float | None = None
    z_loss: float | None = None


def read_result(
    num_targets: Tensor,
    losses: Tensor,
    squares: Tensor,
    imbalance: Tensor | None,
    model: ModelConfig,
    largest_norm: float = math.inf,
) -> StepResult:
    """Reads what a step left on the device: the one time that the host waits for it. `num_targets` [1 + modules]; `losses` [parts]:
    sums, that of Z^2 and the MTP modules' at the end; `squares` []: the squared norm of the gradients; `imbalance` [1].
    `largest_norm`: beyond which the step changed nothing."""
    read = [num_targets, losses, squares]
    counts, sums, (total,), *rest = read_back([*read, imbalance] if imbalance is not None else read)
    routers = len(sums) - model.mtp_layers - bool(model.logits_z_loss)
    ahead = sums[len(sums) - model.mtp_layers :]
    means = [loss / max(count, 1) for loss, count in zip(ahead, counts[1:], strict=True)]
    return StepResult(
        loss=sums[0] / max(counts[0], 1),
        grad_norm=math.sqrt(total),
        skipped=not math.isfinite(total) or math.sqrt(total) > largest_norm,
        num_targets=int(counts[0]),
        auxiliary_loss=sum(sums[1:routers]),
        expert_imbalance=rest[0][0] if rest else None,
        mtp_loss=sum(means) / len(means) if means else None,
        z_loss=model.logits_z_loss * sums[routers] / max(counts[0], 1) if model.logits_z_loss else None,
    )


class StepFailure(RunFailure):
    """An instruction that failed: `index`, and `cause`."""

    def __init__(self, index: int, cause: Exception) -> None:
        super().__init__(str(cause) or type(cause).__name__)
        self.index = index


class StepTimeout(StepFailure):
    """A collective did not finish; `index` is the instruction that waited."""


class StepOutOfMemory(StepFailure):
    """There was no memory for what an instruction allocates."""
