"""Attention by the `flash-attn` package, where it is installed: FlashAttention 2, asked for a backward that repeats its bits.

The package's forward and backward of 2.7 and later, called as its own autograd functions call them.
"""

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from fourfold.model.tiled_attention import Attended, Gradients
from fourfold.model.torch_attention import document_ends, kernel_width, pad_last
from fourfold.model.visible import Visible

NAME = "flash_attn"


def _everything(window: int | None) -> dict[str, Any]:
    """No dropout, no cap, no bias; keys before a query's own and behind it, of which -1 are all."""
    left, right = (-1, -1) if window is None else (window - 1, 0)
    return {
        "dropout_p": 0.0,
        "window_size_left": left,
        "window_size_right": right,
        "softcap": 0.0,
        "alibi_slopes": None,
    }


def flash_attn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    scale: float,
    documents: Visible | None = None,
    window: int | None = None,
) -> Attended:
    """Attention by the package, called as `torch_attention.flash` is."""
    package = import_module(f"{NAME}.flash_attn_interface")

    value = v.shape[-1]
    padded = [pad_last(x, kernel_width(q, v)) for x in (q, k, v)]
    options = {**_everything(window), "softmax_scale": scale, "causal": causal, "return_softmax": False}
    if documents is None:
        out, lse, *_ = package._flash_attn_forward(*padded, **options)
        return out[..., :value], lse.transpose(1, 2)
    flat = [x.flatten(0, 1) for x in padded]
    out, lse, *_ = package._flash_attn_varlen_forward(*flat, *document_ends(q, documents), **options)
    return out[..., :value].unflatten(0, q.shape[:2]), lse.t().unflatten(0, q.shape[:2])


def flash_attn_backward(
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
    """Gradients by the package, called as `torch_attention.flash_backward` is."""
    package = import_module(f"{NAME}.flash_attn_interface")

    sizes = q.shape[-1], k.shape[-1], v.shape[-1]
    padded = [pad_last(x, kernel_width(q, v)) for x in (grad, q, k, v, out)]
    options = {**_everything(window), "softmax_scale": scale, "causal": causal, "deterministic": True}
    if documents is None:
        grads = [torch.empty_like(x) for x in padded[1:4]]
        package._flash_attn_backward(*padded, lse.transpose(1, 2).contiguous(), *grads, **options)
    else:
        flat, rows = [x.flatten(0, 1) for x in padded], lse.flatten(0, 1).t().contiguous()
        grads = [torch.empty_like(x) for x in flat[1:4]]
        package._flash_attn_varlen_backward(*flat, rows, *grads, *document_ends(q, documents), **options)
        grads = [x.unflatten(0, q.shape[:2]) for x in grads]
    d_q, d_k, d_v = (x[..., :size] for x, size in zip(grads, sizes, strict=True))
    return d_q, d_k, d_v
