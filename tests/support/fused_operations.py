"""Kernels of norms, cross-entropy, SwiGLU and rotary embedding in the place of the segments' formulas: in plain PyTorch, and by
Triton."""

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from fourfold.kernels import loss, norm, pointwise
from fourfold.model import torch_operations
from fourfold.model.rope import rotate_, rotate_into
from fourfold.model.swiglu import swiglu, swiglu_backward_


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


class PlainPointwise:
    """`PointwiseKernels` by the formulas."""

    def swiglu(self, gate_up: Tensor) -> Tensor:
        out: Tensor = swiglu(torch_operations, gate_up)
        return out

    def swiglu_backward_(self, grad: Tensor, gate_up: Tensor) -> None:
        swiglu_backward_(torch_operations, [grad, None], gate_up)

    def weighted(self, gate_up: Tensor, weights: Tensor) -> Tensor:
        return self.swiglu(gate_up).mul_(weights.unsqueeze(-1))

    def weighted_backward_(self, grad: Tensor, gate_up: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        down_input, column = self.swiglu(gate_up), weights.unsqueeze(-1)
        grad_weights = (grad * down_input).sum(-1, dtype=weights.dtype)
        self.swiglu_backward_(grad * column, gate_up)
        return down_input.mul_(column), grad_weights

    def rotate_(self, x: Tensor, cos: Tensor, sin: Tensor, interleave: bool, inverse: bool) -> None:
        rotate_(torch_operations, x, cos, sin, interleave, inverse)

    def rotate_into(self, x: Tensor, out: Tensor, cos: Tensor, sin: Tensor, inverse: bool) -> None:
        rotate_into(torch_operations, x, out, cos, sin, inverse)


FUSED: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {
        "plain": {"norms": norm.FormulaNorms(), "losses": PlainLoss(), "pointwise": PlainPointwise()},
        "triton": {**norm.TRITON.members, **loss.TRITON.members, **pointwise.TRITON.members},
    }
)
"""By name, members of the operations."""
