"""Helpers of Triton kernels that have rows of numbers: sizes of blocks, strides, formats of sums."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def load(place, inside, SUM_DTYPE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Numbers of a row in the format of sums, with 0 beyond its end."""
    return tl.load(place, mask=inside, other=0.0).to(SUM_DTYPE)


def constants(dtype: torch.dtype, width: int, largest: int | None = None) -> dict[str, Any]:
    """Sizes for rows of so many numbers, in blocks of `largest` at most, None: in one. A thread has 16 numbers of a block."""
    block: int = triton.next_power_of_2(width)
    block = block if largest is None else min(largest, block)
    return {"BLOCK": block, "SUM_DTYPE": sum_format(dtype), "num_warps": max(1, min(32, block // 512))}


def dense_rows(x: Tensor) -> Tensor:
    """x [..., n] with its last dimension dense, as the kernels read it."""
    return x if x.stride(-1) == 1 else x.contiguous()


def sum_format(dtype: torch.dtype) -> tl.dtype:
    """Triton's name for the format of sums over numbers of a format (`tiled_attention.accumulation_dtype`)."""
    return tl.float64 if dtype == torch.float64 else tl.float32
