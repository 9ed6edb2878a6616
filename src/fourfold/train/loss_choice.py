"""Which back end computes a run's cross-entropy (`backend_choice`): the formulas of `model/head.py`, operator by operator, or
kernels that read the logits twice and write their gradient in their place. A processor gains nothing by those, and compares
nothing.

A back end may win if on a part of a chunk of logits, and on a chunk of the run's own size, its loss, and the worst row of its
gradient, are off from fp64 by no more than `flash.choice` allows of attention.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain

import torch
from torch import Tensor

from fourfold.config import ModelConfig
from fourfold.flash.backends import triton_refuses
from fourfold.flash.choice import BOUNDS, first_fault, worst_row
from fourfold.fused.losses import LossCase, TritonLoss
from fourfold.model import torch_operations
from fourfold.model.environment import Environment
from fourfold.model.head import summed_loss_and_gradient
from fourfold.model.operations import LossKernels, with_operations
from fourfold.model.shape import chunk_tokens
from fourfold.model.torch_operations import torch_dtype
from fourfold.program.spec import StepSpec
from fourfold.train.backend_choice import Contest, KernelsBackend

CHECKED_ROWS, CHECKED_COLUMNS = 32, 20_000
IGNORED = -100


LossBackend = KernelsBackend[LossKernels, LossCase]
FORMULA = LossBackend("formula", None, lambda case: None)
TRITON = LossBackend("triton", TritonLoss(), lambda case: triton_refuses(case.device))
BACKENDS = {backend.name: backend for backend in (FORMULA, TRITON)}
"""By name, in the order that decides between equals."""


def members(backend: LossBackend) -> dict[str, object]:
    """The back end's members of the operations."""
    return {} if backend.kernels is None else {"losses": backend.kernels}


def loss_case(spec: StepSpec, device: torch.device) -> LossCase:
    """A chunk of the logits of one microbatch on one rank."""
    layout = spec.layout
    tokens = layout.microbatch_sequences * layout.sequence_length // layout.cp
    columns = -(-spec.model.vocab_size // layout.tp)
    rows = min(tokens, chunk_tokens(columns, device.type != "cpu"))
    return LossCase(rows, columns, torch_dtype(spec.compute), device)


def loss_contest(
    case: LossCase, model: ModelConfig, backends: Mapping[str, LossBackend] = BACKENDS
) -> Contest[LossBackend]:
    return Contest(
        work="cross-entropy",
        option="loss_backend",
        recorded_as="loss",
        file="losses.json",
        backends=backends,
        default=FORMULA,
        case=case,
        examine=partial(examine, case=case, model=model),
        timed=partial(timed, case=case, model=model),
    )


def examine(backend: LossBackend, case: LossCase, model: ModelConfig) -> str | None:
    """Why a back end may not compute a case; None: it may. Runs it on fewer rows and columns, then on all."""
    refused = backend.refuses(case)
    small = replace(case, rows=min(case.rows, CHECKED_ROWS), columns=min(case.columns, CHECKED_COLUMNS))
    if refused is not None:
        return refused
    return first_fault(chain(_faults(backend, small, model), _faults(backend, case, model) if case != small else ()))


def timed(backend: LossBackend, case: LossCase, model: ModelConfig) -> Callable[[], object]:
    """Loss and gradient of the case."""
    env, (logits, target, count) = _environment(backend, case, model), _inputs(case)
    return lambda: summed_loss_and_gradient(env, [logits.clone()], target, count)


def _faults(backend: LossBackend, case: LossCase, model: ModelConfig) -> Iterator[str]:
    logits, target, count = _inputs(case)
    loss, gradient = summed_loss_and_gradient(_environment(backend, case, model), [logits.clone()], target, count)
    errors: list[float] = []
    bound, right_loss = BOUNDS[case.dtype], torch.zeros((), dtype=torch.float64, device=case.device)
    for first in range(0, case.rows, CHECKED_ROWS):  # fp64 of a whole chunk takes a GB
        rows = slice(first, first + CHECKED_ROWS)
        exact = logits[rows].double().requires_grad_()
        summed = torch.nn.functional.cross_entropy(exact, target[rows], ignore_index=IGNORED, reduction="sum")
        (right,) = torch.autograd.grad(summed / count, exact)
        right_loss += summed.detach()
        errors.append(worst_row(gradient[rows], right))
    error = float(abs(loss.double() - right_loss) / right_loss.abs().clamp(min=1e-30))
    if not error <= min(bound, 1e-4):  # no format rounds the sum
        yield f"its loss is off by {error:.1e}, where {min(bound, 1e-4):.0e} is allowed"
    for error in errors:
        if not error <= bound:
            yield f"its gradient is off by {error:.1e}, where {bound:.0e} is allowed"


def _environment(backend: LossBackend, case: LossCase, model: ModelConfig) -> Environment:
    return Environment(with_operations(torch_operations, members(backend)), replace(model, vocab_size=case.columns))


def _inputs(case: LossCase) -> tuple[Tensor, Tensor, Tensor]:
    """Seeded logits, targets of which some are none, their number."""
    generator = torch.Generator(case.device).manual_seed(0)
    drawn = torch.randn(case.rows, case.columns, generator=generator, device=case.device)
    logits = (4 * drawn).to(case.dtype)
    target = torch.randint(case.columns, (case.rows,), generator=generator, device=case.device)
    target[1::5] = IGNORED
    return logits, target, (target >= 0).sum()
