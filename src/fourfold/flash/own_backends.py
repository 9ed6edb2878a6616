"""The tiles in plain PyTorch and the Triton kernels, called as `library` calls torch's: tokens before heads, documents laid flat.

Both take any format, other widths of values than of keys, and documents in one call.
"""

from functools import lru_cache

from torch import Tensor

from fourfold.flash import tiled
from fourfold.flash.library import Attended, Gradients
from fourfold.flash.visible import Visible


def plain(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float, documents: Visible | None = None) -> Attended:
    """`tiled.attend`."""
    visible = documents or _dense(causal, q.shape[1], k.shape[1])
    a, b, c = (_flat(x, documents).transpose(1, 2) for x in (q, k, v))
    out, lse = tiled.attend(a, b, c, visible, scale)
    return _rows(out.transpose(1, 2), q), _rows(lse.transpose(1, 2), q)


def plain_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    causal: bool,
    scale: float,
    documents: Visible | None = None,
) -> Gradients:
    """`tiled.attend_backward`."""
    visible = documents or _dense(causal, q.shape[1], k.shape[1])
    given = grad, q, k, v, out, lse
    g, a, b, c, o, s = (_flat(x, documents).transpose(1, 2) for x in given)
    d_q, d_k, d_v = (x.transpose(1, 2) for x in tiled.attend_backward(g, a, b, c, o, s, visible, scale))
    return _rows(d_q, q), _rows(d_k, k), _rows(d_v, v)


def triton(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float, documents: Visible | None = None) -> Attended:
    """`triton_attention.attend`."""
    from fourfold.flash import triton_attention

    visible = documents or _kept_dense(causal, q.shape[1], k.shape[1])
    a, b, c = (_flat(x, documents) for x in (q, k, v))
    out, lse = triton_attention.attend(a, b, c, visible, scale)
    return _rows(out, q), _rows(lse.transpose(1, 2), q)


def triton_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    causal: bool,
    scale: float,
    documents: Visible | None = None,
) -> Gradients:
    """`triton_attention.attend_backward`."""
    from fourfold.flash import triton_attention

    visible = documents or _kept_dense(causal, q.shape[1], k.shape[1])
    g, a, b, c, o, s = (_flat(x, documents) for x in (grad, q, k, v, out, lse))
    d_q, d_k, d_v = triton_attention.attend_backward(g, a, b, c, o, s.transpose(1, 2), visible, scale)
    return _rows(d_q, q), _rows(d_k, k), _rows(d_v, v)


def _dense(causal: bool, queries: int, keys: int) -> Visible:
    return Visible.causal(queries) if causal else Visible.full(queries, keys)


_kept_dense = lru_cache(maxsize=64)(_dense)
"""Kernels read the intervals from the device: they are sent there once."""


def _flat(x: Tensor, documents: Visible | None) -> Tensor:
    """x [batch, tokens, ...] as one row of documents."""
    return x if documents is None else x.flatten(0, 1).unsqueeze(0)


def _rows(x: Tensor, like: Tensor) -> Tensor:
    """One row of documents [1, batch x tokens, ...] as rows again."""
    return x if x.shape[:2] == like.shape[:2] else x[0].unflatten(0, like.shape[:2])
