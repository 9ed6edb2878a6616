"""The back ends of RMSNorm, and the cases that each takes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fourfold.flash.backends import triton_refuses
from fourfold.flash.tiled import accumulation_dtype

_ATEN: Any = torch.ops.aten
WIDEST = 16384
"""Numbers of a row that a program of the Triton kernels has in its registers."""


@dataclass(frozen=True)
class NormCase:
    """A run's norms of hidden states on one rank: `rows` tokens of a microbatch, each of `width` numbers."""

    rows: int
    width: int
    dtype: torch.dtype
    device: torch.device
    eps: float


@dataclass(frozen=True)
class NormBackend:
    """`forward`, `add_forward`, `again` and `backward`: as `model.operations.NormKernels` has them. `refuses`: why it does not take
    a case; None: it may."""

    name: str
    forward: Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor]]
    add_forward: Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]
    again: Callable[[Tensor, Tensor, Tensor, float], Tensor]
    backward: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]]
    refuses: Callable[[NormCase], str | None]


def _by_torch(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    out, scale = _ATEN._fused_rms_norm(x, weight.shape, weight, eps)
    return out, scale


def _added_by_torch(residual: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return _by_torch(x.add_(residual), weight, eps)


def _again_by_torch(x: Tensor, scale: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _by_torch(x, weight, eps)[0]


def _backward_by_torch(
    grad: Tensor, x: Tensor, scale: Tensor, weight: Tensor, residual: Tensor | None
) -> tuple[Tensor, Tensor]:
    """PyTorch's operator gives the weight's gradient in the weight's format. It is computed apart here, in that of sums."""
    grad_x, _ = _ATEN._fused_rms_norm_backward(grad, x, weight.shape, scale, weight, [True, False])
    terms = grad.to(accumulation_dtype(x)) * x
    return grad_x if residual is None else grad_x.add_(residual), terms.mul_(scale).sum(0)


def _by_triton(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    from fourfold.fused import norm_launches

    return norm_launches.forward(x, weight, eps)


def _added_by_triton(residual: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    from fourfold.fused import norm_launches

    return norm_launches.add_forward(residual, x, weight, eps)


def _again_by_triton(x: Tensor, scale: Tensor, weight: Tensor, eps: float) -> Tensor:
    from fourfold.fused import norm_launches

    return norm_launches.again(x, scale, weight, eps)


def _backward_by_triton(
    grad: Tensor, x: Tensor, scale: Tensor, weight: Tensor, residual: Tensor | None
) -> tuple[Tensor, Tensor]:
    from fourfold.fused import norm_launches

    return norm_launches.backward(grad, x, scale, weight, residual)


def _torch_refuses(case: NormCase) -> str | None:
    if case.device.type != "cuda":
        return "it runs on CUDA"
    found = hasattr(_ATEN, "_fused_rms_norm") and hasattr(_ATEN, "_fused_rms_norm_backward")
    return None if found else "this torch has no _fused_rms_norm"


def _triton_refuses(case: NormCase) -> str | None:
    if case.device.type == "cuda" and case.width > WIDEST:
        return f"its rows have {WIDEST} numbers at most"
    return triton_refuses(case.device)


TORCH = NormBackend("torch", _by_torch, _added_by_torch, _again_by_torch, _backward_by_torch, _torch_refuses)
TRITON = NormBackend("triton", _by_triton, _added_by_triton, _again_by_triton, _backward_by_triton, _triton_refuses)
