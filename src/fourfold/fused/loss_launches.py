"""Cross-entropy by the Triton kernels: sizes of blocks, and launches."""

from typing import Any

import torch
import triton
from torch import Tensor

from fourfold.flash.tiled import accumulation_dtype
from fourfold.flash.triton_attention import dense_rows, sum_format
from fourfold.fused.loss_kernels import gradient_kernel, statistics_kernel

LARGEST_BLOCK = 4096


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
            **constants(logits.dtype, width),
        )
    return maximum, total, picked


def gradient_(logits: Tensor, column: Tensor, maximum: Tensor, factor: Tensor, target: Tensor) -> None:
    """logits [tokens, columns] = exp(logits - maximum) x factor, plus `target` in `column`; all others [tokens]."""
    assert logits.stride(-1) == 1, "rows are written in place"
    rows, width = logits.shape
    if logits.numel():
        sizes = constants(logits.dtype, width)
        kernel: Any = gradient_kernel
        kernel[(rows, triton.cdiv(width, sizes["BLOCK"]))](
            *(logits, column, maximum, factor, target, logits.stride(0), width), **sizes
        )


def constants(dtype: torch.dtype, width: int, largest: int = LARGEST_BLOCK) -> dict[str, Any]:
    """Sizes for rows of so many numbers, in blocks of `largest` at most. A thread has 16 of a block."""
    block = min(largest, triton.next_power_of_2(width))
    return {"BLOCK": block, "SUM_DTYPE": sum_format(dtype), "num_warps": max(1, block // 512)}
