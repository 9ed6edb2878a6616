"""Attention between some queries and some keys: the kernel's output with its log-sum-exp, and its gradients from the global ones.

A kernel's result on a part of the keys is merged with others by log-sum-exp (Liu, Zaharia & Abbeel 2023, ring attention; Dao
2022). Backward needs no merging: with the full row's output and log-sum-exp, a part's gradients are that part's exact share.
"""

import torch
from torch import Tensor

from fourfold.flash.backends import FLASH, TILED, AttentionBackend
from fourfold.flash.visible import Visible


def default_backend(device: torch.device, dtype: torch.dtype) -> AttentionBackend:
    """The back end of a step whose run has chosen none: FlashAttention, and tiles on CUDA in formats that it does not take."""
    return FLASH if device.type == "cpu" or dtype in (torch.bfloat16, torch.float16) else TILED


def attend(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float, documents: Visible | None = None
) -> tuple[Tensor, Tensor]:
    """`Operations.attend` by the default back end."""
    return default_backend(q.device, q.dtype).attend(q, k, v, causal, scale, documents)


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
) -> tuple[Tensor, Tensor, Tensor]:
    """`Operations.attend_backward` by the default back end."""
    return default_backend(q.device, q.dtype).attend_backward(grad, q, k, v, out, lse, causal, scale, documents)
