"""Whether a back end of RMSNorm is right, beside fp64, and what is timed of it.

It may win if on rows of the run's width, first a few and then as many as a microbatch of the run has, the worst row of each result
(output, gradient of x) is off by no more than `flash.choice` allows of attention; and the weight's gradient by no more than sums
of fp32 are, whatever the format of its rows: it is added to others that are not rounded.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor

from fourfold.flash.choice import BOUNDS, first_fault, row_blocks, row_faults
from fourfold.fused.norms import NormBackend, NormCase

CHECKED_ROWS = 64
WEIGHT_BOUNDS = {torch.float64: 1e-10}
WEIGHT_BOUND = 2e-4
"""The bound of formats other than fp64. A gradient that passes through bf16 is off by 1e-3."""


def examine(backend: NormBackend, case: NormCase) -> str | None:
    """Why a back end may not compute a case; None: it may. Runs it on fewer rows, then on all."""
    refused = backend.refuses(case)
    small = replace(case, rows=min(case.rows, CHECKED_ROWS))
    if refused is not None:
        return refused
    return first_fault(chain(_faults(backend, small), _faults(backend, case) if case != small else ()))


def timed(backend: NormBackend, case: NormCase) -> Callable[[], object]:
    """One forward with and one without a residual, and a backward with one, of the case."""
    grad, x, weight, residual = _inputs(case)

    def step() -> object:
        _, scale = backend.forward(x, weight, case.eps)
        backend.add_forward(residual, grad.clone(), weight, case.eps)
        return backend.backward(grad.clone(), x, scale, weight, residual)

    return step


def _faults(backend: NormBackend, case: NormCase) -> Iterator[str]:
    grad, x, weight, residual = _inputs(case)
    out, scale = backend.forward(x, weight, case.eps)
    again = backend.again(x, scale, weight, case.eps)
    if not torch.equal(out, again):
        yield "its output has other bits when it is computed again"
    summed = x.clone()
    added, _ = backend.add_forward(residual, summed, weight, case.eps)
    grad_x, grad_weight = backend.backward(grad.clone(), x, scale, weight, residual)
    bound = BOUNDS[case.dtype]
    weight_bound = WEIGHT_BOUNDS.get(case.dtype, WEIGHT_BOUND)
    sums = torch.zeros_like(weight, dtype=torch.float64)
    for rows in row_blocks(case.rows):
        exact = [each.double() for each in (grad[rows], x[rows], weight, residual[rows])]
        right_out, right_x, right_weight = _exact(exact, case.eps)
        right_added = _exact([exact[0], summed[rows].double(), *exact[2:]], case.eps)[0]
        sums += right_weight
        compared = [
            ("output", out[rows], right_out),
            ("sum with the residual", summed[rows], exact[1] + exact[3]),
            ("output of a sum", added[rows], right_added),
            ("gradient", grad_x[rows], right_x),
        ]
        for each in compared:
            yield from row_faults(*each, bound)
    yield from row_faults("gradient of the weight", grad_weight.unsqueeze(0), sums.unsqueeze(0), weight_bound)


def _exact(inputs: list[Tensor], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Output, gradient of x with the residual's, gradient of the weight, by PyTorch's autograd."""
    grad, x, weight, residual = inputs
    x, weight = leaves = x.clone().requires_grad_(), weight.clone().requires_grad_()
    out = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight
    grad_x, grad_weight = torch.autograd.grad(out, leaves, grad)
    return out.detach(), grad_x + residual, grad_weight


def _inputs(case: NormCase) -> list[Tensor]:
    """Seeded grad, x, weight, residual."""
    generator = torch.Generator(case.device).manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=case.dtype, device=case.device)

    grad, x, residual = (draw(case.rows, case.width) for _ in range(3))
    return [grad, x, 1 + draw(case.width) / 8, residual]
