"""Matmuls and attention by shape, as the runtime calls them."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from fourfold.calibrate.clock import seconds_each
from fourfold.model.torch_attention import attend, attend_backward
from fourfold.model.torch_operations import torch_dtype

GEMM_SIZES = (32, 96, 256, 640, 1536)
QUERIES = (32, 64, 128, 256, 512, 1024)
HEAD_SIZES = (16, 32, 64, 128)
_POOL_BYTES = 96 * 2**20
"""Weights are taken from all over as much memory, so that they are no more in a cache than those of a model are."""


def measure_gemms(rank: int, device: torch.device, dtype: str, window: float) -> dict[str, Any]:
    """FLOP/s of products [rows, inner] x [inner, columns], as nested lists in the order rows, columns, inner. `plain`: the mean
    of a forward product and an input gradient; `accumulated`: a weight gradient added in place, its `inner` the tokens."""
    pool = torch.full((_POOL_BYTES // torch_dtype(dtype).itemsize,), 0.01, dtype=torch_dtype(dtype), device=device)
    sizes = GEMM_SIZES
    plain = [[[_plain(r, c, i, pool, window) for i in sizes] for c in sizes] for r in sizes]
    added = [[[_accumulated(r, c, i, pool, window) for i in sizes] for c in sizes] for r in sizes]
    return {"sizes": list(sizes), "plain": plain, "accumulated": added}


def _taken(pool: torch.Tensor, rows: int, columns: int) -> Callable[[], torch.Tensor]:
    """Gives one matrix [rows, columns] of the pool after the other."""
    size = rows * columns
    count = pool.numel() // size
    at = -1

    def take() -> torch.Tensor:
        nonlocal at
        at = (at + 1) % count
        return pool[at * size : (at + 1) * size].view(rows, columns)

    return take


def _plain(rows: int, columns: int, inner: int, pool: torch.Tensor, window: float) -> float:
    x = torch.full((rows, inner), 0.5, dtype=pool.dtype, device=pool.device)
    forward, backward = _taken(pool, columns, inner), _taken(pool, inner, columns)

    def both() -> None:
        F.linear(x, forward())
        torch.mm(x, backward())

    with torch.no_grad():
        return 4.0 * rows * columns * inner / seconds_each(both, pool.device, window)


def _accumulated(rows: int, columns: int, inner: int, pool: torch.Tensor, window: float) -> float:
    grad = torch.full((inner, rows), 1e-6, dtype=pool.dtype, device=pool.device)
    x = torch.full((inner, columns), 1e-6, dtype=pool.dtype, device=pool.device)
    weight = _taken(pool, rows, columns)
    with torch.no_grad():
        seconds = seconds_each(lambda: weight().addmm_(grad.t(), x), pool.device, window)
    return 2.0 * rows * columns * inner / seconds


def measure_attention(rank: int, device: torch.device, dtype: str, window: float) -> dict[str, Any]:
    """FLOP/s as `model.work.Attention` counts them, by queries (as many keys) and size of a head."""
    forward, backward = [], []
    for queries in QUERIES:
        pairs = [_attention(queries, width, device, torch_dtype(dtype), window) for width in HEAD_SIZES]
        forward.append([pair[0] for pair in pairs])
        backward.append([pair[1] for pair in pairs])
    return {"queries": list(QUERIES), "head_sizes": list(HEAD_SIZES), "forward": forward, "backward": backward}


def _attention(
    queries: int, width: int, device: torch.device, dtype: torch.dtype, window: float
) -> tuple[float, float]:
    heads = 4
    batch = max(1, 512 // queries)
    q, k, v = torch.full((batch, queries, 3 * heads, width), 0.1, dtype=dtype, device=device).chunk(3, dim=2)
    square = batch * queries * queries * heads
    with torch.no_grad():
        out, statistics = attend(q, k, v, True, width**-0.5)
        forward = seconds_each(lambda: attend(q, k, v, True, width**-0.5), device, window)
        grad = out.clone()
        backward = seconds_each(
            lambda: attend_backward(grad, q, k, v, out, statistics, True, width**-0.5), device, window
        )
    return 2 * square * width / forward, 5 * square * width / backward
