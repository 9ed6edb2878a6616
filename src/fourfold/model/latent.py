"""Multi-head latent attention's projections (DeepSeek-V2, Liu et al. 2024, section 2.1) as one differentiable operator.

Queries, keys and values come from low-rank latents, which every rank of `tp` computes of its own tokens; under sequence
parallelism the normed latents are brought together, not the hidden states. Symbols: T tokens of a microbatch, t those whose
hidden states this rank has, c query_rank, r key_value_rank, d rope_head_dim; heads are this rank's.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from fourfold.config import ModelConfig
from fourfold.model.norm import apply_rms, rms_norm, rms_norm_backward
from fourfold.model.parallel import Parallel
from fourfold.model.rope import rotate_
from fourfold.model.tensor_parallel import ColumnInput, gather_tokens, sum_partial
from fourfold.model.weights import LatentWeights, Weight
from fourfold.model.yarn import score_scale

LATENT_NORM_EPS = 1e-6
"""Of the latents' norms, in the released models and in transformers whatever the blocks' `norm_eps`."""


class LatentQueryKeyValue(torch.autograd.Function):
    """Norm, projection to latents, their norms, projection to heads, rotation of the part of each head that has positions.

    x [t, hidden] -> q and k [batch, seq, heads, nope_head_dim + rope_head_dim], v [batch, seq, heads, value_head_dim], and x
    itself, so that the residual's gradient comes back here. `sequences`: batch. cos, sin [seq or batch x seq, 1, d / 2]. With
    `rope_interleave` pairs are neighbours and stay where they are, in q and k alike, so that scores are those of
    transformers, which sorts them apart. YaRN's factor of the scores is in q.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weights: LatentWeights,
        model: ModelConfig,
        sequences: int,
        cos: Tensor,
        sin: Tensor,
        parallel: Parallel,
        keep: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        normed, ctx.scale = rms_norm(x, weights.norm.data, model.norm_eps)
        query, key_value, rope_key = _latents(normed, weights)
        parts = (key_value.rebuild(), rope_key, query.rebuild() if query is not None else normed)
        latent, rope_key, query_input = _gather(parts, parallel)
        ctx.normed = normed if keep else None
        del normed, parts
        if not keep:
            key_value.forget()
            if query is not None:
                query.forget()
        q = _heads(query_input, weights.query_up, sequences, model.head_dim)
        del query_input
        rotate_pairs_(q[..., model.nope_head_dim :], cos, sin, model.rope_interleave)
        if score_scale(model) != 1:
            q.mul_(score_scale(model))
        k, v = _keys_and_values(latent, rope_key, weights, sequences, cos, sin, model)
        ctx.x, ctx.query, ctx.key_value, ctx.weights, ctx.model = x, query, key_value, weights, model
        ctx.cos, ctx.sin, ctx.parallel = cos, sin, parallel
        return q, k, v, x

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_q: Tensor, grad_k: Tensor, grad_v: Tensor, grad_residual: Tensor
    ) -> tuple[Tensor | None, ...]:
        weights, parallel, query, key_value = ctx.weights, ctx.parallel, ctx.query, ctx.key_value
        ctx.query = ctx.key_value = None
        grad_query, grad_key_value, grad_rope_key = _heads_backward(grad_q, grad_k, grad_v, ctx)
        del grad_q, grad_k, grad_v
        normed = ctx.normed if ctx.normed is not None else apply_rms(ctx.x, ctx.scale, weights.norm.data)
        ctx.normed = None
        inputs = ColumnInput(weights.query_up, query.rebuild() if query is not None else normed, parallel)
        latents = ColumnInput(weights.key_value_up, key_value.rebuild(), parallel)
        parts = [grad_key_value @ weights.key_value_up.data, grad_rope_key, grad_query @ weights.query_up.data]
        widths = [part.shape[1] for part in parts]
        summed = sum_partial(torch.cat(parts, dim=1), parallel)
        del parts, grad_rope_key
        inputs.add_product(grad_query)
        latents.add_product(grad_key_value)
        del inputs, latents, grad_query, grad_key_value
        grad_latent, grad_rope_key, grad_input = summed.wait().split(widths, dim=1)
        del summed
        grad_down = torch.cat((key_value.backward(grad_latent), grad_rope_key), dim=1)
        del grad_latent, grad_rope_key
        grad = _project_backward(grad_down, weights.key_value_down, normed)
        del grad_down
        if query is not None:
            grad_input = _project_backward(query.backward(grad_input), weights.query_down, normed)
        grad.add_(grad_input)
        del normed, grad_input, query, key_value
        grad_x = rms_norm_backward(grad, ctx.x, ctx.scale, weights.norm)
        ctx.x = ctx.scale = None
        return grad_x.add_(grad_residual), None, None, None, None, None, None, None


