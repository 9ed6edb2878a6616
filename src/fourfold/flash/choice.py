"""The choice of a back end of attention: each is checked beside fp64, and the fastest that is right is taken.

A back end may win if on a case of the run's kind the worst row of each result (output, log-sum-exp, gradients) is off by no more
than `BOUNDS`: the length of its error over its own length plus the mean length of rows. Gradients are compared with
those of the output that it gave itself: what bf16 rounds off that moves a row of the gradient of queries that is a difference of
large terms by up to a tenth, whichever kernel computes it. That is tried on a small case beside fp64, and then on the run's own
shape, where it runs in full and one row's first and last group of heads are compared: kernels have other tiles, counters and faults
at 8,192 tokens than at 512. A rate of seconds is of one forward and backward on the run's own shapes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from fourfold.config import UserError
from fourfold.config.errors import error_text
from fourfold.flash.backends import TILED, AttentionBackend, AttentionCase
from fourfold.flash.visible import Visible

BOUNDS = {torch.float64: 1e-10, torch.float32: 3e-5, torch.float16: 5e-3, torch.bfloat16: 3e-2}
CHECKED_TOKENS, CHECKED_HEADS, CHECKED_ROWS = 512, 2, 2
"""The largest case that is checked in full: tokens of a row, heads of keys, rows. fp64 is slow on most devices."""
CHECKED_BLOCK = 1024
"""Rows of results that are compared at once, of back ends whose rows are independent."""
SCALE_OF_WIDTH = -0.5

Clock = Callable[[Callable[[], object]], float]
"""Seconds of one call."""


class Named(Protocol):
    @property
    def name(self) -> str: ...


Backend = TypeVar("Backend", bound=Named)


class Trial(NamedTuple):
    """One back end's result. `problem`: why it cannot be taken; `seconds`: infinite then."""

    seconds: float
    problem: str | None


def examine(backend: AttentionBackend, case: AttentionCase) -> str | None:
    """Why a back end may not compute a case; None: it may. Runs it on a smaller one of the kind, then on the case itself."""
    refused, small = backend.refuses(case), _small(case)
    if refused is not None:
        return refused
    return first_fault(chain(_faults(backend, small), _faults(backend, case) if case != small else ()))


def row_blocks(rows: int) -> Iterator[slice]:
    """All rows, `CHECKED_BLOCK` of them at a time."""
    return (slice(first, first + CHECKED_BLOCK) for first in range(0, rows, CHECKED_BLOCK))


def first_fault(faults: Iterator[str]) -> str | None:
    """The first fault that is found, or the error that looking for it raises: a run can do without a library that raises one."""
    try:
        return next(faults, None)
    except Exception as error:
        return error_text(error)


def compare(
    backends: Iterable[Backend],
    examine: Callable[[Backend], str | None],
    timed: Callable[[Backend], Callable[[], object]],
    clock: Clock,
) -> dict[str, Trial]:
    """Every back end's trial, by name. `examine`: why one cannot be taken; `timed`: the call whose time decides."""
    trials = {}
    for backend in backends:
        problem, seconds = examine(backend), float("inf")
        if problem is None:
            try:
                seconds = clock(timed(backend))
            except UserError:  # of whoever measures, not of the back end
                raise
            except Exception as error:  # such as too little memory
                problem = error_text(error)
        trials[backend.name] = Trial(seconds, problem)
    return trials


def fastest(seconds: Mapping[str, float]) -> str | None:
    """The name with the fewest seconds, of equals the first; None where all are infinite."""
    name = min(seconds, key=seconds.__getitem__, default=None)
    return name if name is not None and seconds[name] < float("inf") else None


