"""Which back end computes a run's RMSNorms (`backend_choice`): the formulas of `model/norm.py`, operator by operator, or kernels
that read and write every number once. A processor gains nothing by those, and compares nothing."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from fourfold.config import RunConfig, UserError
from fourfold.fused.norm_choice import examine, timed
from fourfold.fused.norms import TORCH, TRITON, NormBackend, NormCase
from fourfold.model import norm, torch_operations
from fourfold.model.torch_operations import torch_dtype
from fourfold.model.weights import Weight
from fourfold.program.spec import StepSpec
from fourfold.train.backend_choice import AgreeingRanks, Chosen, Contest, choose_for_run
from fourfold.train.trials import Trials


def _forward(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    out, scale = norm.rms_norm(torch_operations, x, weight, eps)
    return out, scale


def _added(residual: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return _forward(x.add_(residual), weight, eps)


def _again(x: Tensor, scale: Tensor, weight: Tensor, eps: float) -> Tensor:
    out: Tensor = norm.apply_rms(torch_operations, x, scale, weight, eps)
    return out


def _backward(grad: Tensor, x: Tensor, scale: Tensor, weight: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
    summed = torch.zeros(weight.shape, dtype=scale.dtype, device=x.device)
    grad_x: Tensor = norm.rms_norm_backward(torch_operations, grad, x, scale, Weight(weight, summed), residual)
    return grad_x, summed


FORMULA = NormBackend("formula", _forward, _added, _again, _backward, lambda case: None)
BACKENDS = {backend.name: backend for backend in (FORMULA, TORCH, TRITON)}
"""By name, in the order that decides between equals."""


def members(backend: NormBackend) -> dict[str, object]:
    """The back end's members of the operations."""
    return {} if backend is FORMULA else {"norms": backend}


def norm_case(spec: StepSpec, device: torch.device) -> NormCase:
    """The norm of a block's hidden states of one microbatch on one rank."""
    layout, model = spec.layout, spec.model
    tokens = layout.microbatch_sequences * layout.sequence_length // layout.cp
    rows = tokens // layout.tp if layout.sequence_parallel else tokens
    return NormCase(rows, model.hidden_size, torch_dtype(spec.compute), device, model.norm_eps)


def choose_norms_for_run(
    config: RunConfig, spec: StepSpec, context: AgreeingRanks, newest: Path | None, trials: Trials | None = None
) -> Chosen[NormBackend]:
    """`backend_choice.choose_for_run`. LayerNorms have no choice."""
    named = config.run.norm_backend
    if spec.model.norm == "rms":
        return choose_for_run(norm_contest(norm_case(spec, context.device)), config, context, newest, trials)
    if named not in ("auto", FORMULA.name):
        raise UserError(
            f'run.norm_backend = "{named}": the model has LayerNorms; allowed: "auto", "{FORMULA.name}"; '
            f'a value that works: "auto"'
        )
    return Chosen(FORMULA)


def norm_contest(case: NormCase, backends: Mapping[str, NormBackend] = BACKENDS) -> Contest[NormBackend]:
    return Contest(
        work="norms",
        option="norm_backend",
        recorded_as="norms",
        file="norms.json",
        backends=backends,
        default=FORMULA,
        case=case,
        examine=partial(examine, case=case),
        timed=partial(timed, case=case),
    )
