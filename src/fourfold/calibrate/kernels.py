"""Matmuls and attention by shape, as the runtime calls them: fp32 matmuls on a processor by the library that a run would choose."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch

from fourfold.calibrate.clock import Meter, numbers
from fourfold.calibrate.steps import table_spec
from fourfold.kernels.matmul.libraries import (
    LibrarySeconds,
    by_onednn,
    faster_by_onednn,
    measure,
    of_slowest,
    problem_of_onednn,
    processor_clock,
    step_matmuls,
    wall_clock,
)
from fourfold.model import torch_operations
from fourfold.model.operations import Operations
from fourfold.model.torch_attention import attend, attend_backward
from fourfold.model.torch_onednn import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT
from fourfold.model.torch_operations import torch_dtype
from fourfold.model.work import Attention, Gemm
from fourfold.program import lower_pipeline
from fourfold.train.session import most_of_ranks

GEMM_SIZES = (32, 96, 256, 640, 1536)
QUERIES = (32, 64, 128, 256, 512, 1024)
HEAD_SIZES = (16, 32, 64, 128)
POOL_BYTES = 96 * 2**20
"""Weights are taken from all over as much memory, so that they are no more in a cache than those of a model are."""


class Libraries(NamedTuple):
    """`by_onednn`: the kinds of matmuls that oneDNN computes, being faster. `torch_speeds`: how fast PyTorch's own library
    is beside what is so chosen, for products and input gradients (`plain`) and for weight gradients (`accumulated`)."""

    by_onednn: tuple[str, ...]
    torch_speeds: Mapping[str, float]

    @classmethod
    def of(cls, chosen: tuple[str, ...], seconds: Mapping[str, LibrarySeconds]) -> "Libraries":
        """`seconds`: of a step's matmuls by each library, by the clock."""

        def speed(*kinds: str) -> float:
            taken = sum(seconds[kind].onednn if kind in chosen else seconds[kind].torch for kind in kinds)
            return taken / sum(seconds[kind].torch for kind in kinds)

        return cls(chosen, {"plain": speed(FORWARD, INPUT_GRADIENT), "accumulated": speed(WEIGHT_GRADIENT)})

    @property
    def torch_speed(self) -> float | None:
        """The speed of PyTorch's own library over the three products of a matmul's passes; None where it computes all."""
        if not self.by_onednn:
            return None
        return 3 / (2 / self.torch_speeds["plain"] + 1 / self.torch_speeds["accumulated"])


ONE_LIBRARY = Libraries((), {"plain": 1.0, "accumulated": 1.0})
"""PyTorch's own computes all."""


def choose_library(rank: int, device: torch.device, table: Mapping[str, Any]) -> Libraries:
    """Libraries of the matmuls of a step of the run table, which each rank has for itself: the same on all ranks, by the slowest
    rank's time (`kernels.matmul`). They are chosen by seconds of the processor, as a run does; speeds are by the clock, since
    threads of a library that wait for one another take a processor's time as well."""
    spec = table_spec(table, 1, device.type)
    if device.type != "cpu" or spec.compute != "fp32" or problem_of_onednn() is not None:
        return ONE_LIBRARY
    matmuls = step_matmuls(lower_pipeline(spec)[0])
    slowest = partial(of_slowest, most=partial(most_of_ranks, device=device))
    chosen = faster_by_onednn(slowest(measure(matmuls, processor_clock)))
    return Libraries.of(chosen, slowest(measure(matmuls, wall_clock))) if chosen else ONE_LIBRARY


def library_text(by_library: Sequence[str]) -> str:
    """` (by oneDNN: forward, input gradient)`, to stand behind a format; empty where PyTorch's own library computes all."""
    return f" (by oneDNN: {', '.join(by_library)})" if by_library else ""


