"""SwiGLU and rotary position embedding by the Triton kernels: sizes of blocks, and launches."""

from typing import Any

import torch
import triton
from torch import Tensor

from fourfold.flash.triton_attention import dense_rows, sum_format
from fourfold.fused.loss_launches import constants
from fourfold.fused.pointwise_kernels import (
    rotate_kernel,
    swiglu_backward_kernel,
    swiglu_kernel,
    weighted_backward_kernel,
    weighted_kernel,
)

BLOCK, NUMBERS_OF_HEADS = 2048, 2048
"""Numbers of a program: of a row of SwiGLU; of a token's heads."""


def swiglu(gate_up: Tensor) -> Tensor:
    """silu(gate) * up: gate_up [T, 2 f] -> [T, f]."""
    return _activated(swiglu_kernel, gate_up)


def _activated(kernel: Any, gate_up: Tensor, *beside: Tensor) -> Tensor:
    """Launches a kernel that reads gate_up [T, 2 f] and what is `beside`; its result, [T, f]."""
    gate_up = dense_rows(gate_up)
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((rows, width), dtype=gate_up.dtype, device=gate_up.device)
    if out.numel():
        sizes = constants(gate_up.dtype, width, BLOCK)
        kernel[(rows, triton.cdiv(width, sizes["BLOCK"]))](
            gate_up, *beside, out, gate_up.stride(0), out.stride(0), width, **sizes
        )
    return out


def swiglu_backward_(grad: Tensor, gate_up: Tensor) -> None:
    """Puts the gradients of gate and up in their place in gate_up [T, 2 f]. grad [T, f]: of silu(gate) * up."""
    assert gate_up.stride(-1) == 1, "rows are written in place"
    grad = dense_rows(grad)
    rows, width = grad.shape
    if grad.numel():
        sizes = constants(gate_up.dtype, width, BLOCK)
        kernel: Any = swiglu_backward_kernel
        kernel[(rows, triton.cdiv(width, sizes["BLOCK"]))](
            grad, gate_up, grad.stride(0), gate_up.stride(0), width, **sizes
        )


def weighted(gate_up: Tensor, weights: Tensor) -> Tensor:
    """silu(gate) * up of every row times its weight: gate_up [m, 2 f], weights [m] -> [m, f]."""
    return _activated(weighted_kernel, gate_up, weights.contiguous())


def weighted_backward_(grad: Tensor, gate_up: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """`weighted` once more, and the gradient of the weights; puts those of gate and up in their place. grad [m, f]."""
    assert gate_up.stride(-1) == 1, "rows are written in place"
    grad, weights = dense_rows(grad), weights.contiguous()
    rows, width = grad.shape
    out, grad_weights = (
        torch.empty((rows, width), dtype=gate_up.dtype, device=gate_up.device),
        torch.zeros_like(weights),
    )
    if grad.numel():
        kernel: Any = weighted_backward_kernel
        kernel[(rows,)](
            *(grad, gate_up, weights, out, grad_weights, grad.stride(0), gate_up.stride(0), out.stride(0), width),
            **constants(gate_up.dtype, width, BLOCK),
        )
    return out, grad_weights


def rotate(x: Tensor, out: Tensor, cos: Tensor, sin: Tensor, interleave: bool, inverse: bool) -> None:
    """`model.rope.rotate_` of x into `out`, which may be x itself: x [batch, seq, heads, d], cos and sin [seq, 1, d / 2] or [batch,
    seq, 1, d / 2]."""
    assert out.stride(-1) == 1, "heads are written where they lie"
    if x.stride(-1) != 1:
        x = x.contiguous()
    batch, tokens, heads, width = x.shape
    half = width // 2
    cos, sin = (table.reshape(-1, half).contiguous() for table in (cos, sin))
    if x.numel():
        block = triton.next_power_of_2(half)
        at_once = min(triton.next_power_of_2(heads), max(1, NUMBERS_OF_HEADS // block))
        kernel: Any = rotate_kernel
        kernel[(batch * tokens, triton.cdiv(heads, at_once))](
            *(x, out, cos, sin, *x.stride()[:3], *out.stride()[:3], half, tokens, len(cos), heads, half),
            STEP=2 if interleave else 1,
            OFFSET=1 if interleave else half,
            SIGN=-1 if inverse else 1,
            HEADS=at_once,
            HALF=block,
            SUM_DTYPE=sum_format(x.dtype),
            num_warps=4,
        )