class _Latent:
    """A latent [t, rank] and its norm: what the backward needs are the latent, 1/rms [t, 1] and, unless it is rebuilt, the norm's
    output [t, rank]."""

    def __init__(self, latent: Tensor, norm: Weight) -> None:
        self._latent, self._norm = latent, norm
        self.normed: Tensor | None
        self.normed, self._scale = rms_norm(latent, norm.data, LATENT_NORM_EPS)

    def forget(self) -> None:
        self.normed = None

    def rebuild(self) -> Tensor:
        if self.normed is not None:
            return self.normed
        return apply_rms(self._latent, self._scale, self._norm.data)

    def backward(self, grad: Tensor) -> Tensor:
        """The latent's gradient from that of the norm's output, both [t, rank]; adds the norm's own."""
        return rms_norm_backward(grad, self._latent, self._scale, self._norm)


def _latents(x: Tensor, weights: LatentWeights) -> tuple[_Latent | None, _Latent, Tensor]:
    """x [t, hidden] -> the queries' latent, if any, that of keys and values, and the keys' shared part [t, d] before rotation."""
    rank = weights.key_value_norm.data.shape[0]
    down = F.linear(x, weights.key_value_down.data)
    key_value, rope_key = _Latent(down[:, :rank], weights.key_value_norm), down[:, rank:]
    if weights.query_down is None or weights.query_norm is None:
        return None, key_value, rope_key
    return _Latent(F.linear(x, weights.query_down.data), weights.query_norm), key_value, rope_key


def _project_backward(grad: Tensor, down: Weight, x: Tensor) -> Tensor:
    """grad [t, rows] of x [t, hidden] @ down^T -> the gradient of x; adds the weight's."""
    down.add_product(grad, x)
    return grad @ down.data


def _gather(parts: tuple[Tensor, ...], parallel: Parallel) -> Sequence[Tensor]:
    """All tokens' latents, each [t, ...] -> [T, ...], in one collective."""
    if parallel.tp is None or not parallel.sequence:
        return parts
    whole = gather_tokens(torch.cat(parts, dim=1), parallel).wait()
    return whole.split([part.shape[1] for part in parts], dim=1)


def _heads(x: Tensor, up: Weight, sequences: int, width: int) -> Tensor:
    return F.linear(x, up.data).view(sequences, -1, up.data.shape[0] // width, width)


def _keys_and_values(
    latent: Tensor,
    rope_key: Tensor,
    weights: LatentWeights,
    sequences: int,
    cos: Tensor,
    sin: Tensor,
    model: ModelConfig,
) -> tuple[Tensor, Tensor]:
    """latent [T, r], rope_key [T, d] -> k [batch, seq, heads, nope + d], v [batch, seq, heads, value]."""
    widths = (model.nope_head_dim, model.value_head_dim)
    key, value = _heads(latent, weights.key_value_up, sequences, sum(widths)).split(widths, dim=-1)
    shared = rope_key.reshape(*key.shape[:2], 1, -1).clone()
    rotate_pairs_(shared, cos, sin, model.rope_interleave)
    return torch.cat((key, shared.expand(*key.shape[:3], -1)), dim=-1), value.contiguous()


def _heads_backward(grad_q: Tensor, grad_k: Tensor, grad_v: Tensor, ctx: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of both up projections' outputs [T, heads x ...] and of the shared key [T, d], the last over this rank's heads."""
    model, nope = ctx.model, ctx.model.nope_head_dim
    grad_query = grad_q.clone(memory_format=torch.contiguous_format)
    if score_scale(model) != 1:
        grad_query.mul_(score_scale(model))
    rotate_pairs_(grad_query[..., nope:], ctx.cos, ctx.sin, model.rope_interleave, inverse=True)
    grad_rope_key = grad_k[..., nope:].sum(-2, keepdim=True)
    rotate_pairs_(grad_rope_key, ctx.cos, ctx.sin, model.rope_interleave, inverse=True)
    grad_key_value = torch.cat((grad_k[..., :nope], grad_v), dim=-1)
    tokens = grad_q.shape[0] * grad_q.shape[1]
    return grad_query.view(tokens, -1), grad_key_value.view(tokens, -1), grad_rope_key.view(tokens, -1)


def rotate_pairs_(x: Tensor, cos: Tensor, sin: Tensor, interleave: bool, inverse: bool = False) -> None:
    """Rotates x [batch, seq, heads, d] in place, each pair where it stands: neighbours, or half of d apart."""
    if not interleave:
        rotate_(x, cos, sin, inverse)
        return
    first, second = x[..., 0::2], x[..., 1::2]
    sign = -1 if inverse else 1
    carried = first * sin
    first.mul_(cos).addcmul_(second, sin, value=-sign)
    second.mul_(cos).add_(carried, alpha=sign)
