"""Attention between some queries and some keys: the kernel's output with its log-sum-exp, and its gradients from the global ones.

A kernel's result on a part of the keys is merged with others by log-sum-exp (Liu, Zaharia & Abbeel 2023, ring attention; Dao
2022). Backward needs no merging: with the full row's output and log-sum-exp, a part's gradients are that part's exact share.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

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
        out, lse = plain_attend(q, k, v, causal, scale)
    return out.transpose(1, 2)[..., :value], lse.transpose(1, 2)


def attend_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v, shaped as they are. `out` and `lse` are those over all keys that the queries see anywhere."""
    width, sizes = kernel_width(q, v), (q.shape[-1], k.shape[-1], v.shape[-1])
    tensors = [pad_last(x, width).transpose(1, 2) for x in (grad, q, k, v, out)]
    tensors.append(lse.transpose(1, 2))
    if q.device.type == "cpu":
        kernel = _ATEN._scaled_dot_product_flash_attention_for_cpu_backward
        grads = kernel(*tensors, 0.0, causal, scale=scale)
    elif q.dtype in (torch.bfloat16, torch.float16):
        tensors[-1] = tensors[-1].contiguous()
        seed, offset = (torch.empty(size, dtype=torch.uint64, device=q.device) for size in (2, 0))
        lengths = (None, None, q.shape[1], k.shape[1])
        kernel = _ATEN._scaled_dot_product_flash_attention_backward
        grads = kernel(*tensors, *lengths, 0.0, causal, seed, offset, scale=scale)
    else:
        grads = plain_attend_backward(tensors, causal, scale)
    d_q, d_k, d_v = (x.transpose(1, 2)[..., :size] for x, size in zip(grads, sizes, strict=True))
    return d_q, d_k, d_v


def pad_last(x: Tensor, width: int) -> Tensor:
    """x [..., d] padded with zeros to [..., width], which changes neither scores nor the outputs' first columns."""
    return x if x.shape[-1] == width else F.pad(x, (0, width - x.shape[-1]))


def plain_attend(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """The equations themselves, for formats that a device has no kernel for. q [batch, heads, queries, d], k and v
    [batch, kv_heads, keys, d] -> out like q, log-sum-exp [batch, heads, queries]. Holds all scores at once."""
    scores = _scores(q, k, causal, scale)
    lse = scores.logsumexp(-1)
    weights = scores.sub_(lse.unsqueeze(-1)).exp_()
    return (weights @ v.unsqueeze(2)).flatten(1, 2), lse.flatten(1, 2)


def plain_attend_backward(tensors: Sequence[Tensor], causal: bool, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """P = exp(S - lse), dV = P^T dO, dP = dO V^T, dS = P * (dP - rowsum(dO * O)), dQ = scale dS K, dK = scale dS^T Q.
    `tensors`: grad, q, k, v, out and lse, heads before tokens."""
    grad, q, k, v, out, lse = tensors
    grad, q_groups, out, lse = (x.unflatten(1, (k.shape[1], -1)) for x in (grad, q, out, lse))
    weights = _scores(q, k, causal, scale).sub_(lse.unsqueeze(-1)).exp_()
    d_v = (weights.transpose(-1, -2) @ grad).sum(2)
    d_weights = grad @ v.unsqueeze(2).transpose(-1, -2)
    d_scores = weights.mul_(d_weights.sub_((grad * out).sum(-1, keepdim=True))).mul_(scale)
    d_q = (d_scores @ k.unsqueeze(2)).flatten(1, 2)
    return d_q, (d_scores.transpose(-1, -2) @ q_groups).sum(2), d_v


def _scores(q: Tensor, k: Tensor, causal: bool, scale: float) -> Tensor:
    """[batch, kv_heads, heads of each, queries, keys]."""
    scores = q.unflatten(1, (k.shape[1], -1)) @ k.unsqueeze(2).transpose(-1, -2) * scale
    if causal:
        hidden = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).triu_(1)
        scores.masked_fill_(hidden, float("-inf"))
    return scores
