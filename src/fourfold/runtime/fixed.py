"""The numbers of a step in device memory that stays from step to step, where a graph that was captured once finds them."""

import torch

from fourfold.config import ModelConfig
from fourfold.program.totals import num_losses
from fourfold.runtime.device import to_device


class FixedNumbers:
    """`lr`, `number`: fp32 scalars, the learning rate and the number of the update, from 1. `num_targets` [depths] int64 and `loss`
    [parts] fp64: as a step begins, this rank's counts and zeros."""

    def __init__(self, model: ModelConfig, device: torch.device) -> None:
        self._device = device
        self._both = torch.zeros(2, dtype=torch.float32, device=device)
        self.lr, self.number = self._both[0], self._both[1]
        self.num_targets = torch.zeros(1 + model.mtp_layers, dtype=torch.int64, device=device)
        self.loss = torch.zeros(num_losses(model), dtype=torch.float64, device=device)

    def set(self, lr: float, number: int, counts: tuple[int, ...]) -> None:
        """Those of the next step, after all that the device was given before."""
        self._both.copy_(to_device(torch.tensor((lr, number), dtype=torch.float32), self._device))
        self.num_targets.copy_(to_device(torch.tensor(counts, dtype=torch.int64), self._device))
        self.loss.zero_()
