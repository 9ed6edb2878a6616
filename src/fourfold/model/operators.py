"""The differentiable operators of a block: each saves the least its backward needs and adds weight gradients in place.

Written as whole halves of a block, so that what is kept for backward is exactly what `footprint.py` declares. `keep` False is the
selective recompute policy: the norms' and the gated product's outputs, cheap to rebuild, are rebuilt in backward.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from fourfold.config import ModelConfig
from fourfold.model.norm import Normed, normalize, normalize_again, normalize_backward, rms_norm, rms_norm_backward
from fourfold.model.parallel import Parallel
from fourfold.model.rope import rotate_
from fourfold.model.tensor_parallel import ColumnInput, gather_tokens, sum_partial
from fourfold.model.weights import AttentionWeights, FeedForwardWeights, Weight


class QueryKeyValue(torch.autograd.Function):
    """Norm, one product for q, k and v, optional q/k norm, rotation unless positions are learned.

    x [t, hidden] -> q [batch, seq, heads, head_dim], k and v [batch, seq, kv_heads, head_dim], and x itself, so that the
    residual's gradient comes back here and is added in place. `sequences`: batch. Heads are this rank's.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weights: AttentionWeights,
        model: ModelConfig,
        sequences: int,
        cos: Tensor,
        sin: Tensor,
        parallel: Parallel,
        keep: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        normed, statistics = normalize(x, weights, model.norm_eps)
        bias = weights.qkv_bias.data if weights.qkv_bias is not None else None
        qkv = F.linear(gather_tokens(normed, parallel).wait(), weights.qkv.data, bias)
        heads, kv_heads = local_heads(weights, model)
        qkv = qkv.view(sequences, -1, heads + 2 * kv_heads, model.head_dim)
        rotated = qkv[..., : heads + kv_heads, :]
        ctx.unnormed = ctx.head_scale = None
        if weights.query_norm is not None and weights.key_norm is not None:
            ctx.unnormed = rotated.clone()
            gain = _head_gain(weights, model)
            output, ctx.head_scale = rms_norm(ctx.unnormed, gain, model.norm_eps)
            rotated.copy_(output)
        if model.positions == "rope":
            rotate_(rotated, cos, sin)
        ctx.x, ctx.statistics, ctx.normed = x, statistics, normed if keep else None
        ctx.weights, ctx.model, ctx.cos, ctx.sin, ctx.parallel = weights, model, cos, sin, parallel
        q, k, v = qkv.split((heads, kv_heads, kv_heads), dim=-2)
        return q, k, v, x

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_q: Tensor, grad_k: Tensor, grad_v: Tensor, grad_residual: Tensor
    ) -> tuple[Tensor | None, ...]:
        model, weights = ctx.model, ctx.weights
        grad_qkv = torch.cat((grad_q, grad_k, grad_v), dim=-2)
        del grad_q, grad_k, grad_v
        heads, kv_heads = local_heads(weights, model)
        rotated = grad_qkv[..., : heads + kv_heads, :]
        if model.positions == "rope":
            rotate_(rotated, ctx.cos, ctx.sin, inverse=True)
        if ctx.unnormed is not None:
            _head_norm_backward(rotated, ctx.unnormed, ctx.head_scale, weights, model)
            ctx.unnormed = None
        ctx.grad_product = grad_qkv.view(-1, weights.qkv.data.shape[0])
        del grad_qkv, rotated
        grad_x = norm_product_backward(ctx, weights, weights.qkv, model.norm_eps, weights.qkv_bias)
        return grad_x.add_(grad_residual), None, None, None, None, None, None, None


def norm_product_backward(ctx: Any, norm: Normed, weight: Weight, eps: float, bias: Weight | None = None) -> Tensor:
    """Backward of norm(x) @ W^T + bias: the gradient of x [t, hidden], those of the weights added in place.

    Takes `x`, `statistics`, `normed` (None: rebuilt) and `grad_product` [T, out] away from `ctx`, each as soon as it is done with.
    """
    normed = ctx.normed
    if normed is None:
        normed = normalize_again(ctx.x, ctx.statistics, norm, eps)
    ctx.normed = None
    inputs = ColumnInput(weight, normed, ctx.parallel)
    del normed
    grad = sum_partial(ctx.grad_product @ weight.data, ctx.parallel)
    inputs.add_product(ctx.grad_product)
    add_bias(bias, ctx.grad_product)
    del inputs
    ctx.grad_product = None
    grad_x = normalize_backward(grad.wait(), ctx.x, ctx.statistics, norm)
    ctx.x = ctx.statistics = None
    return grad_x


