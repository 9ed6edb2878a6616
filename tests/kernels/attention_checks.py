"""The Triton kernels equal attention with a mask, by Triton's interpreter or on a GPU. `test_attention_triton` runs this in a
process of its own, because triton decides at its import whether it interprets."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fourfold.kernels.attention import triton_attention
from fourfold.kernels.attention.kind import BACKENDS
from fourfold.model.visible import Visible
from tests.support.attention_backends import check_backend
from tests.support.attention_by_mask import SCALE, Problem, intervals, problem

BOUNDS = {torch.float64: 1e-12, torch.float32: 2e-5}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALF = torch.bfloat16 if DEVICE == "cuda" else torch.float16
"""The interpreter of Triton 3.7 multiplies the bits of bf16 as integers; fp16 takes the same way through the kernels."""


def check(case: Problem, blocks: tuple[int, int]) -> None:
    grad, q, k, v = (x.transpose(1, 2).to(DEVICE) for x in (case.grad, case.q, case.k, case.v))
    out, lse = triton_attention.attend(q, k, v, case.visible, SCALE, triton_attention.Blocks(*blocks))
    gradients = triton_attention.attend_backward(
        grad, q, k, v, out, lse, case.visible, SCALE, triton_attention.Blocks(*blocks)
    )
    bound = BOUNDS[q.dtype]
    for ours, expected in zip((out, *gradients), (case.out, *case.gradients), strict=True):
        torch.testing.assert_close(ours.transpose(1, 2).cpu(), expected, rtol=bound, atol=bound)
    torch.testing.assert_close(lse.cpu(), case.lse, rtol=bound, atol=bound)


ANY_CASE = {
    "dtype": st.sampled_from([torch.float64, torch.float32]),
    "heads": st.sampled_from([(1, 1), (2, 1), (1, 4)]),
    "widths": st.sampled_from([(8, 8), (24, 16), (16, 24)]),
    "blocks": st.sampled_from([(16, 16), (16, 32), (32, 16)]),
    "is_strided": st.booleans(),
}


@settings(max_examples=3, deadline=None, derandomize=True)
@given(visible=intervals(24), **ANY_CASE)
def test_kernels_equal_a_small_masked_square(
    visible: Visible,
    dtype: torch.dtype,
    heads: tuple[int, int],
    widths: tuple[int, int],
    blocks: tuple[int, int],
    is_strided: bool,
) -> None:
    check(problem(visible, dtype, 1, *heads, widths, is_strided), blocks)


@pytest.mark.rest
@settings(max_examples=12, deadline=None)
@given(visible=intervals(40), **ANY_CASE)
def test_kernels_equal_the_masked_square(
    visible: Visible,
    dtype: torch.dtype,
    heads: tuple[int, int],
    widths: tuple[int, int],
    blocks: tuple[int, int],
    is_strided: bool,
) -> None:
    check(problem(visible, dtype, 1, *heads, widths, is_strided), blocks)


@pytest.mark.parametrize(
    "visible",
    [
        Visible.causal(1),
        pytest.param(Visible.documents([1] * 17), marks=pytest.mark.rest),
        pytest.param(Visible.documents([20, 1, 12]), marks=pytest.mark.rest),
    ],
)
def test_awkward_lengths_with_heads_8_to_1(visible: Visible) -> None:
    check(problem(visible, batch=2, group=8), (16, 16))


def test_half_precision_keeps_its_format() -> None:
    case = problem(Visible.documents([9, 21]), torch.float32, group=2)
    grad, q, k, v = (x.transpose(1, 2).to(DEVICE, HALF) for x in (case.grad, case.q, case.k, case.v))
    out, lse = triton_attention.attend(q, k, v, case.visible, SCALE)
    assert (out.dtype, lse.dtype) == (HALF, torch.float32)
    gradients = triton_attention.attend_backward(grad, q, k, v, out, lse, case.visible, SCALE)
    for ours, expected in zip((out, *gradients), (case.out, *case.gradients), strict=True):
        assert ours.dtype == HALF
        torch.testing.assert_close(ours.transpose(1, 2).float().cpu(), expected, rtol=0.1, atol=0.1)


@pytest.mark.parametrize(
    "mask",
    [pytest.param([1] * 5, marks=pytest.mark.rest), [9, 1, 13], pytest.param(33, marks=pytest.mark.rest), (7, 20)],
    ids=str,
)
@pytest.mark.parametrize(
    ("heads", "widths"),
    [
        ((1, 2), (64, 64)),
        *(pytest.param(*more, marks=pytest.mark.rest) for more in (((1, 8), (64, 64)), ((2, 1), (192, 128)))),
    ],
    ids=str,
)
def test_the_back_end_equals_fp64(
    mask: list[int] | tuple[int, int] | int, heads: tuple[int, int], widths: tuple[int, int]
) -> None:
    """Documents of two rows, a causal row, a rectangle; in views of larger tensors."""
    for dtype in (torch.float64, torch.float32):
        check_backend(BACKENDS["triton"], mask, dtype, heads, widths, True, DEVICE)
