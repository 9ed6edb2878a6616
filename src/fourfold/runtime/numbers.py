"""The numbers of a step on its device: new ones for each step, or in memory that stays, where a captured graph finds them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fourfold.config import ModelConfig
from fourfold.program.totals import num_losses
from fourfold.runtime.device import to_device


@dataclass(frozen=True)
class StepNumbers:
    """`lr`, `number`: the learning rate and the number of the update, from 1; fp32 scalars on the device where they stay.
    `num_targets` [depths] int64 and `loss` [parts] fp64: as a step begins, this rank's counts and zeros."""

    lr: float | Tensor
    number: float | Tensor
    num_targets: Tensor
    loss: Tensor


class NewNumbers:
    """Numbers of each step in memory of its own."""

    def __init__(self, model: ModelConfig, device: torch.device) -> None:
        self._parts, self._device = num_losses(model), device

    def __call__(self, lr: float, number: int, counts: tuple[int, ...]) -> StepNumbers:
        targets = to_device(torch.tensor(counts, dtype=torch.int64), self._device)
        return StepNumbers(
            lr, float(number), targets, torch.zeros(self._parts, dtype=torch.float64, device=self._device)
        )


class FixedNumbers:
    """Numbers of every step in the same memory."""

    def __init__(self, model: ModelConfig, device: torch.device) -> None:
        self._device = device
        self._both = torch.zeros(2, dtype=torch.float32, device=device)
        targets = torch.zeros(1 + model.mtp_layers, dtype=torch.int64, device=device)
        loss = torch.zeros(num_losses(model), dtype=torch.float64, device=device)
        self._numbers = StepNumbers(self._both[0], self._both[1], targets, loss)

    def __call__(self, lr: float, number: int, counts: tuple[int, ...]) -> StepNumbers:
        """After all that the device was given before."""
        self._both.copy_(to_device(torch.tensor((lr, number), dtype=torch.float32), self._device))
        self._numbers.num_targets.copy_(to_device(torch.tensor(counts, dtype=torch.int64), self._device))
        self._numbers.loss.zero_()
        return self._numbers
