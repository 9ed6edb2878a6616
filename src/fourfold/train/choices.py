"""The kernels of attention, norms, cross-entropy, SwiGLU and matmuls that a training chooses when it starts."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from fourfold.checkpoint.manifest import Manifest
from fourfold.config import RunConfig
from fourfold.flash.backends import AttentionBackend
from fourfold.fused.norms import NormBackend
from fourfold.model import torch_operations
from fourfold.model.operations import Operations, with_operations
from fourfold.program import Program
from fourfold.program.spec import StepSpec
from fourfold.train import attention_choice, backend_choice, loss_choice, norm_choice, pointwise_choice
from fourfold.train.attention_choice import attention_case, attention_contest
from fourfold.train.backend_choice import AgreeingRanks, Chosen
from fourfold.train.loss_choice import LossBackend, loss_case, loss_contest
from fourfold.train.matmul_choice import ChosenMatmuls, choose_matmuls_for_run
from fourfold.train.norm_choice import choose_norms_for_run
from fourfold.train.pointwise_choice import PointwiseBackend, pointwise_case, pointwise_contest
from fourfold.train.trials import Trials, device_answers


@dataclass(frozen=True)
class Choices:
    """Back ends that a run computes with, equal on every rank."""

    attention: Chosen[AttentionBackend]
    norms: Chosen[NormBackend]
    loss: Chosen[LossBackend]
    pointwise: Chosen[PointwiseBackend]
    matmuls: ChosenMatmuls

    @property
    def operations(self) -> Operations:
        members = {
            **attention_choice.members(self.attention.backend),
            **norm_choice.members(self.norms.backend),
            **loss_choice.members(self.loss.backend),
            **pointwise_choice.members(self.pointwise.backend),
        }
        return self.matmuls.among(with_operations(torch_operations, members))

    @property
    def recorded(self) -> dict[str, str]:
        """The choices by name, as a checkpoint has them."""
        return {
            "attention": self.attention.backend.name,
            "norms": self.norms.backend.name,
            "loss": self.loss.backend.name,
            "pointwise": self.pointwise.backend.name,
            "matmuls": self.matmuls.recorded,
        }

    def events(self) -> Iterator[tuple[str, dict[str, str]]]:
        """Kind and fields of an event of each that was a choice."""
        choices = (
            ("attention", self.attention.backend.name, self.attention.reason),
            ("norms", self.norms.backend.name, self.norms.reason),
            ("loss", self.loss.backend.name, self.loss.reason),
            ("pointwise", self.pointwise.backend.name, self.pointwise.reason),
            ("matmuls", self.matmuls.name, self.matmuls.reason),
        )
        return ((kind, {"backend": name, "message": reason}) for kind, name, reason in choices if reason)


def choose_for_run(
    config: RunConfig,
    spec: StepSpec,
    program: Program,
    context: AgreeingRanks,
    newest: Path | None,
    copy: Manifest | None,
    out: Path | None = None,
) -> Choices:
    """`newest`, `copy`: the checkpoint, and the copy in memory, that the training may go on from. `out`: the run's folder, which
    remembers what broke a device."""
    device = context.device
    trials = Trials(out, partial(device_answers, device), config.run.deterministic, context.rank)
    attention = attention_contest(attention_case(spec, device))
    loss = loss_contest(loss_case(spec, device), spec.model)
    pointwise = pointwise_contest(pointwise_case(spec, device))
    choices = Choices(
        backend_choice.choose_for_run(attention, config, context, newest, trials),
        choose_norms_for_run(config, spec, context, newest, trials),
        backend_choice.choose_for_run(loss, config, context, newest, trials),
        backend_choice.choose_for_run(pointwise, config, context, newest, trials),
        choose_matmuls_for_run(config, program, context, newest, copy),
    )
    if device.type == "cuda":  # comparisons leave nothing behind
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    return choices
