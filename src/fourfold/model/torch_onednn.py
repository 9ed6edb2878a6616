"""Matmuls of `torch_operations` in fp32 by oneDNN, the library that PyTorch takes for bf16 on a processor beside MKL for fp32.

`mkldnn::_linear_pointwise` is where Inductor enters oneDNN. It makes a tensor for its result; what is added into a buffer, as
weight gradients are, passes through one. Formats other than fp32, and no rows at all, go the way of `torch_operations`.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from fourfold.model import torch_operations
from fourfold.model.torch_grouped import accumulate as accumulate_by_torch

FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT = "forward", "input gradient", "weight gradient"


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
    if _takes(a, b):
        out.copy_(_multiply(a, b.t()))
    else:
        torch_operations.matmul_into(a, b, out)


def accumulate(grad: Tensor, grad_output: Tensor, inputs: Tensor, fresh: bool) -> None:
    if not _takes(grad_output, inputs) or grad.dtype != torch.float32:
        accumulate_by_torch(grad, grad_output, inputs, fresh)
        return
    update = _multiply(grad_output.t(), inputs.t())
    grad.copy_(update) if fresh else grad.add_(update)


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


def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [..., in] @ weight [out, in]^T + bias [out]."""
    result: Tensor = _entrance()(x, weight, bias, "none", [], "")
    return result
