"""The state of a rank's step, as the handlers of instructions see it: the core's, and those of capabilities."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from fourfold.config.optimizers import OptimizerSection
from fourfold.program import Instruction
from fourfold.program.instruction import Opcode
from fourfold.program.view import RankView
from fourfold.runtime.collectives import AxisGroup, Handle, Phases
from fourfold.runtime.compute import SegmentRunner
from fourfold.runtime.device import Side
from fourfold.runtime.first_bad_tensor import OwnGradients
from fourfold.runtime.numbers import StepNumbers
from fourfold.runtime.offload.host_link import HostLink
from fourfold.runtime.optimizer import DeviceClip
from fourfold.runtime.routers import Routers
from fourfold.runtime.units import Unit

Handler = Callable[[Instruction], None]
Handlers = Mapping[Opcode, Handler]


class StepState:
    """Buffers, groups and numbers of one rank. The units live between steps; buffers of one step are in `live`, by name."""

    view: RankView
    rank: int
    device: torch.device
    units: dict[str, Unit]
    groups: Mapping[str, AxisGroup]
    optimizer: OptimizerSection
    link: HostLink
    compute: SegmentRunner
    routers: Routers
    numbers: StepNumbers
    live: dict[str, Any]
    handles: dict[str, Handle]
    scale: float | DeviceClip
    """The factor of the gradients in this step's updates, once their norm is known."""
    own_gradients: OwnGradients | None
    updates: int
    """Optimizer updates made so far; skipped steps do not count."""
    samples: Any
    """The table of a sampled step (`runtime.sampling.Samples`)."""
    largest_norm: float
    """The gradient norm beyond which a step changes nothing."""
    _side: Side | None
    _total: Tensor

    def group(self, step: Instruction) -> AxisGroup:
        """The group of an instruction's first collective."""
        return self.groups[step.collectives[0].axes]

    def start(self, step: Instruction, handle: Handle) -> None:
        """Notes what an instruction has started, for its WAIT."""
        self.handles[step.short] = handle

    def begin_reduction(self, step: Instruction) -> None:
        """Before a unit's gradient is reduced: notes its norm, where the run asks for it, and moves earlier reductions on."""
        if self.own_gradients is not None:
            self.own_gradients.take(step.segment or "", step.microbatch or 0)
        if self._side is None:
            for earlier in self.handles.values():
                earlier.advance()  # a reduction of several phases enters its next while later gradients are computed

    def start_phases(self, step: Instruction, phases: Phases) -> None:
        """Starts a reduction of as many phases as it has collectives; beside computation where the device can."""
        count = len(step.collectives)
        if self._side is None or count == 1:
            self.start(step, Handle(phases, count))
            return
        with self._side():  # its phases follow each other there, and the computing stream waits for none before the end
            handle = Handle(phases, count)
            while handle.advance():
                pass
        self.start(step, handle)

    @property
    def _on_host(self) -> bool:
        """Whether the host may look at values, since it computed them itself."""
        return self.device.type == "cpu"

    def skips(self) -> bool:
        """Whether some gradient is not finite, or their norm beyond `largest_norm`; on a device the optimizer itself sees to that,
        and the host does not wait."""
        return self._on_host and not math.isfinite(self.usable_total().item())

    def usable_total(self) -> Tensor:
        """The squared norm of the gradients; infinite where the step is to change nothing."""
        if math.isinf(self.largest_norm):
            return self._total
        return torch.where(self._total > self.largest_norm**2, math.inf, self._total)
