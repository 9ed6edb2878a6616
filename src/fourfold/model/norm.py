"""RMSNorm (Zhang & Sennrich 2019) and LayerNorm (Ba et al. 2016), forward and backward."""

from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from fourfold.model.operations import Array, Operations
from fourfold.model.parameter import Declared, Parameters, ParameterSpec, bias
from fourfold.model.weights import Weight

T = TypeVar("T")

Statistics = tuple[Array, ...]
"""Statistics of each token that a norm keeps for backward: (1/rms [..., 1],), for a LayerNorm (mean, 1/deviation)."""


@dataclass(frozen=True)
class NormParameters(Parameters[T]):
    """A norm's weight [n], and where it is a LayerNorm its bias [n]."""

    weight: T
    bias: T | None = None


@dataclass(frozen=True)
class Norm:
    """A norm over the last dim. `kind`: RMSNorm, or LayerNorm, with mean and bias. `gain_is_one_plus`: its weight w stands for 1 +
    w, and is zero at the start (Gemma)."""

    kind: Literal["rms", "layer"] = "rms"
    eps: float = 1e-5
    gain_is_one_plus: bool = False

    def declare(self, name: str, width: int, **rule: Any) -> NormParameters[Declared]:
        """`rule`: of sharding, where it is not that of the residual stream."""
        weight = ParameterSpec(f"{name}.weight", (width,), 0.0 if self.gain_is_one_plus else None, False, None)
        weight = replace(weight, **({"summed": "sequence"} | rule))
        return NormParameters(weight, bias(f"{name}.bias", width) if self.kind == "layer" else None)

    def gain(self, weight: Weight) -> Array:
        """The factor [n] of what is normed."""
        return weight.data + 1 if self.gain_is_one_plus else weight.data


def normalize(
    ops: Operations, norm: Norm, x: Array, w: NormParameters[Weight], residual: Array | None = None
) -> tuple[Array, Statistics]:
    """x [..., n] -> (output [..., n], statistics). `residual` [tokens, n]: is first added to x, in its place."""
    with ops.fused("norm"):
        if residual is not None and ops.norms is not None and w.bias is None:
            out, scale = ops.norms.add_forward(residual, x, norm.gain(w.weight), norm.eps)
            return out, (scale,)
        if residual is not None:
            x.add_(residual)
        if w.bias is not None:
            return layer_norm(ops, x, w.weight.data, w.bias.data, norm.eps)
        out, scale = rms_norm(ops, x, norm.gain(w.weight), norm.eps)
        return out, (scale,)


def normalize_again(ops: Operations, norm: Norm, x: Array, statistics: Statistics, w: NormParameters[Weight]) -> Array:
    """The norm's output again, to the bit."""
    with ops.fused("norm"):
        if w.bias is not None:
            return layer_norm(ops, x, w.weight.data, w.bias.data, norm.eps)[0]
        return apply_rms(ops, x, statistics[0], norm.gain(w.weight), norm.eps)


def normalize_backward(
    ops: Operations,
    norm: Norm,
    grad: Array,
    x: Array,
    statistics: Statistics,
    w: NormParameters[Weight],
    residual: Array | None = None,
) -> Array:
    """The gradient of x [tokens, n] + `residual` [tokens, n]; adds those of weight and bias. `grad` [tokens, n] may be
    overwritten."""
    if w.bias is None:
        return rms_norm_backward(ops, grad, x, statistics[0], w.weight, residual, norm.gain(w.weight))
    grad_x = layer_norm_backward(ops, grad, x, statistics, w.weight, w.bias)
    return grad_x if residual is None else grad_x.add_(residual)


def rms_norm(ops: Operations, x: Array, weight: Array, eps: float) -> tuple[Array, Array]:
    """x / rms(x) * weight over the last dim. x [..., n], weight [n], or [heads, n] where heads have their own -> (output [..., n],
    1/rms [..., 1])."""
    if ops.norms is not None and len(weight.shape) == 1:
        return ops.norms.forward(x, weight, eps)
    source = ops.upcast(x)
    scale = ops.vector_norm(source)
    scale = scale.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
    return _scaled(source, x, scale, weight), scale


def apply_rms(ops: Operations, x: Array, scale: Array, weight: Array, eps: float) -> Array:
    """The norm's output again, to the bit, from its saved 1/rms."""
    if ops.norms is not None:
        return ops.norms.again(x, scale, weight, eps)
    return _scaled(ops.upcast(x), x, scale, weight)


def _scaled(source: Array, x: Array, scale: Array, weight: Array) -> Array:
    """`source`: x itself, or a converted copy of it, which is overwritten."""
    if source is x:
        return (x * scale).mul_(weight)
    return source.mul_(scale).to(x.dtype).mul_(weight)


def rms_norm_backward(
    ops: Operations,
    grad: Array,
    x: Array,
    scale: Array,
    weight: Weight,
    residual: Array | None = None,
    gain: Array | None = None,
) -> Array:
    """The gradient of x [tokens, n] + `residual` [tokens, n]; adds the weight's own. `grad` [tokens, n] is
    overwritten where formats allow. `gain` [n]: where it is not the weight itself."""
    if gain is None:
        gain = weight.data
    if ops.norms is not None:
        grad_x, grad_weight = ops.norms.backward(grad, x, scale, gain, residual)
        weight.add(grad_weight)
        return grad_x
    out_dtype = x.dtype
    grad, x = ops.upcast(grad), ops.upcast(x)
    gain = ops.upcast(gain)
    projected = (grad * x).mul_(scale)
    weight.add(projected.sum(0))
    mean = ops.weighted_rows(projected, gain).div_(x.shape[-1])
    del projected
    grad.mul_(gain).addcmul_(x, mean.mul_(scale), value=-1).mul_(scale)
    grad_x = grad.to(out_dtype)
    return grad_x if residual is None else grad_x.add_(residual)


def layer_norm(ops: Operations, x: Array, weight: Array, bias: Array, eps: float) -> tuple[Array, Statistics]:
    """(x - mean(x)) / deviation(x) * weight + bias over the last dim. x [..., n] -> (output [..., n], two of [..., 1])."""
    out, mean, scale = ops.layer_norm(ops.upcast(x), ops.upcast(weight), ops.upcast(bias), eps)
    return out.to(x.dtype), (mean, scale)


def layer_norm_backward(
    ops: Operations, grad: Array, x: Array, statistics: Statistics, weight: Weight, bias: Weight
) -> Array:
    """The gradient of x [tokens, n]; adds those of weight and bias. `grad` [tokens, n] stays as it is."""
    mean, scale = statistics
    grad_x, grad_weight, grad_bias = ops.layer_norm_backward(
        ops.upcast(grad), ops.upcast(x), mean, scale, ops.upcast(weight.data), ops.upcast(bias.data)
    )
    weight.add(grad_weight)
    bias.add(grad_bias)
    return grad_x.to(x.dtype)