def lengths_of(case: AttentionCase) -> list[int]:
    """Documents of a row of the case: half of what is left each time, which is uneven, down to one token."""
    left, lengths = case.queries, []
    while left:
        lengths.append(left - left // 2)
        left //= 2
    return lengths


def _small(case: AttentionCase) -> AttentionCase:
    kv_heads = min(case.kv_heads, CHECKED_HEADS)
    return replace(
        case,
        batch=min(case.batch, CHECKED_ROWS),
        queries=min(case.queries, CHECKED_TOKENS),
        kv_heads=kv_heads,
        heads=kv_heads * (case.heads // case.kv_heads),
    )


def _faults(backend: AttentionBackend, case: AttentionCase) -> Iterator[str]:
    """Results that are off by more than the bound. A large case is computed in full; of it the last row's heads of the first and of
    the last keys are compared, in fp32 where the bound allows it, tile by tile."""
    backend.activate()
    bound, scale = BOUNDS[case.dtype], case.width**SCALE_OF_WIDTH
    small = case == _small(case)
    reference = torch.float64 if small or case.dtype in (torch.float64, torch.float32) else torch.float32
    for what, causal, documents, queries in _calls(case):
        grad, q, k, v = _inputs(case, queries)
        out, lse = backend.attend(q, k, v, causal, scale, documents)
        gradients = backend.attend_backward(grad, q, k, v, out, lse, causal, scale, documents)
        for group in (None,) if small else sorted({0, case.kv_heads - 1}):
            part = partial(_of_group, case=case, group=group)
            exact = [part(x).to(reference) for x in (grad, q, k, v)]
            seen = documents if small or documents is None else Visible.documents(lengths_of(case))
            where = what if small else f"{what} of {case.queries} tokens"
            own = [part(x) for x in (out, lse)]
            right = TILED.attend(*exact[1:], causal, scale, seen)
            yield from _off(("output", "log-sum-exp"), own, right, bound, where)
            wanted = TILED.attend_backward(*exact, *(x.to(reference) for x in own), causal, scale, seen)
            names = [f"gradient of {name}" for name in ("queries", "keys", "values")]
            yield from _off(names, [part(x) for x in gradients], wanted, bound, where)


def _off(
    names: Sequence[str], ours: Sequence[Tensor], theirs: Sequence[Tensor], bound: float, where: str
) -> Iterator[str]:
    for name, found, right in zip(names, ours, theirs, strict=True):
        yield from row_faults(f"{name} with {where}", found, right, bound)


def _of_group(x: Tensor, case: AttentionCase, group: int | None) -> Tensor:
    """The last row's heads that belong to a head of keys, of x [batch, tokens, heads, ...]; all of it where that is None."""
    if group is None:
        return x
    share = x.shape[2] // case.kv_heads
    return x[-1:, :, group * share : (group + 1) * share]


def _calls(case: AttentionCase) -> Iterator[tuple[str, bool, Visible | None, int]]:
    """Kinds of calls in a run: name, causal, documents, number of queries."""
    yield "causal rows", True, None, case.queries
    if case.documents:
        yield "documents", True, Visible.documents(case.batch * lengths_of(case)), case.queries
    if case.rectangles:
        yield "rectangles", False, None, -(-case.queries // 2)


def _inputs(case: AttentionCase, queries: int) -> list[Tensor]:
    """Seeded grad, q, k and v."""
    generator = torch.Generator(case.device).manual_seed(0)
    sizes = [
        (queries, case.heads, case.value_width),
        (queries, case.heads, case.width),
        (case.queries, case.kv_heads, case.width),
        (case.queries, case.kv_heads, case.value_width),
    ]
    return [torch.randn(case.batch, *size, generator=generator, dtype=case.dtype, device=case.device) for size in sizes]


def worst_row(ours: Tensor, theirs: Tensor) -> float:
    """Rows are the last dim; a row of zeros is right alone where it is of zeros. NaN where there is one."""
    if ours.shape != theirs.shape:
        return float("inf")
    if theirs.dim() == 3:  # log-sum-exp: a number a row
        ours, theirs = ours.unsqueeze(-1), theirs.unsqueeze(-1)
    sizes = theirs.norm(dim=-1)
    return float(((ours.double() - theirs).norm(dim=-1) / (sizes + sizes.mean() + 1e-30)).max())


def row_faults(name: str, ours: Tensor, theirs: Tensor, bound: float) -> Iterator[str]:
    """That the worst row of a result is off by more than the bound, where it is."""
    error = worst_row(ours, theirs)
    if not error <= bound:
        yield f"its {name} is off by {error:.1e}, where {bound:.0e} is allowed"


def timed(backend: AttentionBackend, case: AttentionCase) -> Callable[[], object]:
    """One forward and backward on the case's own shapes."""
    scale = case.width**SCALE_OF_WIDTH
    documents = Visible.documents(case.batch * lengths_of(case)) if case.documents else None
    grad, q, k, v = _inputs(case, case.queries)

    def step() -> object:
        out, lse = backend.attend(q, k, v, True, scale, documents)
        return backend.attend_backward(grad, q, k, v, out, lse, True, scale, documents)

    return step
