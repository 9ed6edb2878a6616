"""Attention by the Triton kernels: sizes of tiles, the range of tiles that each program visits, and launches."""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
import triton
from torch import Tensor

from fourfold.kernels.attention.triton_kernels import forward_kernel, keys_kernel, queries_kernel
from fourfold.kernels.triton_rows import dense_rows, sum_format
from fourfold.model.tiled_attention import accumulation_dtype, by_rows, dense, on_device
from fourfold.model.visible import Integers, Range, Visible, tiles


class Blocks(NamedTuple):
    """How many queries and keys a tile has, powers of two and 16 at least; the warps of a program, and loads in flight."""

    queries: int
    keys: int
    warps: int = 4
    stages: int = 1


def blocks_of(dtype: torch.dtype, width: int) -> Blocks:
    """Tiles that an A100 holds without spilling, by what Triton's compiler says of them; nobody has timed them."""
    if dtype.itemsize > 2:
        return Blocks(32, 32) if width <= 64 and dtype.itemsize == 4 else Blocks(16, 16)
    return Blocks(64, 64 if width <= 128 else 32, 4 if width <= 64 else 8, 2)


def attend(
    q: Tensor, k: Tensor, v: Tensor, visible: Visible, scale: float, blocks: Blocks | None = None
) -> tuple[Tensor, Tensor]:
    """q [batch, queries, heads, d], k [batch, keys, kv_heads, d], v [batch, keys, kv_heads, value] -> out [batch, queries, heads,
    value] in q's format, and the log-sum-exp of the scores [batch, heads, queries] in fp32 (fp64 for fp64)."""
    blocks = blocks or blocks_of(q.dtype, q.shape[3])
    q, k, v = (dense_rows(x) for x in (q, k, v))
    batch, queries, heads, _ = q.shape
    out = q.new_empty((*q.shape[:-1], v.shape[-1]))
    lse = q.new_empty((batch, heads, queries), dtype=accumulation_dtype(q))
    begins, ends = _key_ranges(visible, blocks)
    arrays = on_device(q, visible.first, visible.last, begins, ends)
    strides = [x.stride() for x in (q, k, v, out)]
    grid = (len(begins), batch * heads)
    _launch(forward_kernel, grid, (q, k, v, out, lse, *arrays, *strides), q, k, v, blocks, scale)
    return out, lse


def attend_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    visible: Visible,
    scale: float,
    blocks: Blocks | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v, shaped as they are. `grad` and `out` [batch, queries, heads, value], `lse` [batch, heads, queries]:
    over all keys that the queries see, also those of other calls."""
    blocks = blocks or blocks_of(q.dtype, q.shape[3])
    shared = (grad.to(lse.dtype) * out).sum(-1).transpose(1, 2).contiguous()
    grad, q, k, v, lse = dense_rows(grad), dense_rows(q), dense_rows(k), dense_rows(v), lse.contiguous()
    batch, _, heads, _ = q.shape
    d_q, d_k, d_v = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    inputs, strides = (q, k, v, grad, lse, shared), [x.stride() for x in (q, k, v, grad)]
    begins, ends = _query_ranges(visible, blocks)
    arrays = on_device(q, visible.first, visible.last, begins, ends)
    arguments = (*inputs, d_k, d_v, *arrays, *strides, d_k.stride(), d_v.stride())
    _launch(keys_kernel, (len(begins), batch * k.shape[2]), arguments, q, k, v, blocks, scale)
    begins, ends = _key_ranges(visible, blocks)
    arrays = on_device(q, visible.first, visible.last, begins, ends)
    arguments = (*inputs, d_q, *arrays, *strides, d_q.stride())
    _launch(queries_kernel, (len(begins), batch * heads), arguments, q, k, v, blocks, scale)
    return d_q, d_k, d_v


attend_rows, attend_rows_backward = by_rows(attend, attend_backward, lambda x: x, lru_cache(maxsize=64)(dense))
"""Kernels read the intervals from the device: they are sent there once."""


def _key_ranges(visible: Visible, blocks: Blocks) -> tuple[Integers, Integers]:
    """For every tile of queries the first key to visit, at the start of a tile, and one past the last."""
    ranges = [visible.keys_of(rows) for rows in tiles((0, visible.queries), blocks.queries, visible.queries)]
    return _starts_and_ends(ranges, blocks.keys)


def _query_ranges(visible: Visible, blocks: Blocks) -> tuple[Integers, Integers]:
    """Starts and ends of the queries that see a tile of keys, for every tile."""
    ranges = [visible.queries_of(columns) for columns in tiles((0, visible.keys), blocks.keys, visible.keys)]
    return _starts_and_ends(ranges, blocks.queries)


def _starts_and_ends(ranges: list[Range], size: int) -> tuple[Integers, Integers]:
    starts = [first - first % size for first, _ in ranges]
    return np.array(starts, np.int32), np.array([last for _, last in ranges], np.int32)


def _launch(
    kernel: Any,
    grid: tuple[int, int],
    arguments: tuple[Any, ...],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    blocks: Blocks,
    scale: float,
) -> None:
    """Adds what all three kernels take."""
    if 0 in grid:
        return
    heads, kv_heads, sum_dtype = q.shape[2], k.shape[2], accumulation_dtype(q)
    sizes = (heads, heads // kv_heads, q.shape[1], k.shape[1], q.shape[3], v.shape[3])
    kernel[grid](
        *arguments, *sizes, QUERIES=blocks.queries, KEYS=blocks.keys, WIDTH=power_of_two(q.shape[3]),
        VALUE=power_of_two(v.shape[3]), SCALE=scale, SUM_DTYPE=sum_format(q.dtype),
        LOWEST=torch.finfo(sum_dtype).min, num_warps=blocks.warps, num_stages=blocks.stages,
    )  # fmt: skip


def power_of_two(width: int) -> int:
    """The power of two that holds it, 16 at least: what a product of tiles takes."""
    return max(16, triton.next_power_of_2(width))