def measure_gemms(
    rank: int, device: torch.device, dtype: str, window: float, by_library: tuple[str, ...]
) -> dict[str, Any]:
    """FLOP/s of products [rows, inner] x [inner, columns], as nested lists in the order rows, columns, inner. `plain`: the mean
    of a forward product and an input gradient; `accumulated`: a weight gradient added in place, its `inner` the tokens.
    `by_library`: the kinds that oneDNN computes."""
    meter, pool, ops = Meter(device), weight_pool(device, dtype, POOL_BYTES), by_onednn(torch_operations, by_library)
    sizes = GEMM_SIZES
    plain = [[[plain_rate(Gemm(r, c, i), pool, meter, window, ops) for i in sizes] for c in sizes] for r in sizes]
    added = [[[accumulated_rate(Gemm(r, c, i), pool, meter, window, ops) for i in sizes] for c in sizes] for r in sizes]
    return {"sizes": list(sizes), "plain": plain, "accumulated": added}


def weight_pool(device: torch.device, dtype: str, size: int) -> torch.Tensor:
    """Memory of `size` bytes that weights are taken from."""
    return numbers((size // torch_dtype(dtype).itemsize,), 0.01, torch_dtype(dtype), device)


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


def plain_rate(gemm: Gemm, pool: torch.Tensor, meter: Meter, window: float, operations: Operations) -> float:
    """FLOP/s, the mean of a forward product and an input gradient."""
    x = numbers((gemm.rows, gemm.inner), 0.5, pool.dtype, pool.device)
    forward, backward = _taken(pool, gemm.columns, gemm.inner), _taken(pool, gemm.inner, gemm.columns)

    def both() -> None:
        operations.linear(x, forward())
        operations.matmul(x, backward())

    with torch.no_grad():
        return 2 * gemm.flops / meter.seconds_each(both, window)


def accumulated_rate(gemm: Gemm, pool: torch.Tensor, meter: Meter, window: float, operations: Operations) -> float:
    """FLOP/s of a weight gradient [rows, columns] added in place; `inner`: its tokens."""
    grad = numbers((gemm.inner, gemm.rows), 1e-6, pool.dtype, pool.device)
    x = numbers((gemm.inner, gemm.columns), 1e-6, pool.dtype, pool.device)
    weight = _taken(pool, gemm.rows, gemm.columns)
    with torch.no_grad():
        return gemm.flops / meter.seconds_each(lambda: operations.accumulate(weight(), grad, x, False), window)


def measure_attention(rank: int, device: torch.device, dtype: str, window: float) -> dict[str, Any]:
    """FLOP/s as `model.work.Attention` counts them, by queries (as many keys) and size of a head."""
    meter, forward, backward = Meter(device), list[list[float]](), list[list[float]]()
    for queries in QUERIES:
        shapes = [Attention(max(1, 512 // queries), queries, queries, 4, 4, width, width) for width in HEAD_SIZES]
        pairs = [attention_rates(shape, dtype, meter, window) for shape in shapes]
        forward.append([pair[0] for pair in pairs])
        backward.append([pair[1] for pair in pairs])
    return {"queries": list(QUERIES), "head_sizes": list(HEAD_SIZES), "forward": forward, "backward": backward}


def attention_rates(shape: Attention, dtype: str, meter: Meter, window: float) -> tuple[float, float]:
    """FLOP/s forward and backward. `shape`: a forward of as many keys as queries, all heads alike."""
    width, scale = shape.query_key_dim, shape.query_key_dim**-0.5
    size = (shape.sequences, shape.queries, 3 * shape.heads, width)
    q, k, v = numbers(size, 0.1, torch_dtype(dtype), meter.device).chunk(3, dim=2)
    with torch.no_grad():
        out, statistics = attend(q, k, v, True, scale)
        forward = meter.seconds_each(lambda: attend(q, k, v, True, scale), window)
        grad = out.clone()
        backward = meter.seconds_each(lambda: attend_backward(grad, q, k, v, out, statistics, True, scale), window)
    return shape.flops / forward, replace(shape, backward=True).flops / backward
