"""Attention between some queries and some keys: the kernel's output with its log-sum-exp, and its gradients from the global ones.

A kernel's result on a part of the keys is merged with others by log-sum-exp (Liu, Zaharia & Abbeel 2023, ring attention; Dao
2022). Backward needs no merging: with the full row's output and log-sum-exp, a part's gradients are that part's exact share.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fourfold.flash import tiled
from fourfold.flash.visible import Visible

_ATEN: Any = torch.ops.aten


def kernel_width(q: Tensor, v: Tensor) -> int:
    """The one width of q, k and v that the kernels demand."""
    width = max(q.shape[-1], v.shape[-1])
    return width if q.device.type == "cpu" else -(-width // 8) * 8


def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """q [batch, queries, heads, d], k [batch, keys, kv_heads, d], v [batch, keys, kv_heads, value] -> out [batch, queries, heads,
    value], and the log-sum-exp of the scores [batch, queries, heads] in fp32 (fp64 for fp64)."""
    width, value = kernel_width(q, v), v.shape[-1]
    q, k, v = (pad_last(x, width).transpose(1, 2) for x in (q, k, v))
    if q.device.type == "cpu":
        out, lse = _ATEN._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, scale=scale)
    elif q.dtype in (torch.bfloat16, torch.float16):
        out, lse, *_ = _ATEN._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, False, scale=scale)
    else:
        out, lse = tiled.attend(q, k, v, _visible(q, k, causal), scale)
    return out.transpose(1, 2)[..., :value], lse.transpose(1, 2)


def attend_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v, shaped as they are. `out` and `lse` are those over all keys that the queries see anywhere."""
    width, sizes = kernel_width(q, v), (q.shape[-1], k.shape[-1], v.shape[-1])
    grad, q, k, v, out = (pad_last(x, width).transpose(1, 2) for x in (grad, q, k, v, out))
    lse = lse.transpose(1, 2)
    if q.device.type == "cpu":
        kernel = _ATEN._scaled_dot_product_flash_attention_for_cpu_backward
        grads = kernel(grad, q, k, v, out, lse, 0.0, causal, scale=scale)
    elif q.dtype in (torch.bfloat16, torch.float16):
        seed, offset = (torch.empty(size, dtype=torch.uint64, device=q.device) for size in (2, 0))
        lengths = (None, None, q.shape[2], k.shape[2])
        kernel = _ATEN._scaled_dot_product_flash_attention_backward
        inputs = (grad, q, k, v, out, lse.contiguous())
        grads = kernel(*inputs, *lengths, 0.0, causal, seed, offset, scale=scale)
    else:
        grads = tiled.attend_backward(grad, q, k, v, out, lse, _visible(q, k, causal), scale)
    d_q, d_k, d_v = (x.transpose(1, 2)[..., :size] for x, size in zip(grads, sizes, strict=True))
    return d_q, d_k, d_v


def pad_last(x: Tensor, width: int) -> Tensor:
    """x [..., d] padded with zeros to [..., width], which changes neither scores nor the outputs' first columns."""
    return x if x.shape[-1] == width else F.pad(x, (0, width - x.shape[-1]))


def _visible(q: Tensor, k: Tensor, causal: bool) -> Visible:
    """Which of the keys [batch, kv_heads, keys, d] the queries [batch, heads, queries, d] see."""
    return Visible.causal(q.shape[2]) if causal else Visible.full(q.shape[2], k.shape[2])
