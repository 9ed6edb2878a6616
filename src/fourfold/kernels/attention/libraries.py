"""Attention by other kernels of torch than its flash attention: cuDNN's, and the memory-efficient one. Shapes and calls are as in
`model.torch_attention`."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fourfold.model.tiled_attention import Attended, Gradients
from fourfold.model.torch_attention import by_heads
from fourfold.model.visible import Visible

_ATEN: Any = torch.ops.aten
EFFICIENT_ROWS = 32
"""The memory-efficient kernel pads the log-sum-exp to a multiple of these."""


def cudnn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    scale: float,
    documents: Visible | None = None,
    window: int | None = None,
) -> Attended:
    """cuDNN's kernel, which takes values of another width than keys. No documents, no window."""
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
    window: int | None = None,
) -> Gradients:
    inputs = [*(x.transpose(1, 2) for x in (grad, q, k, v, out)), lse.transpose(1, 2).contiguous().unsqueeze(-1)]
    random = [torch.empty((), dtype=torch.int64, device=q.device) for _ in range(2)]
    lengths = (None, None, None, q.shape[1], k.shape[1])
    kernel = _ATEN._scaled_dot_product_cudnn_attention_backward
    return by_heads(
        kernel(*inputs, *random, *lengths, 0.0, causal, scale=scale), (q.shape[-1], k.shape[-1], v.shape[-1])
    )


def efficient(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    scale: float,
    documents: Visible | None = None,
    window: int | None = None,
) -> Attended:
    """The memory-efficient kernel, fp32 too; keys and values are repeated for their groups of queries. No documents, no window."""
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
    window: int | None = None,
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


def _repeated(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    group = q.shape[2] // k.shape[2]
    return (k, v) if group == 1 else (k.repeat_interleave(group, 2), v.repeat_interleave(group, 2))
