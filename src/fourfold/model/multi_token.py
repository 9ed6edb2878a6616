"""Modules of multi-token prediction (DeepSeek-V3, 2024, section 2.2), each one a block on a hidden state and an embedding ahead.

h'_i = W [norm_e(Emb(t_{i+k})); norm_h(h^{k-1}_i)],  h^k = block(h')       (equations 21 and 22; in the released weights' order)

Symbols: t tokens whose hidden states this rank has. Between the last block and the head the hidden states of all depths travel
together: the k-th module takes [k t, hidden], which is h^0 .. h^{k-1} one after the other, and appends h^k.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from fourfold.config import ModelConfig
from fourfold.model.embedding import embedding_backward, embedding_forward
from fourfold.model.experts.balance import Balancing
from fourfold.model.norm import apply_rms, rms_norm, rms_norm_backward
from fourfold.model.parallel import ALONE, Parallel
from fourfold.model.segments import Microbatch, block_forward
from fourfold.model.weights import ModuleWeights


def module_forward(
    x: Tensor,
    weights: ModuleWeights,
    model: ModelConfig,
    batch: Microbatch,
    depth: int,
    parallel: Parallel = ALONE,
    keep: bool = True,
    balancing: Balancing | None = None,
) -> Tensor:
    """The module of `depth` k, from 1. x [k t, hidden] -> [(k + 1) t, hidden]. The rest as in `block_forward`."""
    assert batch.ahead_tokens is not None
    combined, x = Combine.apply(x, batch.ahead_tokens[depth - 1], weights, model, depth, parallel, keep)
    return Append.apply(x, block_forward(combined, weights.block, model, batch, parallel, keep, balancing))


class Combine(torch.autograd.Function):
    """x [k t, hidden], tokens [batch, seq] -> the module's input to its block [t, hidden], and x itself, so that the gradient of
    what goes on unchanged comes back here. `keep` False: the norms' outputs are rebuilt in backward."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        tokens: Tensor,
        weights: ModuleWeights,
        model: ModelConfig,
        depth: int,
        parallel: Parallel,
        keep: bool,
    ) -> tuple[Tensor, Tensor]:
        embedded = embedding_forward(tokens, weights.embedding, parallel)
        both = x.new_empty(embedded.shape[0], 2 * embedded.shape[1])
        halves = both.chunk(2, dim=1)
        normed, ctx.embedding_scale = rms_norm(embedded, weights.embedding_norm.data, model.norm_eps)
        halves[0].copy_(normed)
        del normed
        normed, ctx.hidden_scale = rms_norm(_last(x, depth), weights.hidden_norm.data, model.norm_eps)
        halves[1].copy_(normed)
        del normed
        ctx.x, ctx.tokens, ctx.embedded, ctx.both = x, tokens, embedded, both if keep else None
        ctx.weights, ctx.depth, ctx.parallel = weights, depth, parallel
        return F.linear(both, weights.projection.data), x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, grad_on: Tensor) -> tuple[Tensor | None, ...]:
        weights, width = ctx.weights, grad.shape[1]
        last = _last(ctx.x, ctx.depth)
        both = ctx.both
        if both is None:
            both = grad.new_empty(grad.shape[0], 2 * width)
            halves = both.chunk(2, dim=1)
            halves[0].copy_(apply_rms(ctx.embedded, ctx.embedding_scale, weights.embedding_norm.data))
            halves[1].copy_(apply_rms(last, ctx.hidden_scale, weights.hidden_norm.data))
        ctx.both = None
        weights.projection.add_product(grad, both)
        del both
        columns = weights.projection.data.chunk(2, dim=1)
        grad_embedded = rms_norm_backward(grad @ columns[0], ctx.embedded, ctx.embedding_scale, weights.embedding_norm)
        ctx.embedded = ctx.embedding_scale = None
        embedding_backward(ctx.tokens, grad_embedded, weights.embedding, ctx.parallel)
        del grad_embedded
        grad_last = rms_norm_backward(grad @ columns[1], last, ctx.hidden_scale, weights.hidden_norm)
        ctx.x = ctx.hidden_scale = None
        grad_x = grad_on.clone()
        _last(grad_x, ctx.depth).add_(grad_last)
        return grad_x, None, None, None, None, None, None


class Append(torch.autograd.Function):
    """x [k t, hidden] and the new hidden states [t, hidden], one after the other."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, new: Tensor) -> Tensor:
        ctx.rows = x.shape[0]
        return torch.cat((x, new))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        return grad[: ctx.rows], grad[ctx.rows :]


def _last(x: Tensor, depth: int) -> Tensor:
    """h^{k-1} of x [k t, hidden]."""
    return x.chunk(depth)[-1]
