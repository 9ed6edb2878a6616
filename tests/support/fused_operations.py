"""Kernels of norms, cross-entropy, SwiGLU and rotary embedding in the place of the segments' formulas: in plain PyTorch, and by
Triton."""

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from fourfold.fused.losses import TritonLoss
from fourfold.fused.norms import TRITON
from fourfold.fused.pointwise import TritonPointwise
from fourfold.train.norm_choice import FORMULA


class PlainLoss:
    """`LossKernels` by PyTorch's operators, in the format of the logits."""

    @staticmethod
    def statistics(logits: Tensor, column: Tensor, here: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        maximum = logits.amax(-1)
        picked = torch.where(here, logits.gather(-1, column.unsqueeze(-1)).squeeze(-1), 0)
        return maximum, (logits - maximum.unsqueeze(-1)).exp().sum(-1), picked

    @staticmethod
    def gradient_(logits: Tensor, column: Tensor, maximum: Tensor, factor: Tensor, target: Tensor) -> None:
        logits.sub_(maximum.unsqueeze(-1)).exp_().mul_(factor.unsqueeze(-1))
        logits.scatter_add_(-1, column.unsqueeze(-1), target.unsqueeze(-1))


FUSED: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {
        "plain": {"norms": FORMULA, "losses": PlainLoss()},
        "triton": {"norms": TRITON, "losses": TritonLoss(), "pointwise": TritonPointwise()},
    }
)
"""By name, members of the operations."""
