"""RMSNorm (Zhang & Sennrich 2019) as two Triton kernels, and their launches. With TRITON_INTERPRET=1 they run on a CPU.

Every number of a row is read once and written once; sums are in `SUM_DTYPE`. Programs of the backward add the weight's gradient
over rows of their own, in order, so that it has the same bits each time.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fourfold.kernels.triton_rows import constants, dense_rows, load
from fourfold.model.tiled_attention import accumulation_dtype

MOST_PROGRAMS = 256
"""Programs of the backward, each of which writes a part of the weight's gradient: about two for a multiprocessor of an H100."""


@triton.jit
def forward_kernel(  # type: ignore[no-untyped-def]
    x,
    weight,
    out,
    scale,
    residual,
    x_stride,
    out_stride,
    residual_stride,
    width,
    EPS: tl.constexpr,
    IS_AGAIN: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    BLOCK: tl.constexpr,
    SUM_DTYPE: tl.constexpr,
):
    """One row: out = x s w with s = 1 / sqrt(mean(x^2) + eps), which goes into `scale`, or `IS_AGAIN` comes from there. A
    residual is added to x first, and their sum, rounded, takes its place."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    place = x + row * x_stride + columns
    values = load(place, inside, SUM_DTYPE)
    if HAS_RESIDUAL:
        total = values + load(residual + row * residual_stride + columns, inside, SUM_DTYPE)
        rounded = total.to(x.dtype.element_ty)
        tl.store(place, rounded, mask=inside)
        values = rounded.to(SUM_DTYPE)
    gain = load(weight + columns, inside, SUM_DTYPE)
    if IS_AGAIN:
        factor = tl.load(scale + row)
    else:
        factor = 1.0 / tl.sqrt(tl.sum(values * values) / width + EPS)
        tl.store(scale + row, factor)
    tl.store(out + row * out_stride + columns, (values * factor * gain).to(out.dtype.element_ty), mask=inside)


@triton.jit
def backward_kernel(  # type: ignore[no-untyped-def]
    grad,
    x,
    scale,
    weight,
    residual,
    grad_x,
    parts,
    grad_stride,
    x_stride,
    residual_stride,
    grad_x_stride,
    rows,
    rows_each,
    width,
    HAS_RESIDUAL: tl.constexpr,
    BLOCK: tl.constexpr,
    SUM_DTYPE: tl.constexpr,
):
    """`rows_each` rows: grad_x = s (g w - x s^2 mean(g w x)) + residual; their part of the weight's gradient, the sum of g x s."""
    program = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    total = tl.zeros([BLOCK], SUM_DTYPE)
    first = program * rows_each
    for row in range(first, tl.minimum(first + rows_each, rows)):
        g = load(grad + row * grad_stride + columns, inside, SUM_DTYPE)
        factor = tl.load(scale + row)
        normed = load(x + row * x_stride + columns, inside, SUM_DTYPE) * factor
        total += g * normed
        g = g * load(weight + columns, inside, SUM_DTYPE)  # from the cache: registers are few
        result = factor * (g - normed * (tl.sum(g * normed) / width))
        if HAS_RESIDUAL:
            result += load(residual + row * residual_stride + columns, inside, SUM_DTYPE)
        tl.store(grad_x + row * grad_x_stride + columns, result.to(grad_x.dtype.element_ty), mask=inside)
    tl.store(parts + program * width + columns, total, mask=inside)


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
