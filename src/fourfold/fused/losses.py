"""The kernels of cross-entropy, and the cases that they take."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class LossCase:
    """A run's cross-entropy in one call on one rank: `rows` tokens of a chunk, `columns` of the vocabulary."""

    rows: int
    columns: int
    dtype: torch.dtype
    device: torch.device


class TritonLoss:
    """`model.operations.LossKernels` by Triton."""

    @staticmethod
    def statistics(logits: Tensor, column: Tensor, here: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        from fourfold.fused import loss_launches

        return loss_launches.statistics(logits, column, here)

    @staticmethod
    def gradient_(logits: Tensor, column: Tensor, maximum: Tensor, factor: Tensor, target: Tensor) -> None:
        from fourfold.fused import loss_launches

        loss_launches.gradient_(logits, column, maximum, factor, target)
