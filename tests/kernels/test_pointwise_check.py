"""A back end of SwiGLU and rotary embedding is taken where its results are those of fp64."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fourfold.kernels.backend import Backend
from fourfold.kernels.pointwise import FORMULA, KIND, TRITON, PointwiseCase
from tests.support.fused_operations import PlainPointwise

CASE = PointwiseCase(rows=100, ffn=24, heads=3, width=8, dtype=torch.bfloat16, device=torch.device("cpu"))


class _UpIsForgotten(PlainPointwise):
    def swiglu(self, gate_up: Tensor) -> Tensor:
        return torch.nn.functional.silu(gate_up.chunk(2, dim=-1)[0])


class _GradientsAreSwapped(PlainPointwise):
    def swiglu_backward_(self, grad: Tensor, gate_up: Tensor) -> None:
        super().swiglu_backward_(grad, gate_up)
        gate_up.copy_(gate_up.roll(gate_up.shape[1] // 2, 1))


class _NothingIsInverse(PlainPointwise):
    def rotate_(self, x: Tensor, cos: Tensor, sin: Tensor, interleave: bool, inverse: bool) -> None:
        super().rotate_(x, cos, sin, interleave, False)


class _NothingIsTurnedBack(PlainPointwise):
    def rotate_into(self, x: Tensor, out: Tensor, cos: Tensor, sin: Tensor, inverse: bool) -> None:
        super().rotate_into(x, out, cos, sin, False)


class _WeightsAreForgotten(PlainPointwise):
    def weighted(self, gate_up: Tensor, weights: Tensor) -> Tensor:
        return self.swiglu(gate_up)


class _WeightsHaveNoGradient(PlainPointwise):
    def weighted_backward_(self, grad: Tensor, gate_up: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        return super().weighted_backward_(grad, gate_up, weights)[0], torch.zeros_like(weights)


class _NothingIsInterleaved(PlainPointwise):
    def rotate_(self, x: Tensor, cos: Tensor, sin: Tensor, interleave: bool, inverse: bool) -> None:
        super().rotate_(x, cos, sin, False, inverse)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("backend", [FORMULA, Backend("other", {"pointwise": PlainPointwise()})])
def test_the_formulas_are_right(backend: Backend[PointwiseCase], dtype: torch.dtype) -> None:
    assert KIND.examine(backend, replace(CASE, dtype=dtype)) is None


@pytest.mark.parametrize(
    ("kernels", "problem"),
    [
        (_UpIsForgotten, "its SwiGLU is off by"),
        (_GradientsAreSwapped, "its gradient of SwiGLU is off by"),
        (_NothingIsTurnedBack, "its rotary embedding into another array is off by"),
        (_WeightsAreForgotten, "its weighted SwiGLU is off by"),
        (_WeightsHaveNoGradient, "its gradient of the weights of rows is off by"),
        (_NothingIsInverse, "its rotary embedding is off by"),
        (_NothingIsInterleaved, "its rotary embedding is off by"),
    ],
)
def test_one_that_is_wrong_is_not_taken(kernels: Callable[[], PlainPointwise], problem: str) -> None:
    found = KIND.examine(Backend("other", {"pointwise": kernels()}), CASE)
    assert found is not None
    assert found.startswith(problem)


def test_kernels_for_gpus_say_so() -> None:
    assert KIND.examine(TRITON, CASE) == "it runs on CUDA"
