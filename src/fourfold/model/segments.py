"""The functions of a segment: hidden states in, hidden states out. They know nothing of layouts, shards or schedules."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fourfold.config import ModelConfig
from fourfold.model.operators import GatedFeedForward, OutputResidual, QueryKeyValue
from fourfold.model.weights import BlockWeights, Weight


@dataclass(frozen=True)
class Microbatch:
    """What segments read beside hidden states. tokens, targets [batch, seq] (-100: no loss); cos, sin [seq or batch x seq, 1,
    head_dim / 2]; document_lengths: per row the lengths of its documents, or None where attention may cross them."""

    tokens: Tensor
    targets: Tensor
    cos: Tensor
    sin: Tensor
    document_lengths: Sequence[Sequence[int]] | None = None


def embedding_forward(tokens: Tensor, weight: Weight) -> Tensor:
    """tokens [batch, seq] -> hidden [batch, seq, hidden]."""
    return F.embedding(tokens, weight.data)


def embedding_backward(tokens: Tensor, grad: Tensor, weight: Weight) -> None:
    """Adds the table's gradient. tokens [batch, seq], grad [batch, seq, hidden]."""
    weight.clear_if_fresh()
    rows = grad.reshape(-1, grad.shape[-1]).to(weight.grad.dtype)
    if grad.is_cuda:  # index_add_ adds in no fixed order there; sorted accumulation does
        weight.grad.index_put_((tokens.reshape(-1),), rows, accumulate=True)
    else:
        weight.grad.index_add_(0, tokens.reshape(-1), rows)


def block_forward(x: Tensor, weights: BlockWeights, model: ModelConfig, batch: Microbatch, keep: bool = True) -> Tensor:
    """One decoder block, pre-norm. x [batch, seq, hidden] -> [batch, seq, hidden].

    `keep` False: the norms' and the gated product's outputs are not kept for backward but rebuilt there.
    """
    q, k, v, residual = QueryKeyValue.apply(x, weights, model, batch.cos, batch.sin, keep)
    attention = causal_attention(q, k, v, batch.document_lengths)
    del q, k, v
    x = OutputResidual.apply(attention, residual, weights.output)
    del attention, residual
    return GatedFeedForward.apply(x, weights, model.norm_eps, keep)


def causal_attention(q: Tensor, k: Tensor, v: Tensor, document_lengths: Sequence[Sequence[int]] | None) -> Tensor:
    """Causal attention within each document. q [batch, seq, heads, head_dim], k and v [batch, seq, kv_heads, head_dim]
    -> [batch, seq, heads * head_dim]. One call a document, so the work is exact and no mask exists."""
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
