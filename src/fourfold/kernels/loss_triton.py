"""Cross-entropy as two Triton kernels, also of a part of the vocabulary, and their launches. With TRITON_INTERPRET=1 they run on a
CPU.

The first reads the logits once (the maximum and the sum of exponentials of a row together: Milakov & Gimelshein 2018); the second
reads them again and writes their gradient in their place.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fourfold.kernels.triton_rows import constants, dense_rows
from fourfold.model.tiled_attention import accumulation_dtype

LARGEST_BLOCK = 4096


@triton.jit
def statistics_kernel(  # type: ignore[no-untyped-def]
    logits,
    column,
    here,
    maximum,
    total,
    picked,
    row_stride,
    width,
    LOWEST: tl.constexpr,
    BLOCK: tl.constexpr,
    SUM_DTYPE: tl.constexpr,
):
    """One row: its maximum, the sum of exp(logit - maximum), and the logit of `column`, 0 where that is not `here`."""
    row = tl.program_id(0).to(tl.int64)
    start = logits + row * row_stride
    places = tl.arange(0, BLOCK)
    highest = tl.full([BLOCK], LOWEST, SUM_DTYPE)
    sums = tl.zeros([BLOCK], SUM_DTYPE)
    for first in range(0, width, BLOCK):
        columns = first + places
        values = tl.load(start + columns, mask=columns < width, other=-float("inf")).to(SUM_DTYPE)
        higher = tl.maximum(highest, values)
        sums = sums * tl.exp(highest - higher) + tl.exp(values - higher)
        highest = higher
    top = tl.max(highest)
    tl.store(maximum + row, top)
    tl.store(total + row, tl.sum(sums * tl.exp(highest - top)))
    is_here = tl.load(here + row) != 0
    found = tl.load(start + tl.load(column + row), mask=is_here, other=0.0)
    tl.store(picked + row, found.to(SUM_DTYPE))


@triton.jit
def gradient_kernel(  # type: ignore[no-untyped-def]
    logits,
    column,
    maximum,
    factor,
    target,
    row_stride,
    width,
    BLOCK: tl.constexpr,
    SUM_DTYPE: tl.constexpr,
):
    """A block of a row: logit = exp(logit - maximum) x factor, plus `target` in `column`."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    place = logits + row * row_stride + columns
    values = tl.load(place, mask=inside, other=-float("inf")).to(SUM_DTYPE)
    result = tl.exp(values - tl.load(maximum + row)) * tl.load(factor + row)
    result = tl.where(columns == tl.load(column + row), result + tl.load(target + row), result)
    tl.store(place, result.to(logits.dtype.element_ty), mask=inside)


def statistics(logits: Tensor, column: Tensor, here: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """logits [tokens, columns] -> the maximum of each row, the sum of exp(logit - maximum), and the logit of `column` [tokens]
    int64 where it is `here` [tokens] bool, else 0; each [tokens] in fp32, fp64 for fp64."""
    logits = dense_rows(logits)
    rows, width = logits.shape
    maximum, total, picked = (logits.new_empty(rows, dtype=accumulation_dtype(logits)) for _ in range(3))
    if logits.numel():
        kernel: Any = statistics_kernel
        kernel[(rows,)](
            *(logits, column, here, maximum, total, picked, logits.stride(0), width),
            LOWEST=torch.finfo(maximum.dtype).min,
            **constants(logits.dtype, width, LARGEST_BLOCK),
        )
    return maximum, total, picked


def gradient_(logits: Tensor, column: Tensor, maximum: Tensor, factor: Tensor, target: Tensor) -> None:
    """logits [tokens, columns] = exp(logits - maximum) x factor, plus `target` in `column`; all others [tokens]."""
    assert logits.stride(-1) == 1, "rows are written in place"
    rows, width = logits.shape
    if logits.numel():
        sizes = constants(logits.dtype, width, LARGEST_BLOCK)
        kernel: Any = gradient_kernel
        kernel[(rows, triton.cdiv(width, sizes["BLOCK"]))](
            *(logits, column, maximum, factor, target, logits.stride(0), width), **sizes
        )
