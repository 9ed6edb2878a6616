"""Which back end computes a run's RMSNorms (`backend_choice`): the formulas of `model/norm.py`, operator by operator, or kernels
that read and write every number once. A processor gains nothing by those, and compares nothing."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fourfold.config import RunConfig, UserError
from fourfold.flash import choice, remembered
from fourfold.fused.norm_choice import compare, examine
from fourfold.fused.norms import TORCH, TRITON, NormBackend, NormCase
from fourfold.model import norm, torch_operations
from fourfold.model.operations import Operations, with_operations
from fourfold.model.torch_operations import torch_dtype
from fourfold.model.weights import Weight
from fourfold.program.spec import StepSpec
from fourfold.train.backend_choice import AgreeingRanks, Contest, choose, device_clock, recorded_choice
from fourfold.train.session import RankContext


def _forward(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    out, scale = norm.rms_norm(torch_operations, x, weight, eps)
    return out, scale


def _again(x: Tensor, scale: Tensor, weight: Tensor, eps: float) -> Tensor:
    out: Tensor = norm.apply_rms(torch_operations, x, scale, weight, eps)
    return out


def _backward(grad: Tensor, x: Tensor, scale: Tensor, weight: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
    summed = torch.zeros(weight.shape, dtype=scale.dtype, device=x.device)
    grad_x: Tensor = norm.rms_norm_backward(torch_operations, grad, x, scale, Weight(weight, summed), residual)
    return grad_x, summed


FORMULA = NormBackend("formula", _forward, _again, _backward, lambda case: None)
BACKENDS = {backend.name: backend for backend in (FORMULA, TORCH, TRITON)}
"""By name, in the order that decides between equals."""


class ChosenNorms(NamedTuple):
    """The back end, and in words why it is this one; no words where there was no choice."""

    backend: NormBackend = FORMULA
    reason: str = ""

    def among(self, operations: Operations) -> Operations:
        """The operations, with norms by the back end."""
        return operations if self.backend is FORMULA else with_operations(operations, {"norms": self.backend})


def norm_case(spec: StepSpec, device: torch.device) -> NormCase:
    """The norm of a block's hidden states of one microbatch on one rank."""
    layout, model = spec.layout, spec.model
    tokens = layout.microbatch_sequences * layout.sequence_length // layout.cp
    rows = tokens // layout.tp if layout.sequence_parallel else tokens
    return NormCase(rows, model.hidden_size, torch_dtype(spec.compute), device, model.norm_eps)


def choose_norms_for_run(config: RunConfig, spec: StepSpec, context: RankContext, newest: Path | None) -> ChosenNorms:
    """The choice at the start of a training. `newest`: the checkpoint that it may go on from."""
    device, named, recorded = context.device, config.run.norm_backend, ""
    if spec.model.norm != "rms":
        if named not in ("auto", FORMULA.name):
            raise UserError(
                f'run.norm_backend = "{named}": the model has LayerNorms; allowed: "auto", "{FORMULA.name}"; '
                f'a value that works: "auto"'
            )
        return ChosenNorms()
    if device.type == "cuda":
        recorded = context.tell(recorded_choice(newest, "norms") if context.rank == 0 else "", 0)
    return choose_norms(
        norm_case(spec, device),
        BACKENDS,
        context,
        named,
        recorded,
        remembered.default_path().with_name("norms.json"),
        device_clock(device),
        measures=device.type == "cuda",
    )


def choose_norms(
    case: NormCase,
    backends: Mapping[str, NormBackend],
    ranks: AgreeingRanks,
    named: str,
    recorded: str,
    cache: Path,
    clock: choice.Clock,
    measures: bool,
) -> ChosenNorms:
    """`backend_choice.choose` of a run's norms."""
    contest = Contest(
        work="norms",
        option="norm_backend",
        backends=backends,
        default=FORMULA,
        examine=partial(examine, case=case),
        compare=partial(compare, backends.values(), case),
        cache=cache,
        key=remembered.key_of(case),
    )
    return ChosenNorms(*choose(contest, ranks, named, recorded, clock, measures))
