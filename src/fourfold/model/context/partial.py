"""Attention piece by piece: outputs merged in place by log-sum-exp, gradients summed in place, in fp32 at least."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fourfold.model.context.flash import attend, attend_backward
from fourfold.model.context.pieces import Piece, Span


def wide(dtype: torch.dtype) -> torch.dtype:
    """The format of sums over pieces and ranks."""
    return torch.promote_types(dtype, torch.float32)


def part(x: Tensor, rows: Span, tokens: Span) -> Tensor:
    """A view of some rows and tokens of x [batch, tokens, ...]."""
    return x[rows[0] : rows[1], tokens[0] : tokens[1]]


def _covers(pieces: Sequence[Piece], q: Tensor) -> bool:
    """Whether there is one piece, of all queries."""
    return len(pieces) == 1 and pieces[0].rows == (0, q.shape[0]) and pieces[0].queries == (0, q.shape[1])


def own_output(
    q: Tensor, k: Tensor, v: Tensor, pieces: Sequence[Piece], scale: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Output [batch, tokens, heads, d] in `dtype` and log-sum-exp [batch, tokens, heads] of pieces that hold every query once."""
    if _covers(pieces, q):
        out, lse = attend(q, k, v, pieces[0].causal, scale)
        return out.to(dtype), lse
    out = torch.empty(q.shape, dtype=dtype, device=q.device)
    lse = torch.empty(q.shape[:-1], dtype=wide(q.dtype), device=q.device)
    for rows, queries, keys, causal in pieces:
        result = attend(part(q, rows, queries), part(k, rows, keys), part(v, rows, keys), causal, scale)
        part(out, rows, queries).copy_(result[0])
        part(lse, rows, queries).copy_(result[1])
    return out, lse


def merge_output(
    out: Tensor, lse: Tensor, q: Tensor, k: Tensor, v: Tensor, pieces: Sequence[Piece], scale: float
) -> None:
    """Adds what the queries get from more keys. out = softmax-weighted mean of two outputs: with l, l' their log-sum-exps the
    second weighs exp(l') / (exp(l) + exp(l')) = sigmoid(l' - l), and the sum's log-sum-exp is logaddexp(l, l')."""
    for rows, queries, keys, causal in pieces:
        more, more_lse = attend(part(q, rows, queries), part(k, rows, keys), part(v, rows, keys), causal, scale)
        out_part, lse_part = part(out, rows, queries), part(lse, rows, queries)
        weight = torch.sigmoid(more_lse - lse_part).unsqueeze(-1)
        out_part.lerp_(more.to(out.dtype), weight)
        torch.logaddexp(lse_part, more_lse, out=lse_part)
        del more, more_lse, weight


@dataclass(frozen=True)
class Saved:
    """What backward knows of the queries: q, grad and out [batch, tokens, heads, d], lse [batch, tokens, heads]."""

    grad: Tensor
    q: Tensor
    out: Tensor
    lse: Tensor
    scale: float

    def of_heads(self, first: int, last: int) -> "Saved":
        """Views of some heads."""
        grad, q, out, lse = (x[:, :, first:last] for x in (self.grad, self.q, self.out, self.lse))
        return Saved(grad, q, out, lse, self.scale)

    def gradients(self, k: Tensor, v: Tensor, piece: Piece) -> tuple[Tensor, Tensor, Tensor]:
        """A piece's share of the gradients of its queries, its keys and its values."""
        rows, queries, keys, causal = piece
        grad, q, out, lse = (part(x, rows, queries) for x in (self.grad, self.q, self.out, self.lse))
        return attend_backward(grad, q, part(k, rows, keys), part(v, rows, keys), out, lse, causal, self.scale)


def own_gradients(
    saved: Saved, k: Tensor, v: Tensor, pieces: Sequence[Piece], dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, in `dtype`, k and v, from pieces that hold every query and every key once."""
    if _covers(pieces, saved.q):
        d_q, d_k, d_v = saved.gradients(k, v, pieces[0])
        return d_q.to(dtype), d_k, d_v
    d_q = torch.empty(saved.q.shape, dtype=dtype, device=k.device)
    d_k, d_v = (torch.empty(k.shape, dtype=k.dtype, device=k.device) for _ in range(2))
    for piece in pieces:
        shares = saved.gradients(k, v, piece)
        for into, share, tokens in zip((d_q, d_k, d_v), shares, (piece.queries, piece.keys, piece.keys), strict=True):
            part(into, piece.rows, tokens).copy_(share)
    return d_q, d_k, d_v


class KeyShare(NamedTuple):
    """A piece's gradients of the keys and values of some heads."""

    piece: Piece
    kv_heads: Span
    d_k: Tensor
    d_v: Tensor


def add_query_gradients(
    saved: Saved, k: Tensor, v: Tensor, pieces: Sequence[Piece], d_q: Tensor, kv_heads: Span | None = None
) -> list[KeyShare]:
    """Adds the pieces' gradients of q; returns those of keys and values, to be added where the sums are. `kv_heads`: some only."""
    first, last = kv_heads or (0, k.shape[2])
    group = saved.q.shape[2] // k.shape[2]
    saved, d_q = saved.of_heads(first * group, last * group), d_q[:, :, first * group : last * group]
    k, v = k[:, :, first:last], v[:, :, first:last]
    shares: list[KeyShare] = []
    for piece in pieces:
        d_q_share, d_k, d_v = saved.gradients(k, v, piece)
        part(d_q, piece.rows, piece.queries).add_(d_q_share)
        shares.append(KeyShare(piece, (first, last), d_k, d_v))
        del d_q_share
    return shares


def add_key_gradients(shares: Sequence[KeyShare], d_k: Tensor, d_v: Tensor) -> None:
    """Adds what `add_query_gradients` returned."""
    for piece, (first, last), *gradients in shares:
        for into, share in zip((d_k, d_v), gradients, strict=True):
            part(into, piece.rows, piece.keys)[:, :, first:last].add_(share[..., : into.shape[-1]])


OwnWork = tuple[Sequence[Piece], Span]
"""Some pieces against a rank's own keys, for some of the kv heads."""


def own_work_in_two(pieces: Sequence[Piece], kv_heads: int) -> tuple[OwnWork, OwnWork]:
    """The work that waits for nobody, in two parts: one for the time in which the first keys are on their way, one for that in
    which the last gradients are. One piece is divided by heads."""
    if len(pieces) == 1 and kv_heads > 1:
        return (pieces, (0, kv_heads // 2)), (pieces, (kv_heads // 2, kv_heads))
    middle = (len(pieces) + 1) // 2
    return (pieces[:middle], (0, kv_heads)), (pieces[middle:], (0, kv_heads))


def joined(k: Tensor, v: Tensor) -> Tensor:
    """k and v in one contiguous tensor [batch, tokens, kv_heads, head_dim + value_dim], to travel as one."""
    return torch.cat((k, v), dim=-1)


def halves(kv: Tensor, head_dim: int) -> tuple[Tensor, Tensor]:
    """Views of keys and values that were joined."""
    return kv[..., :head_dim], kv[..., head_dim:]
