"""RMSNorm by the Triton kernels: sizes of blocks, rows of each program, and launches."""

from typing import Any

import torch
import triton
from torch import Tensor

from fourfold.flash.tiled import accumulation_dtype
from fourfold.flash.triton_attention import dense_rows, sum_format
from fourfold.fused.norm_kernels import backward_kernel, forward_kernel

MOST_PROGRAMS = 256
"""Programs of the backward, each of which writes a part of the weight's gradient: about two for a multiprocessor of an H100."""


def forward(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x [..., n], weight [n] -> (x / rms(x) * weight, 1/rms [..., 1] in fp32, fp64 for fp64)."""
    scale = x.new_empty((*x.shape[:-1], 1), dtype=accumulation_dtype(x))
    return _apply(x, scale, weight, eps, is_again=False), scale


def add_forward(residual: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """`forward` of residual + x [tokens, n], rounded to their format, which takes the place of x."""
    assert x.stride(-1) == 1, "the sum is written in place"
    scale = x.new_empty((*x.shape[:-1], 1), dtype=accumulation_dtype(x))
    return _apply(x, scale, weight, eps, is_again=False, residual=dense_rows(residual)), scale


def again(x: Tensor, scale: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The output again, to the bit, from its 1/rms."""
    return _apply(x, scale.contiguous(), weight, eps, is_again=True)


def backward(grad: Tensor, x: Tensor, scale: Tensor, weight: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
    """The gradient of x [tokens, n] + `residual` [tokens, n], and that of the weight [n] in fp32 (fp64 for fp64)."""
    grad, x, scale = dense_rows(grad), dense_rows(x), scale.contiguous()
    residual = None if residual is None else dense_rows(residual)
    rows, width = x.shape
    rows_each = max(1, -(-rows // MOST_PROGRAMS))
    programs = -(-rows // rows_each)
    grad_x, parts = torch.empty(x.shape, dtype=x.dtype, device=x.device), scale.new_empty((programs, width))
    if x.numel():
        strides = [each.stride(0) if each is not None else 0 for each in (grad, x, residual, grad_x)]
        arrays = grad, x, scale, weight.contiguous(), residual, grad_x, parts
        kernel: Any = backward_kernel
        kernel[(programs,)](
            *arrays, *strides, rows, rows_each, width, HAS_RESIDUAL=residual is not None, **constants(x.dtype, width)
        )
    return grad_x, parts.sum(0)


def _apply(
    x: Tensor, scale: Tensor, weight: Tensor, eps: float, is_again: bool, residual: Tensor | None = None
) -> Tensor:
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    flat = dense_rows(x.flatten(0, -2))
    if x.numel():
        width = flat.shape[1]
        kernel: Any = forward_kernel
        arrays = flat, weight.contiguous(), out, scale, residual
        strides = flat.stride(0), width, residual.stride(0) if residual is not None else 0
        kernel[(len(flat),)](
            *arrays,
            *strides,
            width,
            EPS=eps,
            IS_AGAIN=is_again,
            HAS_RESIDUAL=residual is not None,
            **constants(x.dtype, width),
        )
    return out


def constants(dtype: torch.dtype, width: int) -> dict[str, Any]:
    """A block has a row; a thread has 16 of its numbers."""
    block = triton.next_power_of_2(width)
    return {"BLOCK": block, "SUM_DTYPE": sum_format(dtype), "num_warps": max(1, min(32, block // 512))}
