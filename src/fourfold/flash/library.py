"""Attention by torch's own kernels: FlashAttention on CPU and CUDA, cuDNN's, and the memory-efficient one.

Functions take q [batch, queries, heads, d], k [batch, keys, kv_heads, d], v [batch, keys, kv_heads, value] and give the output
[batch, queries, heads, value] with the log-sum-exp [batch, queries, heads]; or the gradients of q, k and v. Calls pass the
operators' leading arguments, which kept their places while torch added others behind.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fourfold.flash.tiled import on_device
from fourfold.flash.visible import Visible

_ATEN: Any = torch.ops.aten
Attended = tuple[Tensor, Tensor]
Gradients = tuple[Tensor, Tensor, Tensor]
EFFICIENT_ROWS = 32
"""The memory-efficient kernel pads the log-sum-exp to a multiple of these."""


def kernel_width(q: Tensor, v: Tensor) -> int:
    """The one width of q, k and v that FlashAttention demands."""
    width = max(q.shape[-1], v.shape[-1])
    return width if q.device.type == "cpu" else -(-width // 8) * 8


def pad_last(x: Tensor, width: int) -> Tensor:
    """x [..., d] padded with zeros to [..., width], which changes neither scores nor the outputs' first columns."""
    return x if x.shape[-1] == width else F.pad(x, (0, width - x.shape[-1]))


def flash(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float, documents: Visible | None = None) -> Attended:
    """One launch, also of `documents`, which take the kernel of variable lengths."""
    width, value = kernel_width(q, v), v.shape[-1]
    padded = [pad_last(x, width) for x in (q, k, v)]
    if documents is not None:
        flat = [x.flatten(0, 1) for x in padded]
        out, lse, *_ = _ATEN._flash_attention_forward(
            *flat, *document_ends(q, documents), 0.0, True, False, scale=scale
        )
        return out[..., :value].unflatten(0, q.shape[:2]), lse.t().unflatten(0, q.shape[:2])
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
) -> Gradients:
    """`out` and `lse` are those over all keys that the queries see anywhere."""
    width, sizes = kernel_width(q, v), (q.shape[-1], k.shape[-1], v.shape[-1])
    padded = [pad_last(x, width) for x in (grad, q, k, v, out)]
    if q.device.type == "cpu":
        inputs = (*(x.transpose(1, 2) for x in padded), lse.transpose(1, 2))
        grads = _ATEN._scaled_dot_product_flash_attention_for_cpu_backward(*inputs, 0.0, causal, scale=scale)
        return _cut(grads, sizes)
    random = [torch.empty(size, dtype=torch.uint64, device=q.device) for size in (2, 0)]
    if documents is not None:
        flat, rows = [x.flatten(0, 1) for x in padded], lse.flatten(0, 1).t().contiguous()
        lengths = document_ends(q, documents)
        grads = _ATEN._flash_attention_backward(*flat, rows, *lengths, 0.0, True, *random, scale=scale)
        d_q, d_k, d_v = (x.unflatten(0, q.shape[:2])[..., :size] for x, size in zip(grads, sizes, strict=True))
        return d_q, d_k, d_v
    inputs = (*(x.transpose(1, 2) for x in padded), lse.transpose(1, 2).contiguous())
    dense = (None, None, q.shape[1], k.shape[1])
    kernel = _ATEN._scaled_dot_product_flash_attention_backward
    return _cut(kernel(*inputs, *dense, 0.0, causal, *random, scale=scale), sizes)


def cudnn(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float, documents: Visible | None = None) -> Attended:
    """cuDNN's kernel, which takes values of another width than keys. No documents."""
    inputs = (x.transpose(1, 2) for x in (q, k, v))
    out, lse, *_ = _ATEN._scaled_dot_product_cudnn_attention(*inputs, None, True, 0.0, causal, False, scale=scale)
    return out.transpose(1, 2), lse.squeeze(-1).transpose(1, 2)


def cudnn_backward(
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
    inputs = [*(x.transpose(1, 2) for x in (grad, q, k, v, out)), lse.transpose(1, 2).contiguous().unsqueeze(-1)]
    random = [torch.empty((), dtype=torch.int64, device=q.device) for _ in range(2)]
    lengths = (None, None, None, q.shape[1], k.shape[1])
    kernel = _ATEN._scaled_dot_product_cudnn_attention_backward
    return _cut(kernel(*inputs, *random, *lengths, 0.0, causal, scale=scale), (q.shape[-1], k.shape[-1], v.shape[-1]))


def efficient(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float, documents: Visible | None = None
) -> Attended:
    """The memory-efficient kernel, fp32 too; keys and values are repeated for their groups of queries. No documents."""
    inputs = [x.transpose(1, 2) for x in (q, *_repeated(q, k, v))]
    out, lse, *_ = _ATEN._scaled_dot_product_efficient_attention(*inputs, None, True, 0.0, causal, scale=scale)
    return out.transpose(1, 2), lse[..., : q.shape[1]].transpose(1, 2)


def efficient_backward(
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
    inputs = [x.transpose(1, 2) for x in (grad, q, *_repeated(q, k, v))]
    rows = F.pad(lse.transpose(1, 2), (0, -q.shape[1] % EFFICIENT_ROWS), value=float("inf")).contiguous()
    random = [torch.empty((), dtype=torch.int64, device=q.device) for _ in range(2)]
    given = (*inputs, None, out.transpose(1, 2), rows, *random, 0.0, [True, True, True, False])
    *grads, _ = _ATEN._scaled_dot_product_efficient_attention_backward(*given, causal, scale=scale)
    d_q, d_k, d_v = (x.transpose(1, 2) for x in grads)
    if q.shape[2] == k.shape[2]:
        return d_q, d_k, d_v
    d_k, d_v = (x.unflatten(2, (k.shape[2], -1)).sum(3) for x in (d_k, d_v))
    return d_q, d_k, d_v


def document_ends(q: Tensor, documents: Visible) -> tuple[Tensor, Tensor, int, int]:
    """Where documents start and end, of queries and of keys; and the longest. A kernel that is told of no document longer than 1
    decodes: it takes heads for tokens."""
    ends = documents.once(("ends", q.device), lambda: on_device(q, documents.ends)[0])
    longest = max(2, *documents.lengths)
    return ends, ends, longest, longest


def _cut(grads: Gradients, sizes: tuple[int, int, int]) -> Gradients:
    """Gradients [batch, heads, tokens, width] as [batch, tokens, heads, size]."""
    d_q, d_k, d_v = (x.transpose(1, 2)[..., :size] for x, size in zip(grads, sizes, strict=True))
    return d_q, d_k, d_v


def _repeated(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    group = q.shape[2] // k.shape[2]
    return (k, v) if group == 1 else (k.repeat_interleave(group, 2), v.repeat_interleave(group, 2))
