"""A back end of norms is taken where its results are those of fp64, and its weight gradients are not rounded as weights are."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fourfold.kernels.backend import Backend
from fourfold.kernels.norm import FORMULA, KIND, TORCH, TRITON, FormulaNorms, NormCase
from tests.support.backends import norms_with

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
CASE = NormCase(rows=200, width=48, dtype=torch.bfloat16, device=CPU, eps=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("sizes", [(1, 1), (200, 48), (3, 7)], ids=str)
def test_the_formula_is_right(dtype: torch.dtype, sizes: tuple[int, int]) -> None:
    rows, width = sizes
    assert KIND.examine(FORMULA, replace(CASE, rows=rows, width=width, dtype=dtype)) is None


def _forward_without_epsilon(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return FormulaNorms.forward(x, weight, 0.5)


def _not_in_place(residual: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return FormulaNorms.forward(x + residual, weight, eps)


def _of_the_summand(residual: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    result = FormulaNorms.forward(x, weight, eps)
    x.add_(residual)
    return result


def _other_bits(x: Tensor, scale: Tensor, weight: Tensor, eps: float) -> Tensor:
    return FormulaNorms.again(x, scale * 1.01, weight, eps)


def _rounded(*given: Any) -> tuple[Tensor, Tensor]:
    grad_x, grad_weight = FormulaNorms.backward(*given)
    return grad_x, grad_weight.bfloat16().float()


def _no_residual(grad: Tensor, x: Tensor, scale: Tensor, weight: Tensor, residual: Any) -> tuple[Tensor, Tensor]:
    return FormulaNorms.backward(grad, x, scale, weight, None)


def _fails(*given: Any) -> Any:
    raise RuntimeError("broken")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"forward": _forward_without_epsilon}, "its output is off by"),
        ({"again": _other_bits}, "its output has other bits when it is computed again"),
        ({"add_forward": _not_in_place}, "its sum with the residual is off by"),
        ({"add_forward": _of_the_summand}, "its output of a sum is off by"),
        ({"backward": _rounded}, "its gradient of the weight is off by"),
        ({"backward": _no_residual}, "its gradient is off by"),
        ({"backward": _fails}, "RuntimeError: broken"),
    ],
)
def test_one_that_is_wrong_is_not_taken(changes: dict[str, Any], problem: str) -> None:
    backend = norms_with(**changes)
    found = KIND.examine(backend, CASE)
    assert found is not None
    assert found.startswith(problem)
    own = KIND.contest(CASE, {"formula": FORMULA, "other": backend})
    trials = own.measure(own.examine, lambda call: float(call() is not None))
    assert (trials["formula"].seconds, trials["formula"].problem) == (1.0, None)
    assert (trials["other"].seconds, trials["other"].problem) == (float("inf"), found)


def test_one_that_refuses_a_case_is_not_taken() -> None:
    assert KIND.examine(replace(FORMULA, refuses=lambda case: "it is not here"), CASE) == "it is not here"


@pytest.mark.parametrize("backend", [TORCH, TRITON], ids=lambda backend: backend.name)
def test_kernels_for_gpus_say_so(backend: Backend[NormCase]) -> None:
    assert KIND.examine(backend, CASE) == "it runs on CUDA"


def test_rows_that_are_too_long_are_refused() -> None:
    assert TRITON.refuses(replace(CASE, device=CUDA, width=32768)) == "its rows have 16384 numbers at most"
