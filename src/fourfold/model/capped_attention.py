"""Attention whose scores are capped (Gemma team 2024, section 2): with S = scale Q K^T the softmax is of c tanh(S / c).

The formula by blocks of queries, in the format of sums, for causal squares and for rectangles in which all is seen; libraries'
kernels that cap scores are rare. With T = tanh(S / c) and D = rowsum(dO * O), backward is FlashAttention's (Dao 2023, algorithm 2)
but for the slope of the cap:

    P = exp(c T - L)    dV += P^T dO    dS = P * (dO V^T - D) * (1 - T^2)    dQ += scale dS K    dK += scale dS^T Q

Where softmax is over keys of other calls too, the log-sum-exp L of all of them makes a call's gradients its exact share. The file
`recorder/capped_attention.py` repeats every allocation for shape-only tensors.
"""

import math

import torch
from torch import Tensor

from fourfold.model.shape import CAPPED_ROWS
from fourfold.model.tiled_attention import Attended, Gradients, accumulation_dtype


def attend_capped(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float, cap: float) -> Attended:
    """Output and log-sum-exp as `Operations.attend` has them. q [batch, queries, heads, d], k [batch, keys, kv_heads, d]."""
    kv_heads, dtype = k.shape[2], accumulation_dtype(q)
    keys, values = (_by_head(x, kv_heads, dtype) for x in (k, v))
    out = q.new_empty((*q.shape[:-1], v.shape[-1]))
    lse = q.new_empty(q.shape[:-1], dtype=dtype)
    for start in range(0, q.shape[1], CAPPED_ROWS):
        rows = slice(start, start + CAPPED_ROWS)
        seen = slice(0, rows.stop if causal else None)
        scores = _tanh(_by_head(q[:, rows], kv_heads, dtype), keys[:, seen], scale / cap).mul_(cap)
        _hide(scores, start if causal else None, q[:, rows].shape[1])
        largest = scores.amax(-1, keepdim=True)
        total = scores.sub_(largest).exp_().sum(-1, keepdim=True)
        _put(out[:, rows], torch.bmm(scores, values[:, seen]).div_(total), kv_heads)
        _put(lse[:, rows].unsqueeze(-1), total.log_().add_(largest), kv_heads)
        del scores, largest, total
    return out, lse


def attend_capped_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool, scale: float, cap: float
) -> Gradients:
    """Gradients of q, k and v. `out` and `lse` are over all keys that the queries see anywhere."""
    kv_heads, dtype = k.shape[2], accumulation_dtype(q)
    keys, values = (_by_head(x, kv_heads, dtype) for x in (k, v))
    d_q, d_k, d_v = q.new_empty(q.shape), torch.zeros_like(keys), torch.zeros_like(values)
    for start in range(0, q.shape[1], CAPPED_ROWS):
        rows = slice(start, start + CAPPED_ROWS)
        seen = slice(0, rows.stop if causal else None)
        queries = _by_head(q[:, rows], kv_heads, dtype)
        slope = _tanh(queries, keys[:, seen], scale / cap)
        weights = slope * cap
        _hide(weights, start if causal else None, q[:, rows].shape[1])
        weights.sub_(_by_head(lse[:, rows].unsqueeze(-1), kv_heads, dtype)).exp_()
        slope.square_().neg_().add_(1)
        grads = _by_head(grad[:, rows], kv_heads, dtype)
        d_v[:, seen].baddbmm_(weights.mT, grads)
        d_scores = torch.bmm(grads, values[:, seen].mT)
        shared = grads.mul_(_by_head(out[:, rows], kv_heads, dtype)).sum(-1, keepdim=True)
        d_scores.sub_(shared).mul_(weights).mul_(slope).mul_(scale)
        del slope, weights, grads, shared
        d_k[:, seen].baddbmm_(d_scores.mT, queries)
        _put(d_q[:, rows], torch.bmm(d_scores, keys[:, seen]), kv_heads)
        del d_scores, queries
    del keys, values
    batch = q.shape[0]
    by_token = (x.unflatten(0, (batch, kv_heads)).transpose(1, 2) for x in (d_k, d_v))
    d_k, d_v = (x.to(like.dtype) for x, like in zip(by_token, (k, v), strict=True))
    return d_q, d_k, d_v


def _by_head(x: Tensor, kv_heads: int, dtype: torch.dtype) -> Tensor:
    """A copy of x [batch, tokens, heads, n]: [batch kv_heads, group tokens, n]."""
    grouped = x.unflatten(2, (kv_heads, -1)).permute(0, 2, 3, 1, 4)
    copy = x.new_empty(grouped.shape, dtype=dtype).copy_(grouped)
    return copy.flatten(2, 3).flatten(0, 1)


def _put(into: Tensor, x: Tensor, kv_heads: int) -> None:
    """Copies x [batch kv_heads, group tokens, n] into [batch, tokens, heads, n]."""
    batch, tokens, heads, width = into.shape
    grouped = x.view(batch, kv_heads, heads // kv_heads, tokens, width)
    into.unflatten(2, (kv_heads, -1)).copy_(grouped.permute(0, 3, 1, 2, 4))


def _tanh(queries: Tensor, keys: Tensor, scale: float) -> Tensor:
    """tanh(scale Q K^T), [batch kv_heads, group tokens, keys]."""
    return torch.bmm(queries, keys.mT).mul_(scale).tanh_()


def _hide(scores: Tensor, start: int | None, tokens: int) -> None:
    """Puts -inf where a query sees no key; `start`: the first query's place, None: all see all."""
    if start is None:
        return
    later = torch.ones((tokens, scores.shape[-1]), dtype=torch.bool, device=scores.device).triu_(start + 1)
    scores.unflatten(1, (-1, tokens)).masked_fill_(later, -math.inf)
