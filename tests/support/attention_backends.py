"""Any back end of attention beside fp64: output, log-sum-exp and gradients, of rows of documents, causal rows and rectangles."""

from collections.abc import Sequence

import torch
from hypothesis import strategies as st
from torch import Tensor

from fourfold.kernels.attention.kind import AttentionCase
from fourfold.kernels.backend import Backend
from fourfold.model.visible import Visible
from tests.support.attention_by_mask import SCALE, problem

BOUNDS = {torch.float64: 1e-12, torch.float32: 2e-5, torch.float16: 6e-3, torch.bfloat16: 5e-2}
"""The largest error, as a share of the largest value: of the output, of the log-sum-exp, of all gradients. A gradient that is a
difference of large terms, as that of the only key of its queries, is off by a share of these."""
HEADS = [(1, 1), (2, 1), (2, 3), (1, 8)]
"""(Heads of keys, heads of queries for each.)"""
WIDTHS = [(64, 64), (24, 16), (192, 128)]
"""Sizes of a head of queries and keys, and of values."""
ROWS = st.lists(st.integers(1, 12), min_size=1, max_size=5) | st.integers(1, 20).map(lambda tokens: [1] * tokens)
"""The documents of a row: uneven ones, or one a token."""


def check_backend(
    backend: Backend[AttentionCase],
    mask: Sequence[int] | tuple[int, int] | int,
    dtype: torch.dtype,
    heads: tuple[int, int] = (2, 1),
    widths: tuple[int, int] = (24, 16),
    is_strided: bool = False,
    device: str = "cpu",
) -> None:
    """`mask`: documents of each of two rows; or (queries, keys) of which every query sees every key; or a causal length."""
    visible = Visible.documents(2 * mask) if isinstance(mask, list) else _dense(mask)
    documents = visible if isinstance(mask, list) else None
    exact = problem(visible, torch.float64, 1 if documents else 2, *heads, widths, is_strided, dtype)

    def rows(x: Tensor) -> Tensor:
        x = x.transpose(1, 2).to(device)
        return x if documents is None else x[0].unflatten(0, (2, -1))

    grad, q, k, v = (rows(x).to(dtype) for x in (exact.grad, exact.q, exact.k, exact.v))
    ops = backend.operations
    out, lse = ops.attend(q, k, v, isinstance(mask, int), SCALE, documents)
    gradients = ops.attend_backward(grad, q, k, v, out, lse, isinstance(mask, int), SCALE, documents)
    assert lse.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert {x.dtype for x in (out, *gradients)} == {dtype}
    expected = [exact.out, exact.lse, *exact.gradients]
    largest = [max(1.0, float(each.abs().max())) for each in expected]
    scales = [*largest[:2], *3 * [max(largest[2:])]]
    for ours, theirs, scale in zip((out, lse, *gradients), map(rows, expected), scales, strict=True):
        assert ours.shape == theirs.shape
        assert float((ours.double() - theirs).abs().max()) <= BOUNDS[dtype] * scale


def _dense(mask: Sequence[int] | int) -> Visible:
    return Visible.causal(mask) if isinstance(mask, int) else Visible.full(*mask)
