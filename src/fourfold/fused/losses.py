"""The kernels of cross-entropy, and the cases that they take."""

from dataclasses import dataclass
from importlib.util import find_spec

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


def triton_refuses(case: LossCase) -> str | None:
    """Why Triton's kernels do not take a case; None: they may."""
    if case.device.type != "cuda":
        return "it runs on CUDA"
    return None if find_spec("triton") is not None else "triton is not installed"
