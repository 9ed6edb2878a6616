"""Cross-entropy: the formulas of `model/head.py`, operator by operator, or kernels that read the logits twice and write their
gradient in their place. A processor gains nothing by those, and compares nothing.

Results are the loss, and the gradient of the logits, of a part of a chunk and of a chunk of the run's own size.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fourfold.config import ModelConfig
from fourfold.kernels.backend import Backend, LazyModule, triton_refuses
from fourfold.kernels.check import BOUNDS, worst_row
from fourfold.kernels.timed import TimedKind
from fourfold.model.environment import Environment
from fourfold.model.head import summed_loss_and_gradient
from fourfold.model.shape import chunk_tokens
from fourfold.model.torch_operations import torch_dtype
from fourfold.program.spec import StepSpec

CHECKED_ROWS, CHECKED_COLUMNS = 32, 20_000
IGNORED = -100


@dataclass(frozen=True)
class LossCase:
    """A run's cross-entropy in one call on one rank: `rows` tokens of a chunk, `columns` of the vocabulary."""

    rows: int
    columns: int
    dtype: torch.dtype
    device: torch.device
    model: ModelConfig


FORMULA: Backend[LossCase] = Backend("formula")
TRITON: Backend[LossCase] = Backend(
    "triton", {"losses": LazyModule("fourfold.kernels.loss_triton")}, lambda case: triton_refuses(case.device)
)
BACKENDS = {backend.name: backend for backend in (FORMULA, TRITON)}
"""By name, in the order that decides between equals."""


def case_of(spec: StepSpec, device: torch.device) -> LossCase:
    """A chunk of the logits of one microbatch on one rank."""
    layout = spec.layout
    tokens = layout.microbatch_sequences * layout.sequence_length // layout.cp
    columns = -(-spec.model.vocab_size // layout.tp)
    rows = min(tokens, chunk_tokens(columns, device.type != "cpu"))
    return LossCase(rows, columns, torch_dtype(spec.compute), device, spec.model)


def _small(case: LossCase) -> LossCase:
    return replace(case, rows=min(case.rows, CHECKED_ROWS), columns=min(case.columns, CHECKED_COLUMNS))


def timed(backend: Backend[LossCase], case: LossCase) -> Callable[[], object]:
    """Loss and gradient of the case."""
    env, (logits, target, count) = _environment(backend, case), _inputs(case)
    return lambda: summed_loss_and_gradient(env, [logits.clone()], target, count)


def _faults(backend: Backend[LossCase], case: LossCase) -> Iterator[str]:
    logits, target, count = _inputs(case)
    loss, gradient = summed_loss_and_gradient(_environment(backend, case), [logits.clone()], target, count)
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


def _environment(backend: Backend[LossCase], case: LossCase) -> Environment:
    return Environment(backend.operations, replace(case.model, vocab_size=case.columns))


def _inputs(case: LossCase) -> tuple[Tensor, Tensor, Tensor]:
    """Seeded logits, targets of which some are none, their number."""
    generator = torch.Generator(case.device).manual_seed(0)
    drawn = torch.randn(case.rows, case.columns, generator=generator, device=case.device)
    logits = (4 * drawn).to(case.dtype)
    target = torch.randint(case.columns, (case.rows,), generator=generator, device=case.device)
    target[1::5] = IGNORED
    return logits, target, (target >= 0).sum()


KIND = TimedKind(
    work="cross-entropy",
    name="loss",
    option="loss_backend",
    file="losses.json",
    backends=BACKENDS,
    case_of=case_of,
    small=_small,
    faults=_faults,
    timed=timed,
)
