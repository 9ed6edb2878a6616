"""The kinds of kernels, and the choices of a training among their back ends.

The one list: what is chosen at a start, recorded in a checkpoint and told as an event derives from it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fourfold.checkpoint.manifest import Manifest
from fourfold.config import RunConfig
from fourfold.kernels import loss, norm, pointwise, recurrence
from fourfold.kernels.attention import kind as attention
from fourfold.kernels.choose import AgreeingRanks, Chosen, KernelKind, RunStart
from fourfold.kernels.matmul import kind as matmul
from fourfold.kernels.trials import Trials, device_answers
from fourfold.model import torch_operations
from fourfold.model.operations import Operations, with_operations
from fourfold.program import Program
from fourfold.program.spec import StepSpec

KINDS: tuple[KernelKind[Any], ...] = (
    attention.KIND,
    norm.KIND,
    loss.KIND,
    pointwise.KIND,
    matmul.KIND,
    recurrence.KIND,
)
"""In the order in which a start chooses, and an event tells, them."""


@dataclass(frozen=True)
class Choices:
    """By the name of their kind, the same on every rank."""

    chosen: Mapping[str, Chosen[Any]]

    @property
    def operations(self) -> Operations:
        """PyTorch's, with what the chosen back ends replace."""
        members = {name: each for choice in self.chosen.values() for name, each in choice.backend.members.items()}
        return with_operations(torch_operations, members)

    @property
    def recorded(self) -> dict[str, str]:
        """The names of the back ends, as a checkpoint has them."""
        return {kind: choice.backend.name for kind, choice in self.chosen.items()}

    def events(self) -> Iterator[tuple[str, dict[str, str]]]:
        """Kind and fields of an event of each that was a choice."""
        for kind, (backend, reason) in self.chosen.items():
            if reason:
                yield kind, {"backend": backend.title or backend.name, "message": reason}


def choose_for_run(
    config: RunConfig,
    spec: StepSpec,
    program: Program,
    ranks: AgreeingRanks,
    newest: Path | None,
    copy: Manifest | None,
    out: Path | None = None,
) -> Choices:
    """`newest`, `copy`: the checkpoint, and the copy in memory, that the training may go on from. `out`: the run's folder, which
    remembers what broke a device."""
    trials = Trials(out, partial(device_answers, ranks.device), config.run.deterministic, ranks.rank)
    start = RunStart(config, spec, program, ranks, newest, copy, trials)
    choices = Choices({kind.name: kind.choose(start) for kind in KINDS})
    if ranks.device.type == "cuda":  # comparisons leave nothing behind
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(ranks.device)
    return choices
