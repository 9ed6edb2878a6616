"""Matmuls of `torch_operations` in fp32 by oneDNN, the library that PyTorch takes for bf16 on a processor beside MKL for fp32.

`mkldnn::_linear_pointwise` is where Inductor enters oneDNN. It makes a tensor for its result; what goes into a buffer, as weight
gradients do, passes through one of at most 1 MiB. Formats other than fp32, and no rows at all, go the way of `torch_operations`.
"""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from fourfold.model import torch_operations
from fourfold.model.torch_grouped import accumulate as accumulate_by_torch

FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT = "forward", "input gradient", "weight gradient"
TEMPORARY_ELEMENTS = 2**18
"""Elements of a result that exist beside the buffer that it goes into."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return _multiply(x, weight, bias) if _takes(x, weight) else torch_operations.linear(x, weight, bias)


def linear_add(residual: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    if not (_takes(x, weight) and residual.shape == (len(x), len(weight))):
        return torch_operations.linear_add(residual, x, weight)
    result: Tensor = _entrance().binary(x, residual, weight, None, "add")
    return result


def matmul(a: Tensor, b: Tensor) -> Tensor:
    return _multiply(a, b.t()) if _takes(a, b) else torch_operations.matmul(a, b)


def matmul_into(a: Tensor, b: Tensor, out: Tensor) -> None:
    if not _takes(a, b):
        torch_operations.matmul_into(a, b, out)
        return
    for rows in _parts(out):
        out[rows].copy_(_multiply(a[rows], b.t()))


def accumulate(grad: Tensor, grad_output: Tensor, inputs: Tensor, fresh: bool) -> None:
    if not _takes(grad_output, inputs) or grad.dtype != torch.float32:
        accumulate_by_torch(grad, grad_output, inputs, fresh)
        return
    for rows in _parts(grad):
        put = grad[rows].copy_ if fresh else grad[rows].add_
        part = (
            grad_output[:, rows].contiguous().t().contiguous()
        )  # torch transposes dense rows faster than oneDNN reads them across
        put(_multiply(part, inputs.t()))


MATMULS: Mapping[str, Mapping[str, Callable[..., object]]] = MappingProxyType(
    {
        FORWARD: {"linear": linear, "linear_add": linear_add},
        INPUT_GRADIENT: {"matmul": matmul, "matmul_into": matmul_into},
        WEIGHT_GRADIENT: {"accumulate": accumulate},
    }
)
"""The operations that each kind of matmul replaces."""


def is_available() -> bool:
    """Whether this build of PyTorch has oneDNN and the entrance to it."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _entrance() -> Any:
    return torch.ops.mkldnn._linear_pointwise


def _takes(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype == torch.float32 and a.numel() > 0 and b.numel() > 0


def _parts(out: Tensor) -> Iterator[slice]:
    """Rows of a buffer [rows, columns], a few at a time."""
    step = max(1, TEMPORARY_ELEMENTS // out.shape[1])
    return (slice(first, first + step) for first in range(0, len(out), step))


def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [..., in] @ weight [out, in]^T + bias [out]."""
    result: Tensor = _entrance()(x, weight, bias, "none", [], "")
    return result
