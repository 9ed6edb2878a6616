"""RMSNorm (Zhang & Sennrich 2019) and LayerNorm (Ba et al. 2016), forward and backward, as plain functions for the operators."""

from typing import Protocol

import torch
from torch import Tensor

from fourfold.model.weights import Weight

Statistics = tuple[Tensor, ...]
"""What a norm keeps of each token for backward: (1/rms [..., 1],), or of a LayerNorm (mean, 1/deviation)."""


class Normed(Protocol):
    """What has a norm: its weight [n], and where it is a LayerNorm its bias [n]."""

    @property
    def norm(self) -> Weight: ...
    @property
    def norm_bias(self) -> Weight | None: ...


def normalize(x: Tensor, weights: Normed, eps: float) -> tuple[Tensor, Statistics]:
    """RMSNorm, or LayerNorm where there is a bias. x [..., n] -> (output [..., n], statistics)."""
    if weights.norm_bias is not None:
        return layer_norm(x, weights.norm.data, weights.norm_bias.data, eps)
    out, scale = rms_norm(x, weights.norm.data, eps)
    return out, (scale,)


def normalize_again(x: Tensor, statistics: Statistics, weights: Normed, eps: float) -> Tensor:
    """The norm's output again, to the bit."""
    if weights.norm_bias is not None:
        return layer_norm(x, weights.norm.data, weights.norm_bias.data, eps)[0]
    return apply_rms(x, statistics[0], weights.norm.data)


def normalize_backward(grad: Tensor, x: Tensor, statistics: Statistics, weights: Normed) -> Tensor:
    """The gradient of x [tokens, n]; adds those of weight and bias. `grad` [tokens, n] may be overwritten."""
    if weights.norm_bias is not None:
        return layer_norm_backward(grad, x, statistics, weights.norm, weights.norm_bias)
    return rms_norm_backward(grad, x, statistics[0], weights.norm)


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


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Statistics]:
    """(x - mean(x)) / deviation(x) * weight + bias over the last dim. x [..., n] -> (output [..., n], two of [..., 1])."""
    out, mean, scale = torch.native_layer_norm(wide(x), x.shape[-1:], wide(weight), wide(bias), eps)
    return out.to(x.dtype), (mean, scale)


def layer_norm_backward(grad: Tensor, x: Tensor, statistics: Statistics, weight: Weight, bias: Weight) -> Tensor:
    """The gradient of x [tokens, n]; adds those of weight and bias. `grad` [tokens, n] stays as it is."""
    mean, scale = statistics
    grad_x, grad_weight, grad_bias = torch.ops.aten.native_layer_norm_backward(
        wide(grad), wide(x), x.shape[-1:], mean, scale, wide(weight.data), wide(bias.data), [True, True, True]
    )
    weight.add(grad_weight)
    bias.add(grad_bias)
    return grad_x.to(x.dtype)
