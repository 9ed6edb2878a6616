"""The operations of segments on torch tensors. `Operations` says what each does."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor

from fourfold.config.schema import Element
from fourfold.model.capped_attention import attend_capped as attend_capped
from fourfold.model.capped_attention import attend_capped_backward as attend_capped_backward
from fourfold.model.operations import Item, LossKernels, NormKernels, PointwiseKernels, RecurrenceKernels
from fourfold.model.own.autograd import run_own as run_own
from fourfold.model.own.autograd import run_own_backward as run_own_backward
from fourfold.model.tiled_attention import largest_score_ as largest_score_
from fourfold.model.torch_attention import attend as attend
from fourfold.model.torch_attention import attend_backward as attend_backward
from fourfold.model.torch_grouped import accumulate as accumulate
from fourfold.model.torch_grouped import grouped_accumulate as grouped_accumulate
from fourfold.model.torch_grouped import grouped_matmul as grouped_matmul
from fourfold.model.torch_scaled import scaled_matmul as scaled_matmul

int64, int32, boolean = torch.int64, torch.int32, torch.bool
norms: NormKernels | None = None
losses: LossKernels | None = None
pointwise: PointwiseKernels | None = None
recurrence: RecurrenceKernels | None = None
_NOTHING: AbstractContextManager[None] = nullcontext()


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return F.linear(x, weight, bias)


def linear_add(residual: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    return F.linear(x, weight).add_(residual)  # `addmm` copies the residual first, then adds to the copy


def matmul(a: Tensor, b: Tensor) -> Tensor:
    return torch.mm(a, b)


def matmul_into(a: Tensor, b: Tensor, out: Tensor) -> None:
    torch.mm(a, b, out=out)


def matmuls(a: Tensor, b: Tensor) -> Tensor:
    return torch.bmm(a, b)


def solve(matrices: Tensor, given: Tensor, upper: bool = False) -> Tensor:
    return torch.linalg.solve_triangular(matrices, given, upper=upper, unitriangular=True)


def upcast(x: Tensor) -> Tensor:
    return x.float() if x.dtype == torch.bfloat16 else x


def accumulation_dtype(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def vector_norm(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1, keepdim=True)


def weighted_rows(x: Tensor, weights: Tensor) -> Tensor:
    return torch.mv(x, weights).unsqueeze_(-1)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    return torch.native_layer_norm(x, x.shape[-1:], weight, bias, eps)


def layer_norm_backward(
    grad: Tensor, x: Tensor, mean: Tensor, scale: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    result: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.native_layer_norm_backward(
        grad, x, x.shape[-1:], mean, scale, weight, bias, [True, True, True]
    )
    return result


def silu(x: Tensor) -> Tensor:
    return F.silu(x)


def gelu(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def gelu_exact(x: Tensor) -> Tensor:
    return F.gelu(x)


def gelu_exact_backward_(grad: Tensor, x: Tensor) -> None:
    torch.ops.aten.gelu_backward.grad_input(grad, x, approximate="none", grad_input=x)


def softplus(x: Tensor) -> Tensor:
    return F.softplus(x)


def silu_backward_(grad: Tensor, x: Tensor) -> None:
    torch.ops.aten.silu_backward.grad_input(grad, x, grad_input=x)


def gelu_backward_(grad: Tensor, x: Tensor) -> None:
    torch.ops.aten.gelu_backward.grad_input(grad, x, approximate="tanh", grad_input=x)


def multiply_into(a: Tensor, b: Tensor, out: Tensor) -> None:
    torch.mul(a, b, out=out)


def multiply_add_into(x: Tensor, a: Tensor, b: Tensor, out: Tensor) -> None:
    torch.addcmul(x, a, b, out=out)


def divide_into(a: Tensor, b: Tensor, out: Tensor) -> None:
    torch.div(a, b, out=out)


def largest_magnitude(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, float("inf"), dim=-1, keepdim=True, dtype=accumulation_dtype(x))


def round_up_to_power_(x: Tensor) -> None:
    double = x.dtype == torch.float64
    bits = x.view(torch.int64 if double else torch.int32)
    fraction, exponents = (52, 0x7FF) if double else (23, 0xFF)
    bits.add_((1 << (fraction - 2)) - 1).bitwise_and_(exponents << fraction)  # a fraction above 0.75 carries


def eight_bits(x: Tensor, element: Element) -> Tensor:
    if x.dtype == torch.float64:
        x = _to_odd(x)
    return x.to(torch.float8_e4m3fn if element == "e4m3" else torch.float8_e5m2)


def _to_odd(x: Tensor) -> Tensor:
    """fp64 as fp32, towards zero, with the last bit set where something was cut off: rounding that once more gives the number
    nearest to x (Boldo & Melquiond 2008), where rounding twice to the nearest may not."""
    nearest = x.float()
    bits = nearest.view(torch.int32)
    bits.sub_((nearest.double().abs() > x.abs()).int())
    bits.bitwise_or_((nearest.double() != x).logical_and_(x.isfinite()).int())
    return nearest


def logaddexp_(x: Tensor, y: Tensor) -> None:
    torch.logaddexp(x, y, out=x)


def copy(x: Tensor) -> Tensor:
    return x.clone(memory_format=torch.contiguous_format)


def concatenate(parts: Sequence[Tensor], dim: int = 0) -> Tensor:
    return torch.cat(tuple(parts), dim=dim)


def flip(x: Tensor, dim: int) -> Tensor:
    return x.flip(dim)


def stack(parts: Sequence[Tensor], dim: int = 0) -> Tensor:
    return torch.stack(tuple(parts), dim=dim)


def where(condition: Tensor, x: Tensor, value: float) -> Tensor:
    return torch.where(condition, x, value)


def arange(start: int, stop: int, like: Tensor) -> Tensor:
    return torch.arange(start, stop, device=like.device)


def embedding(rows: Tensor, table: Tensor) -> Tensor:
    return F.embedding(rows, table)


def add_rows(grad: Tensor, rows: Tensor, values: Tensor) -> None:
    if values.is_cuda:  # index_add_ adds in no fixed order there; sorted accumulation does
        grad.index_put_((rows,), values, accumulate=True)
    else:
        grad.index_add_(0, rows, values)


def sum_rows(places: Tensor, rows: Tensor, missing: int | None) -> Tensor:
    return F.embedding_bag(places, rows, mode="sum", padding_idx=missing)


def take(x: Tensor, index: Tensor) -> Tensor:
    return x.index_select(0, index) if index.dim() == 1 else x[index]  # in half of the time where rows are in the cache


def put(x: Tensor, index: Tensor, values: Tensor) -> None:
    x[index] = values


def top_indices(x: Tensor, k: int) -> Tensor:
    return x.topk(k, dim=-1).indices


def top_values(x: Tensor, k: int) -> Tensor:
    return x.topk(k, dim=-1).values


def repeat(x: Tensor, counts: Tensor, total: int) -> Tensor:
    return x.repeat_interleave(counts, output_size=total)


def host_counts(totals: Tensor, parts: Sequence[int], rows: int) -> list[tuple[int, ...]]:
    values, result, start = totals.tolist(), [], 0  # waits for the device, once
    for size in parts:
        result.append(tuple(values[start : start + size]))
        start += size
    return result


def host_sizes(ends: Tensor, rows: int) -> tuple[int, ...]:
    values = ends.tolist()  # waits for the device
    return tuple(end - start for start, end in zip([0, *values], values, strict=False))


def on_accelerator(x: Tensor) -> bool:
    return x.is_cuda


def fused(name: str = "") -> AbstractContextManager[None]:
    return _NOTHING


def steps(number: int, backwards: bool = False) -> Iterator[int]:
    return iter(reversed(range(number)) if backwards else range(number))


def repeats(items: Iterable[Item], alike: Callable[[Item], object]) -> Iterator[Item]:
    return iter(items)


def torch_dtype(name: str) -> torch.dtype:
    """The torch format of a `fp64`, `fp32` or `bf16` of the run file, and of the `int16` beside bf16 weights."""
    return {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16, "int16": torch.int16}[name]
