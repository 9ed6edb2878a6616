"""The Triton kernels of RMSNorm equal its formula in fp64, by Triton's interpreter or on a GPU. `test_triton_kernels` runs this in
a process of its own, because triton decides at its import whether it interprets."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fourfold.kernels import norm_triton
from tests.support.parity_check import check_split

BOUNDS = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 3e-2}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EPS = 1e-5


def rows_of(seed: int, dtype: torch.dtype, *sizes: int, is_strided: bool = False) -> Tensor:
    """Numbers of a seed; `is_strided`: a view into a larger tensor, rows apart."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randn(*sizes[:-1], 2 * sizes[-1], dtype=torch.float64, generator=generator).to(DEVICE, dtype)
    part = numbers[..., : sizes[-1]]
    return part if is_strided else part.contiguous()


def exact(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Output and the gradients of x and weight, by autograd in fp64."""
    leaves = x.double().requires_grad_(), weight.double().requires_grad_()
    out = torch.nn.functional.rms_norm(leaves[0], weight.shape, leaves[1], EPS)
    return (out.detach(), *torch.autograd.grad(out, leaves, grad.double()))


ANY_CASE = {
    "width": st.sampled_from([1, 3, 16, 40, 130]),
    "dtype": st.sampled_from(list(BOUNDS)),
    "seed": st.integers(0, 2**31),
    "is_strided": st.booleans(),
    "has_residual": st.booleans(),
}


@settings(max_examples=4, deadline=None, derandomize=True)
@given(rows=st.sampled_from([1, 2, 3]), **ANY_CASE)
def test_kernels_equal_fp64_in_few_rows(
    rows: int, width: int, dtype: torch.dtype, seed: int, is_strided: bool, has_residual: bool
) -> None:
    check(rows, width, dtype, seed, is_strided, has_residual)


@pytest.mark.rest
@settings(max_examples=25, deadline=None)
@given(rows=st.sampled_from([1, 2, 7, 256, 257]), **ANY_CASE)
def test_kernels_equal_fp64(
    rows: int, width: int, dtype: torch.dtype, seed: int, is_strided: bool, has_residual: bool
) -> None:
    check(rows, width, dtype, seed, is_strided, has_residual)


def check(rows: int, width: int, dtype: torch.dtype, seed: int, is_strided: bool, has_residual: bool) -> None:
    grad, x = (rows_of(seed + i, dtype, rows, width, is_strided=is_strided) for i in range(2))
    weight = rows_of(seed + 2, dtype, width)
    residual = rows_of(seed + 3, dtype, rows, width, is_strided=is_strided) if has_residual else None
    right_out, right_x, right_weight = exact(grad, x, weight)
    out, scale = norm_triton.forward(x, weight, EPS)
    assert (out.dtype, scale.shape) == (dtype, (rows, 1))
    assert torch.equal(norm_triton.again(x, scale, weight, EPS), out)
    other, summed = rows_of(seed + 4, dtype, rows, width, is_strided=is_strided), x.clone()
    added, scale_of_sum = norm_triton.add_forward(other, summed, weight, EPS)
    digit = 2 * torch.finfo(dtype).eps if dtype == torch.bfloat16 else 0  # Triton's interpreter cuts bf16 off
    torch.testing.assert_close(summed, x + other, rtol=digit, atol=0)
    for ours, theirs in zip((added, scale_of_sum), norm_triton.forward(summed, weight, EPS), strict=True):
        assert torch.equal(ours, theirs)
    grad_x, grad_weight = norm_triton.backward(grad, x, scale, weight, residual)
    assert (grad_x.dtype, grad_weight.dtype) == (dtype, scale.dtype)
    bound = BOUNDS[dtype]
    torch.testing.assert_close(out.double(), right_out, rtol=bound, atol=bound)
    expected = right_x if residual is None else right_x + residual.double()
    torch.testing.assert_close(grad_x.double(), expected, rtol=bound, atol=bound)
    exact_sums = min(bound, 5e-5)  # no format rounds them
    torch.testing.assert_close(grad_weight.double(), right_weight, rtol=exact_sums, atol=exact_sums)


def test_no_rows_give_nothing() -> None:
    x, weight = torch.empty(0, 8, device=DEVICE), torch.ones(8, device=DEVICE)
    out, scale = norm_triton.forward(x, weight, EPS)
    assert (out.shape, scale.shape) == ((0, 8), (0, 1))
    grad_x, grad_weight = norm_triton.backward(x, x, scale, weight, x)
    assert grad_x.shape == (0, 8)
    assert torch.equal(grad_weight, torch.zeros(8, device=DEVICE))


@pytest.mark.rest
def test_sums_repeat_their_bits() -> None:
    grad, x, weight = (
        rows_of(0, torch.float32, 300, 40),
        rows_of(1, torch.float32, 300, 40),
        rows_of(2, torch.float32, 40),
    )
    _, scale = norm_triton.forward(x, weight, EPS)
    one, two = (norm_triton.backward(grad, x, scale, weight, None) for _ in range(2))
    assert torch.equal(one[1], two[1])


def test_a_row_of_zeros_has_a_finite_gradient() -> None:
    x, weight = torch.zeros(2, 8, device=DEVICE), torch.ones(8, device=DEVICE)
    out, scale = norm_triton.forward(x, weight, EPS)
    assert not out.any()
    grad_x, _ = norm_triton.backward(torch.ones_like(x), x, scale, weight, None)
    torch.testing.assert_close(grad_x, torch.full_like(x, EPS**-0.5))


@pytest.mark.parametrize(
    ("ranks", "sections"),
    [
        pytest.param(2, {"layout": {"tp": 2, "sequence_parallel": True}}, marks=pytest.mark.rest),
        pytest.param(1, {"model": {"qk_norm": True}, "layout": {"recompute": "selective"}}, marks=pytest.mark.rest),
    ],
    ids=["tp 2 with sequence parallelism", "norms of heads, recomputed"],
)
def test_a_training_with_them_has_the_gradients_of_transformers(ranks: int, sections: dict[str, Any]) -> None:
    """In fp64, on the CPU that Triton's interpreter needs."""
    if DEVICE == "cpu":
        check_split(ranks, fused="triton", **sections)
