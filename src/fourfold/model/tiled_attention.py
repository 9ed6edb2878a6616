"""FlashAttention in plain PyTorch: exact attention, tile by tile, forward and backward.

Forward (Dao et al. 2022, algorithm 1, with the loops as in Dao 2023): a tile of queries stays in fast memory while tiles of keys
and values pass by. Softmax needs the maximum and the sum of a full row; both are kept as of the keys so far, and what was summed
before is scaled whenever the maximum grows. Only the output and the log-sum-exp L = m + log(l) are written.

Backward (Dao 2023, algorithm 2): a tile of keys stays while the queries pass by. P = exp(S - L) is computed again from L,

    D = rowsum(dO * O)    dV += P^T dO    dS = P * (dO V^T - D)    dQ += scale dS K    dK += scale dS^T Q

so that no matrix of queries by keys ever exists. This is the algorithm to read and to test against; it also runs in formats for
which no library has a kernel.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fourfold.model.shape import SCORE_TILE
from fourfold.model.visible import Integers, Range, Visible, tiles

Attended = tuple[Tensor, Tensor]
Gradients = tuple[Tensor, Tensor, Tensor]


class Tile(NamedTuple):
    """How many queries and keys a tile has."""

    queries: int
    keys: int


TILE = Tile(128, 128)


def attend(q: Tensor, k: Tensor, v: Tensor, visible: Visible, scale: float, tile: Tile = TILE) -> tuple[Tensor, Tensor]:
    """q [batch, heads, queries, d], k [batch, kv_heads, keys, d], v [batch, kv_heads, keys, value] -> out [batch, heads, queries,
    value] in q's format, and the log-sum-exp of the scores [batch, heads, queries] in fp32 (fp64 for fp64).

    Sums are in the format of the log-sum-exp. A query that sees nothing gets 0 and -inf."""
    sum_dtype = accumulation_dtype(q)
    out = q.new_empty((*q.shape[:-1], v.shape[-1]))
    lse = q.new_empty(q.shape[:-1], dtype=sum_dtype)
    interval = interval_on(q, visible)
    for rows in tiles((0, visible.queries), tile.queries, visible.queries):
        q_tile = _grouped(q, rows, k.shape[1], sum_dtype)
        maximum = q_tile.new_full((*q_tile.shape[:-1], 1), float("-inf"))
        total = torch.zeros_like(maximum)
        weighted = q_tile.new_zeros((*q_tile.shape[:-1], v.shape[-1]))
        for columns in tiles(visible.keys_of(rows), tile.keys, visible.keys):
            scores = _scores(q_tile, _keys(k, columns, sum_dtype), scale)
            _hide(scores, visible, interval, rows, columns)
            grown = torch.maximum(maximum, scores.amax(-1, keepdim=True))
            shift = grown.clamp_min(torch.finfo(sum_dtype).min)
            weights = scores.sub_(shift).exp_()
            correction = (maximum - shift).exp_()
            total = total * correction + weights.sum(-1, keepdim=True)
            weighted = weighted * correction + weights @ _keys(v, columns, sum_dtype)
            maximum = grown
        part = slice(*rows)
        out[:, :, part] = torch.where(total > 0, weighted / total, 0).flatten(1, 2)
        lse[:, :, part] = (maximum + total.log()).squeeze(-1).flatten(1, 2)
    return out, lse


def attend_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    visible: Visible,
    scale: float,
    tile: Tile = TILE,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v, shaped as they are and in their formats. `grad` and `out` [batch, heads, queries, value], `lse`
    [batch, heads, queries]: over all keys that the queries see, also those of other calls."""
    sum_dtype, kv_heads = accumulation_dtype(q), k.shape[1]
    d_q = torch.zeros_like(q, dtype=sum_dtype)
    d_k, d_v = torch.zeros_like(k), torch.zeros_like(v)
    interval = interval_on(q, visible)
    for columns in tiles((0, visible.keys), tile.keys, visible.keys):
        k_tile, v_tile = _keys(k, columns, sum_dtype), _keys(v, columns, sum_dtype)
        d_k_tile, d_v_tile = torch.zeros_like(k_tile), torch.zeros_like(v_tile)
        for rows in tiles(visible.queries_of(columns), tile.queries, visible.queries):
            q_tile, out_tile, grad_tile, lse_tile = (
                _grouped(x, rows, kv_heads, sum_dtype) for x in (q, out, grad, lse.unsqueeze(-1))
            )
            scores = _scores(q_tile, k_tile, scale)
            _hide(scores, visible, interval, rows, columns)
            weights = scores.sub_(lse_tile.clamp_min(torch.finfo(sum_dtype).min)).exp_()
            d_v_tile += (weights.mT @ grad_tile).sum(2, keepdim=True)
            shared = (grad_tile * out_tile).sum(-1, keepdim=True)
            d_scores = weights.mul_(grad_tile @ v_tile.mT - shared).mul_(scale)
            d_q[:, :, slice(*rows)] += (d_scores @ k_tile).flatten(1, 2)
            d_k_tile += (d_scores.mT @ q_tile).sum(2, keepdim=True)
        part = slice(*columns)
        d_k[:, :, part], d_v[:, :, part] = d_k_tile.squeeze(2), d_v_tile.squeeze(2)
    return d_q.to(q.dtype), d_k, d_v


