"""RMSNorm (Zhang & Sennrich 2019) forward and backward, as plain functions that the segments' operators call."""

import torch
from torch import Tensor

from fourfold.model.weights import Weight


def wide(x: Tensor) -> Tensor:
    """fp32 for bf16, unchanged otherwise: the format of norms, softmax and losses."""
    return x.float() if x.dtype == torch.bfloat16 else x


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x / rms(x) * weight over the last dim. x [..., n] -> (output [..., n], 1/rms [..., 1])."""
    source = wide(x)
    scale = torch.linalg.vector_norm(source, dim=-1, keepdim=True)
    scale = scale.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
    return _scaled(source, x, scale, weight), scale


def apply_rms(x: Tensor, scale: Tensor, weight: Tensor) -> Tensor:
    """The norm's output again, from its saved 1/rms."""
    return _scaled(wide(x), x, scale, weight)


def _scaled(source: Tensor, x: Tensor, scale: Tensor, weight: Tensor) -> Tensor:
    """`source`: x itself, or a converted copy of it, which is overwritten."""
    if source is x:
        return (x * scale).mul_(weight)
    return source.mul_(scale).to(x.dtype).mul_(weight)


def rms_norm_backward(grad: Tensor, x: Tensor, scale: Tensor, weight: Weight) -> Tensor:
    """The gradient of x [tokens, n]; adds the weight's own. `grad` [tokens, n] is overwritten where formats allow."""
    out_dtype = x.dtype
    grad, x = wide(grad), wide(x)
    gain = wide(weight.data)
    projected = (grad * x).mul_(scale)
    weight.add(projected.sum(0))
    mean = torch.mv(projected, gain).div_(x.shape[-1]).unsqueeze_(-1)
    del projected
    grad.mul_(gain).addcmul_(x, mean.mul_(scale), value=-1).mul_(scale)
    return grad.to(out_dtype)
