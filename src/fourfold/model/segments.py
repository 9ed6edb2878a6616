"""The functions of a segment: hidden states in, hidden states out. They know nothing of layouts, shards or schedules."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fourfold.config import ModelConfig
from fourfold.model.operators import GatedFeedForward, OutputResidual, QueryKeyValue
from fourfold.model.parallel import ALONE, Parallel
from fourfold.model.tensor_parallel import gather_tokens, sum_partial
from fourfold.model.weights import (
    AttentionWeights,
    BlockWeights,
    FeedForwardWeights,
    LatentWeights,
    RoutedWeights,
    Weight,
)


@dataclass(frozen=True)
class Microbatch:
    """What segments read beside hidden states. tokens, targets [batch, seq] (-100: no loss); cos, sin [seq or batch x seq, 1,
    head_dim / 2]; document_lengths: per row the lengths of its documents, or None where attention may cross them."""

    tokens: Tensor
    targets: Tensor
    cos: Tensor
    sin: Tensor
    document_lengths: Sequence[Sequence[int]] | None = None


def embedding_forward(tokens: Tensor, weight: Weight, parallel: Parallel = ALONE) -> Tensor:
    """tokens [batch, seq] -> hidden [t, hidden]. Of a table split by rows each rank gives its tokens' rows and zeros for others."""
    rows, elsewhere = _local_rows(tokens, weight, parallel)
    out = F.embedding(rows, weight.data)
    return out if elsewhere is None else sum_partial(out.masked_fill_(elsewhere, 0), parallel).wait()


def embedding_backward(tokens: Tensor, grad: Tensor, weight: Weight, parallel: Parallel = ALONE) -> None:
    """Adds the table's gradient. tokens [batch, seq], grad [t, hidden]."""
    arriving = gather_tokens(grad, parallel)
    weight.clear_if_fresh()
    index, elsewhere = _local_rows(tokens, weight, parallel)
    whole = arriving.wait()
    values = whole.to(weight.grad.dtype)
    if elsewhere is not None:
        values = values.masked_fill(elsewhere, 0) if values is grad else values.masked_fill_(elsewhere, 0)
    if grad.is_cuda:  # index_add_ adds in no fixed order there; sorted accumulation does
        weight.grad.index_put_((index,), values, accumulate=True)
    else:
        weight.grad.index_add_(0, index, values)


def _local_rows(tokens: Tensor, weight: Weight, parallel: Parallel) -> tuple[Tensor, Tensor | None]:
    """Every token's row in this rank's part of the table [T], and where that is another rank's [T, 1] (the row is then any)."""
    flat = tokens.view(-1)
    if parallel.tp is None:
        return flat, None
    size = weight.data.shape[0]
    rows = flat - parallel.tp.index * size
    elsewhere = (rows < 0) | (rows >= size)
    return rows.masked_fill_(elsewhere, 0), elsewhere.unsqueeze(-1)


def block_forward(
    x: Tensor,
    weights: BlockWeights,
    model: ModelConfig,
    batch: Microbatch,
    parallel: Parallel = ALONE,
    keep: bool = True,
) -> Tensor:
    """One decoder block, pre-norm. x [t, hidden] -> [t, hidden]: a microbatch laid flat, or this rank's part of its
    tokens under sequence parallelism.

    `keep` False: the norms' and the gated product's outputs are not kept for backward but rebuilt there.
    """
    x = _attention(x, weights.attention, model, batch, parallel, keep)
    return _feed_forward(x, weights.feed_forward, model, parallel, keep)


def _attention(
    x: Tensor,
    weights: AttentionWeights | LatentWeights,
    model: ModelConfig,
    batch: Microbatch,
    parallel: Parallel,
    keep: bool,
) -> Tensor:
    """The block's first half, residual included."""
    if isinstance(weights, LatentWeights):
        raise NotImplementedError("latent attention")
    q, k, v, residual = QueryKeyValue.apply(
        x, weights, model, batch.tokens.shape[0], batch.cos, batch.sin, parallel, keep
    )
    attention = attend(q, k, v, batch, parallel)
    del q, k, v
    return OutputResidual.apply(attention, residual, weights.output, parallel)


def _feed_forward(
    x: Tensor, weights: FeedForwardWeights | RoutedWeights, model: ModelConfig, parallel: Parallel, keep: bool
) -> Tensor:
    """The block's second half, residual included."""
    if isinstance(weights, RoutedWeights):
        raise NotImplementedError("mixtures of experts")
    return GatedFeedForward.apply(x, weights, model.norm_eps, parallel, keep)


def attend(q: Tensor, k: Tensor, v: Tensor, batch: Microbatch, parallel: Parallel) -> Tensor:
    """Causal attention of this rank's positions. q [batch, seq, heads, dim], k [batch, seq, kv_heads, dim], v the same with any
    head size -> [batch, seq, heads * value head size]."""
    if parallel.context is None:
        return causal_attention(q, k, v, batch.document_lengths)
    from fourfold.model.context import context_attention

    return context_attention(q, k, v, parallel.context, batch.document_lengths)


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
    return torch.cat(rows, dim=1).view(*q.shape[:2], -1)


def _attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    grouped = q.shape[2] != k.shape[2]
    out = F.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True, enable_gqa=grouped
    )
    return out.transpose(1, 2)
