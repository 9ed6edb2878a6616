"""A back end of SwiGLU and rotary embedding is taken where its results are those of fp64."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fourfold.fused.pointwise import PointwiseCase
from fourfold.model import torch_operations
from fourfold.model.feed_forward import swiglu, swiglu_backward_
from fourfold.model.rope import rotate_
from fourfold.train.pointwise_choice import FORMULA, TRITON, PointwiseBackend, examine

CASE = PointwiseCase(rows=100, ffn=24, heads=3, width=8, dtype=torch.bfloat16, device=torch.device("cpu"))


class _Formulas:
    """`PointwiseKernels` by the formulas."""

    def swiglu(self, gate_up: Tensor) -> Tensor:
        out: Tensor = swiglu(torch_operations, gate_up)
        return out

    def swiglu_backward_(self, grad: Tensor, gate_up: Tensor) -> None:
        swiglu_backward_(torch_operations, [grad, None], gate_up)

    def rotate_(self, x: Tensor, cos: Tensor, sin: Tensor, interleave: bool, inverse: bool) -> None:
        rotate_(torch_operations, x, cos, sin, interleave, inverse)


class _UpIsForgotten(_Formulas):
    def swiglu(self, gate_up: Tensor) -> Tensor:
        return torch.nn.functional.silu(gate_up.chunk(2, dim=-1)[0])


class _GradientsAreSwapped(_Formulas):
    def swiglu_backward_(self, grad: Tensor, gate_up: Tensor) -> None:
        super().swiglu_backward_(grad, gate_up)
        gate_up.copy_(gate_up.roll(gate_up.shape[1] // 2, 1))


class _NothingIsInverse(_Formulas):
    def rotate_(self, x: Tensor, cos: Tensor, sin: Tensor, interleave: bool, inverse: bool) -> None:
        super().rotate_(x, cos, sin, interleave, False)


class _NothingIsInterleaved(_Formulas):
    def rotate_(self, x: Tensor, cos: Tensor, sin: Tensor, interleave: bool, inverse: bool) -> None:
        super().rotate_(x, cos, sin, False, inverse)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("backend", [FORMULA, PointwiseBackend("other", _Formulas(), lambda case: None)])
def test_the_formulas_are_right(backend: PointwiseBackend, dtype: torch.dtype) -> None:
    assert examine(backend, replace(CASE, dtype=dtype)) is None


@pytest.mark.parametrize(
    ("kernels", "problem"),
    [
        (_UpIsForgotten, "its SwiGLU is off by"),
        (_GradientsAreSwapped, "its gradient of SwiGLU is off by"),
        (_NothingIsInverse, "its rotary embedding is off by"),
        (_NothingIsInterleaved, "its rotary embedding is off by"),
    ],
)
def test_one_that_is_wrong_is_not_taken(kernels: Callable[[], _Formulas], problem: str) -> None:
    found = examine(PointwiseBackend("other", kernels(), lambda case: None), CASE)
    assert found is not None
    assert found.startswith(problem)


def test_kernels_for_gpus_say_so() -> None:
    assert examine(TRITON, CASE) == "it runs on CUDA"
