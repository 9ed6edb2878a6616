"""Attention between some queries and some keys by PyTorch: the kernel's output with its log-sum-exp, and its gradients from the
global ones.

A kernel's result on a part of the keys is merged with others by log-sum-exp (Liu, Zaharia & Abbeel 2023, ring attention; Dao
2022). Backward needs no merging: with the full row's output and log-sum-exp, a part's gradients are that part's exact share.

Functions take q [batch, queries, heads, d], k [batch, keys, kv_heads, d], v [batch, keys, kv_heads, value] and give the output
[batch, queries, heads, value] with the log-sum-exp [batch, queries, heads]; or the gradients of q, k and v. Calls pass the
operators' leading arguments, which kept their places while torch added others behind.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fourfold.model import tiled_attention
from fourfold.model.tiled_attention import Attended, Gradients, on_device
from fourfold.model.visible import Visible

_ATEN: Any = torch.ops.aten


def flash(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    scale: float,
    documents: Visible | None = None,
    window: int | None = None,
) -> Attended:
    """One launch, also of `documents`, which take the kernel of variable lengths."""
    width, value = kernel_width(q, v), v.shape[-1]
    padded = [pad_last(x, width) for x in (q, k, v)]
    if documents is not None:
        flat, lengths = [x.flatten(0, 1) for x in padded], document_ends(q, documents)
        out, lse, *_ = _ATEN._flash_attention_forward(*flat, *lengths, 0.0, True, False, scale=scale, **_sides(window))
        return out[..., :value].unflatten(0, q.shape[:2]), lse.t().unflatten(0, q.shape[:2])
    if window is not None:
        dense = (None, None, q.shape[1], k.shape[1])
        out, lse, *_ = _ATEN._flash_attention_forward(*padded, *dense, 0.0, True, False, scale=scale, **_sides(window))
        return out[..., :value], lse.transpose(1, 2)
    heads_first = [x.transpose(1, 2) for x in padded]
    if q.device.type == "cpu":
        out, lse = _ATEN._scaled_dot_product_flash_attention_for_cpu(*heads_first, 0.0, causal, scale=scale)
    else:
        out, lse, *_ = _ATEN._scaled_dot_product_flash_attention(*heads_first, 0.0, causal, False, scale=scale)
    return out.transpose(1, 2)[..., :value], lse.transpose(1, 2)


def flash_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    causal: bool,
    scale: float,
    documents: Visible | None = None,
    window: int | None = None,
) -> Gradients:
    """`out` and `lse` are those over all keys that the queries see anywhere."""
    width, sizes = kernel_width(q, v), (q.shape[-1], k.shape[-1], v.shape[-1])
    padded = [pad_last(x, width) for x in (grad, q, k, v, out)]
    if q.device.type == "cpu":
        inputs = (*(x.transpose(1, 2) for x in padded), lse.transpose(1, 2))
        grads = _ATEN._scaled_dot_product_flash_attention_for_cpu_backward(*inputs, 0.0, causal, scale=scale)
        return by_heads(grads, sizes)
    random = [torch.empty(size, dtype=torch.uint64, device=q.device) for size in (2, 0)]
    if documents is not None:
        flat, rows = [x.flatten(0, 1) for x in padded], lse.flatten(0, 1).t().contiguous()
        lengths = document_ends(q, documents)
        grads = _ATEN._flash_attention_backward(
            *flat, rows, *lengths, 0.0, True, *random, scale=scale, **_sides(window)
        )
        d_q, d_k, d_v = (x.unflatten(0, q.shape[:2])[..., :size] for x, size in zip(grads, sizes, strict=True))
        return d_q, d_k, d_v
    dense = (None, None, q.shape[1], k.shape[1])
    if window is not None:
        rows = lse.transpose(1, 2).contiguous()
        grads = _ATEN._flash_attention_backward(
            *padded, rows, *dense, 0.0, True, *random, scale=scale, **_sides(window)
        )
        d_q, d_k, d_v = (x[..., :size] for x, size in zip(grads, sizes, strict=True))
        return d_q, d_k, d_v
    inputs = (*(x.transpose(1, 2) for x in padded), lse.transpose(1, 2).contiguous())
    kernel = _ATEN._scaled_dot_product_flash_attention_backward
    return by_heads(kernel(*inputs, *dense, 0.0, causal, *random, scale=scale), sizes)


def _sides(window: int | None) -> dict[str, int]:
    """The window as the kernels have it: keys before a query's own, and behind it."""
    return {} if window is None else {"window_size_left": window - 1, "window_size_right": 0}


def kernel_width(q: Tensor, v: Tensor) -> int:
    """The one width of q, k and v that FlashAttention demands."""
    width = max(q.shape[-1], v.shape[-1])
    return width if q.device.type == "cpu" else -(-width // 8) * 8


def pad_last(x: Tensor, width: int) -> Tensor:
    """x [..., d] padded with zeros to [..., width], which changes neither scores nor the outputs' first columns."""
    return x if x.shape[-1] == width else F.pad(x, (0, width - x.shape[-1]))


def document_ends(q: Tensor, documents: Visible) -> tuple[Tensor, Tensor, int, int]:
    """Where documents start and end, of queries and of keys; and the longest. A kernel that is told of no document longer than 1
    decodes: it takes heads for tokens."""
    ends = documents.once(("ends", q.device), lambda: on_device(q, documents.ends)[0])
    longest = max(2, *documents.lengths)
    return ends, ends, longest, longest


def by_heads(grads: Gradients, sizes: tuple[int, int, int]) -> Gradients:
    """Gradients [batch, heads, tokens, width] as [batch, tokens, heads, size]."""
    d_q, d_k, d_v = (x.transpose(1, 2)[..., :size] for x, size in zip(grads, sizes, strict=True))
    return d_q, d_k, d_v


class AttentionKernels(NamedTuple):
    """Functions that are as `Operations` has them."""

    name: str
    attend: Callable[..., Attended]
    attend_backward: Callable[..., Gradients]


FLASH = AttentionKernels("flash", flash, flash_backward)
TILED = AttentionKernels("tiled", tiled_attention.attend_rows, tiled_attention.attend_rows_backward)


def default_backend(device: torch.device, dtype: torch.dtype) -> AttentionKernels:
    """The kernels of a step whose run has chosen none: FlashAttention, and tiles on CUDA in formats that it does not take."""
    return FLASH if device.type == "cpu" or dtype in (torch.bfloat16, torch.float16) else TILED


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    scale: float,
    documents: Visible | None = None,
    window: int | None = None,
) -> Attended:
    """`Operations.attend` by the default kernels."""
    return default_backend(q.device, q.dtype).attend(q, k, v, causal, scale, documents, window)


def attend_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    causal: bool,
    scale: float,
    documents: Visible | None = None,
    window: int | None = None,
) -> Gradients:
    """`Operations.attend_backward` by the default kernels."""
    kernels = default_backend(q.device, q.dtype)
    return kernels.attend_backward(grad, q, k, v, out, lse, causal, scale, documents, window)