def largest_score_(
    into: Tensor,
    q: Tensor,
    k: Tensor,
    causal: bool,
    scale: float,
    documents: Visible | None = None,
    window: int | None = None,
) -> None:
    """Raises `into`, a scalar in fp64, to the largest score where that is greater: a product and its maximum, nothing of softmax. q
    [batch, queries, heads, d], k [batch, keys, kv_heads, d]; products are in q's format."""
    visible = (documents or dense(causal, q.shape[1], k.shape[1])).within(window)
    interval = interval_on(q, visible)
    q, k = (flat(x, documents).transpose(1, 2) for x in (q, k))
    kv_heads = k.shape[1]
    for rows in tiles((0, visible.queries), SCORE_TILE, visible.queries):
        queries = q[:, :, slice(*rows)].unflatten(1, (kv_heads, -1)).flatten(2, 3)
        for columns in tiles(visible.keys_of(rows), SCORE_TILE, visible.keys):
            scores = queries @ k[:, :, slice(*columns)].mT
            if not visible.covers(rows, columns):
                first, last = (ends[slice(*rows)].unsqueeze(-1) for ends in interval)
                key = torch.arange(*columns, device=scores.device)
                each = scores.unflatten(2, (-1, rows[1] - rows[0]))
                each.masked_fill_((key < first) | (key >= last), float("-inf"))
            torch.maximum(into, scores.amax().to(into.dtype).mul_(scale), out=into)
            del scores


def by_rows(
    attend: Callable[..., Attended],
    attend_backward: Callable[..., Gradients],
    turned: Callable[[Tensor], Tensor],
    all_visible: Callable[[bool, int, int], Visible],
) -> tuple[Callable[..., Attended], Callable[..., Gradients]]:
    """Forward and backward kernel, called as the operations call them: tokens before heads, documents of all rows laid flat.
    `turned`: from tokens before heads to what the kernels take, and back. `all_visible`: as `dense`, for no documents."""

    def attend_rows(
        q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float, documents: Visible | None = None,
        window: int | None = None,
    ) -> Attended:  # fmt: skip
        visible = (documents or all_visible(causal, q.shape[1], k.shape[1])).within(window)
        out, lse = attend(*(turned(flat(x, documents)) for x in (q, k, v)), visible, scale)
        return as_rows(turned(out), q), as_rows(lse.transpose(1, 2), q)

    def attend_rows_backward(
        grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool, scale: float,
        documents: Visible | None = None, window: int | None = None,
    ) -> Gradients:  # fmt: skip
        visible = (documents or all_visible(causal, q.shape[1], k.shape[1])).within(window)
        given = (turned(flat(x, documents)) for x in (grad, q, k, v, out))
        d_q, d_k, d_v = attend_backward(*given, flat(lse, documents).transpose(1, 2), visible, scale)
        return as_rows(turned(d_q), q), as_rows(turned(d_k), k), as_rows(turned(d_v), v)

    return attend_rows, attend_rows_backward


def dense(causal: bool, queries: int, keys: int) -> Visible:
    return Visible.causal(queries) if causal else Visible.full(queries, keys)


attend_rows, attend_rows_backward = by_rows(attend, attend_backward, lambda x: x.transpose(1, 2), dense)


def flat(x: Tensor, documents: Visible | None) -> Tensor:
    """x [batch, tokens, ...] as one row of documents."""
    return x if documents is None else x.flatten(0, 1).unsqueeze(0)


def as_rows(x: Tensor, like: Tensor) -> Tensor:
    """One row of documents [1, batch x tokens, ...] as rows again."""
    return x if x.shape[:2] == like.shape[:2] else x[0].unflatten(0, like.shape[:2])


def accumulation_dtype(x: Tensor) -> torch.dtype:
    """The format of sums."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def on_device(x: Tensor, *arrays: Integers) -> list[Tensor]:
    """The arrays beside x, copied without holding up the host."""
    tensors = [torch.from_numpy(array) for array in arrays]
    return tensors if x.device.type != "cuda" else [t.pin_memory().to(x.device, non_blocking=True) for t in tensors]


def interval_on(x: Tensor, visible: Visible) -> list[Tensor]:
    """The first and last of every query, beside x."""
    interval: list[Tensor] = visible.once(("interval", x.device), lambda: on_device(x, visible.first, visible.last))
    return interval


def _grouped(x: Tensor, rows: Range, kv_heads: int, sum_dtype: torch.dtype) -> Tensor:
    """Some queries of x [batch, heads, queries, n], by the head of keys that they share: [batch, kv_heads, group, rows, n]."""
    return x[:, :, slice(*rows)].to(sum_dtype).unflatten(1, (kv_heads, -1))


def _keys(x: Tensor, columns: Range, sum_dtype: torch.dtype) -> Tensor:
    """Some keys or values of x [batch, kv_heads, keys, n]: [batch, kv_heads, 1, columns, n]."""
    return x[:, :, slice(*columns)].to(sum_dtype).unsqueeze(2)


def _scores(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """[batch, kv_heads, group, rows, columns]."""
    return (q @ k.mT).mul_(scale)


def _hide(scores: Tensor, visible: Visible, interval: list[Tensor], rows: Range, columns: Range) -> None:
    """Puts -inf where a query does not see a key. `interval`: the first and last of every query, beside the scores."""
    if visible.covers(rows, columns):
        return
    first, last = (ends[slice(*rows)].unsqueeze(-1) for ends in interval)
    key = torch.arange(*columns, device=scores.device)
    scores.masked_fill_((key < first) | (key >= last), float("-inf"))