def local_heads(weights: AttentionWeights, model: ModelConfig) -> tuple[int, int]:
    """(query heads, key and value heads) that this rank holds."""
    heads = weights.output.data.shape[1] // model.head_dim
    return heads, (weights.qkv.data.shape[0] // model.head_dim - heads) // 2


def _head_gain(weights: AttentionWeights, model: ModelConfig) -> Tensor:
    """The q and k norms' weights, one row a head: [heads + kv_heads, head_dim]."""
    assert weights.query_norm is not None
    assert weights.key_norm is not None
    heads, kv_heads = local_heads(weights, model)
    return torch.cat((weights.query_norm.data.expand(heads, -1), weights.key_norm.data.expand(kv_heads, -1)))


def _head_norm_backward(grad: Tensor, x: Tensor, scale: Tensor, weights: AttentionWeights, model: ModelConfig) -> None:
    """Backward of the q and k norms, in place on grad [batch, seq, heads + kv_heads, head_dim]."""
    heads = local_heads(weights, model)
    parts = zip(grad.split(heads, -2), x.split(heads, -2), scale.split(heads, -2), strict=True)
    for (g, part, s), weight in zip(parts, (weights.query_norm, weights.key_norm), strict=True):
        assert weight is not None
        rows = (-1, model.head_dim)
        result = rms_norm_backward(g.reshape(rows), part.reshape(rows), s.reshape(-1, 1), weight)
        g.copy_(result.view_as(g))


class OutputResidual(torch.autograd.Function):
    """residual + attention @ W^T + bias, if any. attention [batch, seq, heads * value size], residual [t, hidden] -> the same."""

    @staticmethod
    def forward(
        ctx: Any,
        attention: Tensor,
        residual: Tensor,
        weight: Weight,
        parallel: Parallel,
        bias: Weight | None = None,
    ) -> Tensor:
        ctx.attention = attention.detach()  # a weight product that is put off holds no graph
        ctx.weight, ctx.bias, ctx.parallel = weight, bias, parallel
        return row_product(attention.view(-1, attention.shape[-1]), weight, residual, parallel, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        arriving = gather_tokens(grad, ctx.parallel)
        add_bias(ctx.bias, grad)
        whole = arriving.wait()
        ctx.weight.add_product(whole, ctx.attention.view(-1, ctx.attention.shape[-1]))
        grad_attention = (whole @ ctx.weight.data).view_as(ctx.attention)
        ctx.attention = None
        return grad_attention, grad, None, None, None


def row_product(x: Tensor, weight: Weight, residual: Tensor, parallel: Parallel, bias: Weight | None = None) -> Tensor:
    """residual + bias + the sum over `tp` of x @ W^T. x [T, in], residual [t, out], bias [out] -> [t, out]."""
    if parallel.tp is None:
        out = torch.addmm(residual, x, weight.data.t())
    else:
        out = sum_partial(x @ weight.data.t(), parallel).wait().add_(residual)
    return out if bias is None else out.add_(bias.data)


def add_bias(bias: Weight | None, grad: Tensor) -> None:
    """Adds a bias's gradient, at once: the sum of grad [tokens, out] over tokens."""
    if bias is not None:
        bias.add(grad.sum(0, dtype=bias.grad.dtype))


class GatedFeedForward(torch.autograd.Function):
    """x + (silu(gate) * up) @ W_down^T after a norm (SwiGLU, Shazeer 2020). x [t, hidden] -> the same."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: FeedForwardWeights, eps: float, parallel: Parallel, keep: bool) -> Tensor:
        normed, statistics = normalize(x, weights, eps)
        gate_up = F.linear(gather_tokens(normed, parallel).wait(), weights.gate_up.data)
        ctx.normed = normed if keep else None
        del normed
        gate, up = gate_up.chunk(2, dim=-1)
        product = F.silu(gate).mul_(up)
        ctx.x, ctx.statistics, ctx.weights, ctx.gate_up, ctx.parallel = x, statistics, weights, gate_up, parallel
        ctx.eps = eps
        ctx.product = product if keep else None
        return row_product(product, weights.down, x, parallel)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        weights = ctx.weights
        arriving = gather_tokens(grad, ctx.parallel)
        gate, up = ctx.gate_up.chunk(2, dim=-1)
        activated = F.silu(gate)
        product = ctx.product if ctx.product is not None else activated * up
        whole = arriving.wait()
        weights.down.add_product(whole, product)
        del product, arriving
        ctx.product = None
        grad_product = whole @ weights.down.data
        del whole
        torch.ops.aten.silu_backward.grad_input(grad_product * up, gate, grad_input=gate)  # gate now holds its gradient
        torch.mul(grad_product, activated, out=up)  # and up its own
        del activated, grad_product, gate, up
        ctx.grad_product, ctx.gate_up = ctx.gate_up, None
        grad_x = norm_product_backward(ctx, weights, weights.gate_up, ctx.eps)
        return grad_x.add_(grad), None, None, None, None
