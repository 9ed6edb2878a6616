"""Input and result of a step: a rank's microbatches; the loss and the norm; the instruction that waited in vain."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from fourfold.config import RunFailure
from fourfold.model.environment import Microbatch
from fourfold.program import Instruction

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
    `mtp_loss`: the mean of the losses of MTP modules, each a mean over its own valid targets."""

    loss: float
    grad_norm: float
    skipped: bool
    num_targets: int
    auxiliary_loss: float = 0.0
    expert_imbalance: float | None = None
    mtp_loss: float | None = None


class StepTimeout(RunFailure):
    """A collective did not finish; `index` is the instruction that waited."""

    def __init__(self, index: int, cause: Exception) -> None:
        super().__init__(str(cause))
        self.index = index
