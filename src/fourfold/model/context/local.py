"""Causal attention of whole sequences on one rank, document by document."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fourfold.model.context.flash import kernel_width, widen
from fourfold.model.context.partial import Saved, own_gradients, own_output
from fourfold.model.context.pieces import Piece


class LocalAttention(torch.autograd.Function):
    """q [batch, seq, heads, head_dim], k [batch, seq, kv_heads, head_dim], v [batch, seq, kv_heads, value_dim]
    -> [batch, seq, heads * value_dim]. Keeps q, k, v, the output and its log-sum-exp."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, pieces: Sequence[Piece], scale: float) -> Tensor:
        width = kernel_width(q, v)
        out, ctx.lse = own_output(widen(q, width), widen(k, width), widen(v, width), pieces, scale, q.dtype)
        out = out[..., : v.shape[-1]].contiguous()
        ctx.inputs, ctx.out, ctx.pieces, ctx.scale = (q, k, v), out, pieces, scale
        return out.view(*out.shape[:2], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        (q, k, v), pieces = ctx.inputs, ctx.pieces
        width = kernel_width(q, v)
        grad = grad.view_as(ctx.out)
        saved = Saved(widen(grad, width), widen(q, width), widen(ctx.out, width), ctx.lse, ctx.scale)
        d_q, d_k, d_v = own_gradients(saved, widen(k, width), widen(v, width), pieces, q.dtype)
        ctx.inputs = ctx.out = ctx.lse = None
        return d_q[..., : q.shape[-1]], d_k[..., : k.shape[-1]], d_v[..., : v.shape[-1]], None, None
