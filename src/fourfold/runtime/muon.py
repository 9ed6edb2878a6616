"""Muon's arithmetic on one unit's shard (Jordan et al. 2024): the momentum's direction, and the update by full matrices."""

from math import sqrt
from typing import Any

import torch
from torch import Tensor

from fourfold.config.optimizers import OptimizerSection
from fourfold.model import torch_operations
from fourfold.model.newton_schulz import orthogonalize
from fourfold.program.matrices import Matrix
from fourfold.runtime.optimizer import DeviceClip
from fourfold.runtime.units import Unit


class MatrixOptimizer:
    """The update of hidden matrices; of an optimizer that has none apart, it is not called."""

    def __init__(self, section: OptimizerSection) -> None:
        self._section: Any = section

    def move(self, unit: Unit, scale: float | DeviceClip) -> Tensor:
        """Moves the momentum of the shard's matrices; the direction of the next step [shard], Nesterov's or the momentum itself."""
        section, average = self._section, unit.optimizer.state["exp_avg"]
        factor, skip = (scale.scale, scale.skip) if isinstance(scale, DeviceClip) else (scale, None)
        gradient = unit.grad_shard.to(unit.master.dtype) * factor
        for low, high, _ in unit.matrices:
            moved = average[low:high].lerp(gradient[low:high], 1 - section.momentum)
            average[low:high] = moved if skip is None else torch.where(skip.bool(), average[low:high], moved)
        return gradient.lerp(average, section.momentum) if section.nesterov else average

    def update(self, unit: Unit, directions: Tensor, lr: float, scale: float | DeviceClip) -> None:
        """`directions` [padded]: of the full unit. Each matrix is orthogonalized in their format; the shard takes its elements."""
        start, _ = unit.flat.shard_range(unit.index)
        skip = scale.skip if isinstance(scale, DeviceClip) else None
        for low, high, matrix in unit.matrices:
            full = directions[matrix.start : matrix.end].view(matrix.rows, matrix.columns)
            offset = start - matrix.start
            step = orthogonalize(torch_operations, full).reshape(-1)[low + offset : high + offset]
            weights = unit.master[low:high]
            new = (weights * (1 - lr * self._section.weight_decay)).sub_(step, alpha=lr * self._ratio(matrix))
            weights.copy_(new if skip is None else torch.where(skip.bool(), weights, new))

    def _ratio(self, matrix: Matrix) -> float:
        rows, columns = matrix.rows, matrix.columns
        if self._section.adjust_lr == "original":
            return sqrt(max(1, rows / columns))
        return 0.2 * sqrt(max(rows, columns))
