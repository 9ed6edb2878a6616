"""The copying instructions: activations of a segment, and optimizer states of a unit, to the host's memory and back."""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from fourfold.model.parallel import Pending
from fourfold.program import Instruction, buffers
from fourfold.program.instruction import Opcode
from fourfold.program.offload.steps import OffloadOp
from fourfold.program.view import RankView
from fourfold.runtime.collectives import Handle
from fourfold.runtime.offload.activations import fetch_activations, offload_activations
from fourfold.runtime.offload.host_link import HostLink
from fourfold.runtime.step_state import Handlers, StepState
from fourfold.runtime.units import Unit, set_storage


class HostCopier:
    """Copies of one rank. `live` holds the buffers that live within a step, by name; the executor shares it."""

    def __init__(
        self, view: RankView, units: Mapping[str, Unit], live: dict[str, Any], link: HostLink, device: torch.device
    ) -> None:
        self._following = view.stages.following
        self._units, self._live, self._link, self._device = units, live, link, device

    def start(self, step: Instruction) -> Pending:
        """Starts the copy."""
        name, m = step.segment or "", step.microbatch
        if m is None:
            return self._states(step.op, self._units[name])
        here = buffers.saved(name, m)
        there = buffers.host(here)
        if step.op is OffloadOp.OFFLOAD:
            self._live[there], pending = offload_activations(self._live[here], self._shared(name, m), self._link)
        else:
            self._live[here], pending = fetch_activations(self._live[there], self._device, self._link)
        return pending

    def _states(self, op: Opcode, unit: Unit) -> Pending:
        here = unit.device_states
        if op is OffloadOp.OFFLOAD:
            return self._link.offload([(there, here[role]) for role, there in unit.away.items()])
        for role in unit.away:
            set_storage(here[role], live=True)
        return self._link.fetch([(here[role], there) for role, there in unit.away.items()])

    def _shared(self, segment: str, m: int) -> Iterator[Tensor]:
        """Tensors that a segment may have saved, and that other buffers hold."""
        for unit in self._units.values():
            yield unit.params
        batch = self._live[buffers.batch(m)]
        held = [getattr(batch, each.name) for each in fields(batch)]
        held += [self._live.get(buffers.hidden(each, m)) for each in (segment, self._following[segment])]
        yield from (each for each in held if isinstance(each, Tensor))


def handlers(state: StepState, core: Handlers) -> Handlers:
    """Copies in both directions."""
    copier = HostCopier(state.view, state.units, state.live, state.link, state.device)

    def start(step: Instruction) -> None:
        state.start(step, Handle(iter([[copier.start(step)]])))

    return dict.fromkeys(OffloadOp, start)
