"""The check of a back end beside fp64.

A back end may win if on a case of the run's kind the worst row of each result is off by no more than `BOUNDS`: the length of its
error over its own length plus the mean length of rows. That is tried on a small case, and then on the run's own shape: kernels
have other tiles, counters and faults at 8,192 tokens than at 512.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from fourfold.config.errors import error_text
from fourfold.kernels.backend import Backend, Case

BOUNDS = {torch.float64: 1e-10, torch.float32: 3e-5, torch.float16: 5e-3, torch.bfloat16: 3e-2}
CHECKED_BLOCK = 1024
"""Rows of results that are compared at once, of back ends whose rows are independent."""


def examine(
    backend: Backend[Case], small: Case, case: Case, faults: Callable[[Backend[Case], Case], Iterator[str]]
) -> str | None:
    """Why a back end may not compute a case; None: it may. `faults`: those of its results on a case, which is first a `small` one
    of the kind, then the case itself."""
    refused = backend.refuses(case)
    if refused is not None:
        return refused

    def found() -> Iterator[str]:
        backend.activate()
        for each in (small,) if small == case else (small, case):
            yield from faults(backend, each)

    return first_fault(found())


def first_fault(faults: Iterator[str]) -> str | None:
    """The first fault that is found, or the error that looking for it raises: a run can do without a library that raises one."""
    try:
        return next(faults, None)
    except Exception as error:
        return error_text(error)


def row_blocks(rows: int) -> Iterator[slice]:
    """All rows, `CHECKED_BLOCK` of them at a time."""
    return (slice(first, first + CHECKED_BLOCK) for first in range(0, rows, CHECKED_BLOCK))


def worst_row(ours: Tensor, theirs: Tensor) -> float:
    """Rows are the last dim; a row of zeros is right alone where it is of zeros. NaN where there is one."""
    if ours.shape != theirs.shape:
        return float("inf")
    if theirs.dim() == 3:  # log-sum-exp: a number a row
        ours, theirs = ours.unsqueeze(-1), theirs.unsqueeze(-1)
    sizes = theirs.norm(dim=-1)
    return float(((ours.double() - theirs).norm(dim=-1) / (sizes + sizes.mean() + 1e-30)).max())


def row_faults(name: str, ours: Tensor, theirs: Tensor, bound: float) -> Iterator[str]:
    """A fault where the worst row of a result is off by more than the bound."""
    error = worst_row(ours, theirs)
    if not error <= bound:
        yield f"its {name} is off by {error:.1e}, where {bound:.0e} is allowed"
