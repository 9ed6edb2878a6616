"""The Triton kernels of cross-entropy equal PyTorch's in fp64, by Triton's interpreter or on a GPU. `test_triton_kernels` runs this
in a process of its own, because triton decides at its import whether it interprets."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fourfold.kernels import loss_triton
from tests.kernels.norm_checks import BOUNDS, DEVICE, rows_of


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that rows have several blocks."""
    monkeypatch.setattr(loss_triton, "LARGEST_BLOCK", 64)


ANY_CASE = {
    "rows": st.sampled_from([1, 2, 9]),
    "width": st.sampled_from([1, 3, 64, 65, 200]),
    "dtype": st.sampled_from(list(BOUNDS)),
    "seed": st.integers(0, 2**31),
    "size": st.sampled_from([1.0, 30.0]),
    "is_strided": st.booleans(),
}


@settings(max_examples=4, deadline=None, derandomize=True)
@given(**ANY_CASE)
def test_kernels_equal_fp64_in_a_few_cases(
    rows: int, width: int, dtype: torch.dtype, seed: int, size: float, is_strided: bool
) -> None:
    check(rows, width, dtype, seed, size, is_strided)


@pytest.mark.rest
@settings(max_examples=25, deadline=None)
@given(**ANY_CASE)
def test_kernels_equal_fp64(
    rows: int, width: int, dtype: torch.dtype, seed: int, size: float, is_strided: bool
) -> None:
    check(rows, width, dtype, seed, size, is_strided)


def check(rows: int, width: int, dtype: torch.dtype, seed: int, size: float, is_strided: bool) -> None:
    """Targets are in every place, some of them on other ranks."""
    logits = rows_of(seed, dtype, rows, width, is_strided=is_strided).mul_(size)
    generator = torch.Generator().manual_seed(seed)
    column = torch.randint(width, (rows,), generator=generator).to(DEVICE)
    here = torch.rand(rows, generator=generator).gt(0.3).to(DEVICE)
    exact = logits.double()
    maximum, total, picked = loss_triton.statistics(logits, column, here)
    sums = torch.float64 if dtype == torch.float64 else torch.float32
    assert {maximum.dtype, total.dtype, picked.dtype} == {sums}
    assert torch.equal(maximum.double(), exact.amax(-1))
    bound = min(BOUNDS[dtype], 2e-5)
    right = (exact - exact.amax(-1, keepdim=True)).exp()
    torch.testing.assert_close(total.double(), right.sum(-1), rtol=bound, atol=0)
    found = exact.gather(-1, column.unsqueeze(-1)).squeeze(-1)
    assert torch.equal(picked.double(), torch.where(here, found, torch.zeros_like(found)))
    factor, target = 1 / total, torch.where(here, -1.0, 0.0).to(sums)
    loss_triton.gradient_(logits, column, maximum, factor, target)
    right = right / right.sum(-1, keepdim=True)
    right.scatter_add_(-1, column.unsqueeze(-1), target.double().unsqueeze(-1))
    bound = BOUNDS[dtype] / 4
    torch.testing.assert_close(logits.double(), right, rtol=bound, atol=bound)


def test_padded_columns_have_no_gradient() -> None:
    """Also where a rank has nothing else."""
    logits = torch.zeros(2, 130, device=DEVICE)
    logits[0, 70:] = -float("inf")
    logits[1] = -float("inf")
    column, here = torch.tensor([69, 0], device=DEVICE), torch.tensor([True, False], device=DEVICE)
    maximum, total, picked = loss_triton.statistics(logits, column, here)
    assert total.tolist() == [70.0, 0.0]
    assert picked.tolist() == [0.0, 0.0]
    loss_triton.gradient_(logits, column, maximum, torch.ones_like(total) / 70, torch.zeros_like(total))
    assert logits[0, 70:].count_nonzero() == 0
    assert logits[1].count_nonzero() == 0
    torch.testing.assert_close(logits[0, :70].sum(), torch.ones((), device=DEVICE))


def test_not_a_number_stays_one() -> None:
    logits = torch.zeros(3, 130, device=DEVICE)
    logits[0, 100], logits[1, 3] = float("nan"), float("inf")
    nothing = torch.zeros(3, dtype=torch.int64, device=DEVICE)
    _, total, _ = loss_triton.statistics(logits, nothing, nothing.bool())
    assert total.isnan().tolist() == [True, True, False]
