"""Tiled attention equals attention with a mask, forward and backward, on awkward shapes; and never holds the square of scores."""

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fourfold.model import tiled_attention
from fourfold.model.tiled_attention import Tile
from fourfold.model.visible import Visible
from tests.support.attention_by_mask import SCALE, Problem, intervals, problem

BOUNDS = {torch.float64: 1e-12, torch.float32: 2e-5}


def check(case: Problem, tile: Tile) -> None:
    out, lse = tiled_attention.attend(case.q, case.k, case.v, case.visible, SCALE, tile)
    gradients = tiled_attention.attend_backward(case.grad, case.q, case.k, case.v, out, lse, case.visible, SCALE, tile)
    bound = BOUNDS[case.q.dtype]
    pairs = zip((out, lse, *gradients), (case.out, case.lse, *case.gradients), strict=True)
    for ours, expected in pairs:
        assert ours.dtype == expected.dtype
        torch.testing.assert_close(ours, expected, rtol=bound, atol=bound)


@settings(max_examples=40, deadline=None)
@given(
    visible=intervals(48),
    dtype=st.sampled_from([torch.float64, torch.float32]),
    heads=st.sampled_from([(1, 1), (2, 1), (1, 8), (2, 3)]),
    widths=st.sampled_from([(8, 8), (24, 16), (16, 24)]),
    tile=st.builds(Tile, st.integers(1, 50), st.integers(1, 50)),
    is_strided=st.booleans(),
)
def test_tiles_equal_the_masked_square(
    visible: Visible, dtype: torch.dtype, heads: tuple[int, int], widths: tuple[int, int], tile: Tile, is_strided: bool
) -> None:
    check(problem(visible, dtype, 2, *heads, widths, is_strided), tile)


def test_length_1_one_document_a_token_and_heads_8_to_1() -> None:
    for visible in (Visible.causal(1), Visible.documents([1] * 9), Visible.full(5, 1)):
        check(problem(visible, group=8), Tile(4, 4))


def test_half_precision_keeps_its_format_and_sums_in_fp32() -> None:
    case = problem(Visible.causal(40), torch.float32)
    halves = [x.bfloat16() for x in (case.q, case.k, case.v)]
    out, lse = tiled_attention.attend(*halves, case.visible, SCALE)
    assert (out.dtype, lse.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(out.float(), case.out, rtol=0.05, atol=0.05)
    grads = tiled_attention.attend_backward(case.grad.bfloat16(), *halves, out, lse, case.visible, SCALE)
    assert {x.dtype for x in grads} == {torch.bfloat16}


def test_parts_of_the_keys_merge_by_log_sum_exp() -> None:
    """A ring of ranks uses it so: the full row's output and log-sum-exp give each part's exact share of the gradients."""
    case = problem(Visible.full(12, 20))
    shares = []
    for keys in (slice(0, 7), slice(7, 20)):
        k, v = case.k[:, :, keys], case.v[:, :, keys]
        shares.append(
            tiled_attention.attend_backward(
                case.grad, case.q, k, v, case.out, case.lse, Visible.full(12, k.shape[2]), SCALE
            )
        )
    torch.testing.assert_close(shares[0][0] + shares[1][0], case.gradients[0])
    for one, two, expected in zip(shares[0][1:], shares[1][1:], case.gradients[1:], strict=True):
        torch.testing.assert_close(torch.cat([one, two], 2), expected)


class Largest(TorchDispatchMode):
    """The elements of the largest tensor that an operation made."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        made = [x for x in (result if isinstance(result, tuple) else (result,)) if isinstance(x, Tensor)]
        self.elements = max([self.elements, *(x.numel() for x in made)])
        return result


def test_memory_grows_with_the_sequence_and_not_with_its_square() -> None:
    elements = []
    for length in (1024, 2048):
        case = [torch.randn(1, 1, length, 16, dtype=torch.float64) for _ in range(4)]
        visible = Visible.causal(length)
        with Largest() as largest:
            out, lse = tiled_attention.attend(*case[1:], visible, SCALE)
            tiled_attention.attend_backward(*case, out, lse, visible, SCALE)
        elements.append(largest.elements)
    assert elements == [1024 * 16, 2048 * 16]
