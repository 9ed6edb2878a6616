"""Attention split over ranks is whole attention: outputs and gradients, for every method, with any documents."""

from itertools import product

import pytest
import torch

from tests.support.attention import Case, check_cases

METHODS = [
    (1, 1, False),
    (2, 1, False),
    (2, 1, True),
    (3, 1, False),
    (3, 1, True),
    (4, 1, False),
    (4, 1, True),
    (1, 2, False),
    (1, 3, False),
    (1, 4, False),
    (2, 2, False),
    (2, 2, True),
]
"""(ring, ulysses, gather)."""

SEQUENCE = 48
DOCUMENTS = {
    "none": None,
    "whole": ((48,),) * 3,
    "uneven": ((5, 43), (10, 3, 20, 15), (47, 1)),
    "single tokens": ((1,) * 48, (1,) * 20 + (28,), (13, *(1,) * 35)),
    "chunk ends": ((24, 24), (6, 6, 6, 6, 24), (12, 24, 12)),
    "mixed": ((48,), (1,) * 48, (8, 8, 16, 16)),
}
HEADS = [(12, 12, 8, 8), (12, 4, 8, 8), (12, 2, 8, 5), (12, 1, 6, 8)]
"""(heads, kv_heads, head_dim, value_dim)."""


def cases_of(method: tuple[int, int, bool], dtype: torch.dtype = torch.float64) -> list[Case]:
    ring, ulysses, gather = method
    return [
        Case(ring, ulysses, gather, batch, *heads, SEQUENCE, rows and rows[:batch], dtype)
        for batch, heads, rows in product((1, 3), HEADS, DOCUMENTS.values())
    ]


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_equals_whole_attention(method) -> None:
    check_cases(cases_of(method), 1e-10)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)], ids=str)
@pytest.mark.parametrize("method", [(1, 1, False), (4, 1, False), (4, 1, True), (2, 2, False)], ids=str)
def test_other_formats(method, dtype, tolerance) -> None:
    check_cases(cases_of(method, dtype)[::5], tolerance)
