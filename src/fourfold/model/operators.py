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
from fourfold.model.norm import apply_rms, rms_norm, rms_norm_backward
from fourfold.model.rope import rotate_
from fourfold.model.weights import BlockWeights, Weight


class QueryKeyValue(torch.autograd.Function):
    """Norm, one product for q, k and v, optional q/k norm, rotation.

    x [batch, seq, hidden] -> q [batch, seq, heads, head_dim], k and v [batch, seq, kv_heads, head_dim], and x itself, so that
    the residual's gradient comes back here and is added in place.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weights: BlockWeights, model: ModelConfig, cos: Tensor, sin: Tensor, keep: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        flat = x.reshape(-1, x.shape[-1])
        normed, scale = rms_norm(flat, weights.attention_norm.data, model.norm_eps)
        bias = weights.qkv_bias.data if weights.qkv_bias is not None else None
        qkv = F.linear(normed, weights.qkv.data, bias)
        qkv = qkv.view(*x.shape[:-1], model.num_heads + 2 * model.num_kv_heads, model.head_dim)
        rotated = qkv[..., : model.num_heads + model.num_kv_heads, :]
        ctx.unnormed = ctx.head_scale = None
        if weights.query_norm is not None and weights.key_norm is not None:
            ctx.unnormed = rotated.clone()
            gain = _head_gain(weights, model)
            output, ctx.head_scale = rms_norm(ctx.unnormed, gain, model.norm_eps)
            rotated.copy_(output)
        rotate_(rotated, cos, sin)
        ctx.x, ctx.scale, ctx.normed = x, scale, normed if keep else None
        ctx.weights, ctx.model, ctx.cos, ctx.sin = weights, model, cos, sin
        q, k, v = qkv.split((model.num_heads, model.num_kv_heads, model.num_kv_heads), dim=-2)
        return q, k, v, x

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_q: Tensor, grad_k: Tensor, grad_v: Tensor, grad_residual: Tensor
    ) -> tuple[Tensor, None, None, None, None, None]:
        model, weights = ctx.model, ctx.weights
        grad_qkv = torch.cat((grad_q, grad_k, grad_v), dim=-2)
        del grad_q, grad_k, grad_v
        rotated = grad_qkv[..., : model.num_heads + model.num_kv_heads, :]
        rotate_(rotated, ctx.cos, ctx.sin, inverse=True)
        if ctx.unnormed is not None:
            _head_norm_backward(rotated, ctx.unnormed, ctx.head_scale, weights, model)
            ctx.unnormed = None
        grad_qkv = grad_qkv.view(-1, weights.qkv.data.shape[0])
        flat = ctx.x.reshape(-1, ctx.x.shape[-1])
        normed = ctx.normed if ctx.normed is not None else apply_rms(flat, ctx.scale, weights.attention_norm.data)
        weights.qkv.add_product(grad_qkv, normed)
        if weights.qkv_bias is not None:
            weights.qkv_bias.add(grad_qkv.sum(0))
        del normed
        ctx.normed = None
        grad = grad_qkv @ weights.qkv.data
        del grad_qkv, rotated
        grad = rms_norm_backward(grad, flat, ctx.scale, weights.attention_norm).view_as(grad_residual)
        ctx.x = ctx.scale = None
        return grad.add_(grad_residual), None, None, None, None, None


def _head_gain(weights: BlockWeights, model: ModelConfig) -> Tensor:
    """The q and k norms' weights, one row a head: [heads + kv_heads, head_dim]."""
    assert weights.query_norm is not None
    assert weights.key_norm is not None
    gains = (weights.query_norm.data.expand(model.num_heads, -1), weights.key_norm.data.expand(model.num_kv_heads, -1))
    return torch.cat(gains)


def _head_norm_backward(grad: Tensor, x: Tensor, scale: Tensor, weights: BlockWeights, model: ModelConfig) -> None:
    """Backward of the q and k norms, in place on grad [batch, seq, heads + kv_heads, head_dim]."""
    heads = (model.num_heads, model.num_kv_heads)
    parts = zip(grad.split(heads, -2), x.split(heads, -2), scale.split(heads, -2), strict=True)
    for (g, part, s), weight in zip(parts, (weights.query_norm, weights.key_norm), strict=True):
        assert weight is not None
        rows = (-1, model.head_dim)
        result = rms_norm_backward(g.reshape(rows).clone(), part.reshape(rows), s.reshape(-1, 1), weight)
        g.copy_(result.view_as(g))


class OutputResidual(torch.autograd.Function):
    """residual + attention @ W^T. attention [batch, seq, heads * head_dim] -> [batch, seq, hidden]."""

    @staticmethod
    def forward(ctx: Any, attention: Tensor, residual: Tensor, weight: Weight) -> Tensor:
        ctx.attention, ctx.weight = attention, weight
        flat = attention.reshape(-1, attention.shape[-1])
        return torch.addmm(residual.reshape(-1, residual.shape[-1]), flat, weight.data.t()).view_as(residual)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        flat_grad = grad.reshape(-1, grad.shape[-1])
        ctx.weight.add_product(flat_grad, ctx.attention.reshape(-1, ctx.attention.shape[-1]))
        grad_attention = (flat_grad @ ctx.weight.data).view_as(ctx.attention)
        ctx.attention = None
        return grad_attention, grad, None


class GatedFeedForward(torch.autograd.Function):
    """x + (silu(gate) * up) @ W_down^T after a norm (SwiGLU, Shazeer 2020). x [batch, seq, hidden] -> the same."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: BlockWeights, eps: float, keep: bool) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        normed, scale = rms_norm(flat, weights.ffn_norm.data, eps)
        gate_up = F.linear(normed, weights.gate_up.data)
        ctx.normed = normed if keep else None
        del normed
        gate, up = gate_up.chunk(2, dim=-1)
        product = F.silu(gate).mul_(up)
        output = torch.addmm(flat, product, weights.down.data.t()).view_as(x)
        ctx.x, ctx.scale, ctx.weights, ctx.gate_up = x, scale, weights, gate_up
        ctx.product = product if keep else None
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        weights = ctx.weights
        flat_grad = grad.reshape(-1, grad.shape[-1])
        gate, up = ctx.gate_up.chunk(2, dim=-1)
        activated = F.silu(gate)
        product = ctx.product if ctx.product is not None else activated * up
        weights.down.add_product(flat_grad, product)
        del product
        ctx.product = None
        grad_product = flat_grad @ weights.down.data
        torch.ops.aten.silu_backward.grad_input(grad_product * up, gate, grad_input=gate)  # gate now holds its gradient
        torch.mul(grad_product, activated, out=up)  # and up its own
        del activated, grad_product
        flat = ctx.x.reshape(-1, ctx.x.shape[-1])
        normed = ctx.normed if ctx.normed is not None else apply_rms(flat, ctx.scale, weights.ffn_norm.data)
        weights.gate_up.add_product(ctx.gate_up, normed)
        del normed
        ctx.normed = None
        grad_input = ctx.gate_up @ weights.gate_up.data
        ctx.gate_up = None
        del gate, up
        grad_input = rms_norm_backward(grad_input, flat, ctx.scale, weights.ffn_norm).view_as(grad)
        ctx.x = ctx.scale = None
        return grad_input.add_(grad), None, None, None
