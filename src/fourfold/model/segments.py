"""The functions of a segment: hidden states in, hidden states out. They know nothing of layouts, shards or schedules."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fourfold.config import ModelConfig
from fourfold.model.context.attention import context_attention
from fourfold.model.context.flash import widen
from fourfold.model.experts.balance import Balancing
from fourfold.model.experts.feed_forward import RoutedFeedForward
from fourfold.model.latent import LatentQueryKeyValue
from fourfold.model.operators import GatedFeedForward, OutputResidual, QueryKeyValue
from fourfold.model.parallel import ALONE, ContextParallel, Parallel
from fourfold.model.plain_feed_forward import PlainFeedForward
from fourfold.model.weights import (
    AttentionWeights,
    BlockWeights,
    FeedForwardWeights,
    LatentWeights,
    PlainFeedForwardWeights,
)


@dataclass(frozen=True)
class Microbatch:
    """What segments read beside hidden states. tokens, targets [batch, seq] (-100: no loss); cos, sin [seq or batch x seq, 1,
    head_dim / 2], empty where positions are learned; document_lengths: per row the lengths of its documents, or None where
    attention may cross them; positions [batch, seq]: where each token stands in its document, None unless they are learned;
    ahead_tokens, ahead_targets [D, batch, seq]: what the D modules of multi-token prediction read, the k-th the tokens k places
    on in their document (any where there is none) and those tokens' targets (-100 where there is none)."""

    tokens: Tensor
    targets: Tensor
    cos: Tensor
    sin: Tensor
    document_lengths: Sequence[Sequence[int]] | None = None
    positions: Tensor | None = None
    ahead_tokens: Tensor | None = None
    ahead_targets: Tensor | None = None


def block_forward(
    x: Tensor,
    weights: BlockWeights,
    model: ModelConfig,
    batch: Microbatch,
    parallel: Parallel = ALONE,
    keep: bool = True,
    balancing: Balancing | None = None,
) -> Tensor:
    """One decoder block, pre-norm. x [t, hidden] -> [t, hidden]: a microbatch laid flat, or this rank's part of its
    tokens under sequence parallelism.

    `keep` False: the norms' and the gated product's outputs are not kept for backward but rebuilt there. `balancing`: what a
    router reads and records; None: nothing beside its weights.
    """
    x = _attention(x, weights.attention, model, batch, parallel, keep)
    if isinstance(weights.feed_forward, FeedForwardWeights):
        return GatedFeedForward.apply(x, weights.feed_forward, model.norm_eps, parallel, keep)
    if isinstance(weights.feed_forward, PlainFeedForwardWeights):
        return PlainFeedForward.apply(x, weights.feed_forward, model, parallel, keep)
    balancing = balancing if balancing is not None else _no_balancing(batch, parallel)
    return RoutedFeedForward.apply(x, weights.feed_forward, model, balancing, parallel, keep)


def _attention(
    x: Tensor,
    weights: AttentionWeights | LatentWeights,
    model: ModelConfig,
    batch: Microbatch,
    parallel: Parallel,
    keep: bool,
) -> Tensor:
    """The block's first half, residual included."""
    operator = LatentQueryKeyValue if isinstance(weights, LatentWeights) else QueryKeyValue
    q, k, v, residual = operator.apply(x, weights, model, batch.tokens.shape[0], batch.cos, batch.sin, parallel, keep)
    attention = attend(q, k, v, batch, parallel)
    del q, k, v
    bias = weights.output_bias if isinstance(weights, AttentionWeights) else None
    return OutputResidual.apply(attention, residual, weights.output, parallel, bias)


def _no_balancing(batch: Microbatch, parallel: Parallel) -> Balancing:
    """As if the microbatch were the whole global batch, and its sequences whole on the ranks of `tp`."""
    sequences, length = batch.tokens.shape
    return Balancing(sequences, length, sequences, () if parallel.tp is None else (parallel.tp,))


def attend(q: Tensor, k: Tensor, v: Tensor, batch: Microbatch, parallel: Parallel) -> Tensor:
    """Causal attention of this rank's positions. q [batch, seq, heads, dim], k [batch, seq, kv_heads, dim], v the same with any
    head size -> [batch, seq, heads * value head size]."""
    if parallel.context is None and q.shape[-1] == v.shape[-1]:
        return causal_attention(q, k, v, batch.document_lengths)
    return context_attention(q, k, v, parallel.context or ContextParallel(), batch.document_lengths)


def causal_attention(q: Tensor, k: Tensor, v: Tensor, document_lengths: Sequence[Sequence[int]] | None) -> Tensor:
    """Causal attention within each document. q [batch, seq, heads, dim], k [batch, seq, kv_heads, dim], v the same with
    any head size -> [batch, seq, heads * value head size]. One call a document, so the work is exact and no mask exists."""
    if document_lengths is None:
        return _attend(q, k, v).flatten(2)
    rows: list[Tensor] = []
    for row_q, row_k, row_v, lengths in zip(q.split(1), k.split(1), v.split(1), document_lengths, strict=True):
        sizes = list(lengths)
        parts = zip(row_q.split(sizes, 1), row_k.split(sizes, 1), row_v.split(sizes, 1), strict=True)
        rows.extend(_attend(*part) for part in parts)
    return torch.cat(rows, dim=1).flatten(2).view(*q.shape[:2], -1)


def _attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    width = max(q.shape[-1], v.shape[-1])  # kernels want one
    out = F.scaled_dot_product_attention(
        widen(q, width).transpose(1, 2),
        widen(k, width).transpose(1, 2),
        widen(v, width).transpose(1, 2),
        is_causal=True,
        scale=q.shape[-1] ** -0.5,
        enable_gqa=q.shape[2] != k.shape[2],
    )
    return out.transpose(1, 2)[..., : v.shape[-1]]
