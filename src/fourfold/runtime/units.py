"""The tensors of every unit on one rank: parameters, shards, gradients and optimizer state, allocated and freed by name."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from fourfold.config.optimizers import OptimizerSection
from fourfold.layout import FlatLayout
from fourfold.layout.flat import shard_index
from fourfold.layout.mesh import axes_name
from fourfold.model import halves
from fourfold.model.spec import bind_weights
from fourfold.model.torch_operations import torch_dtype
from fourfold.model.weights import FlatUnit
from fourfold.program.capabilities import unit_bytes
from fourfold.program.narrow.steps import chunk_numel, is_narrow, splits_master
from fourfold.program.spec import StepSpec
from fourfold.program.view import RankView
from fourfold.runtime.collectives import AxisGroup
from fourfold.runtime.narrow import NarrowShard
from fourfold.runtime.offload.pinned import host_tensors
from fourfold.runtime.optimizer import ShardOptimizer
from fourfold.runtime.tracker import MemoryTracker

MASTER = "master"
FillShard = Callable[[FlatLayout, int, Tensor], None]


@dataclass(frozen=True)
class Unit:
    """One unit. `shard` and `grad_shard` are views of the full buffers where the ZeRO stage keeps these; `master` is `shard`
    itself where there is no second format, and the remainders where master weights lie in halves. `away`: master weights and
    optimizer states in the host's memory, by role, where they lie there between their updates."""

    flat: FlatLayout
    index: int
    params: Tensor
    shard: Tensor
    master: Tensor
    grad: Tensor
    grad_shard: Tensor
    reduce: Tensor
    optimizer: ShardOptimizer
    away: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def in_halves(self) -> bool:
        """Whether the master weights lie in halves."""
        return self.master.dtype == torch.int16

    @property
    def states(self) -> dict[str, Tensor]:
        """Master weights (`master`, or `weights` and `remainder`) and optimizer states, by role, where they lie between steps."""
        halves_of_weights = {halves.WEIGHTS: self.shard} if self.in_halves else {}
        return {**halves_of_weights, **self.device_states, **self.away}

    @property
    def device_states(self) -> dict[str, Tensor]:
        """States on the device, which has memory for those that are away only around their update."""
        return {self.master_role: self.master, **self.optimizer.state}

    @property
    def master_role(self) -> str:
        """The role of `master`."""
        return halves.REMAINDER if self.in_halves else MASTER

    @property
    def numbers(self) -> Tensor:
        """The master weights [shard] in the format of the arithmetic; in halves, a copy."""
        return halves.join_halves(self.shard, self.master) if self.in_halves else self.master

    def copy_master(self) -> None:
        """Copies the master weights on the device to the shard of parameters; in halves they are there already."""
        if self.master is not self.shard and not self.in_halves:
            self.shard.copy_(self.master)


def set_storage(tensor: Tensor, live: bool) -> None:
    """Allocates or frees the storage of a flat buffer. Its views stay valid and see the next content."""
    tensor.untyped_storage().resize_(tensor.numel() * tensor.element_size() if live else 0)


def is_live(tensor: Tensor) -> bool:
    return tensor.untyped_storage().size() > 0


def build_units(
    view: RankView, rank: int, optimizer: OptimizerSection, device: torch.device, fill: FillShard
) -> dict[str, Unit]:
    """Allocates every unit of the rank and fills its parameters; `fill(flat, shard, out)` writes one shard in the master format.
    States that lie in the host's memory share its allocations."""
    units = {name: _build_unit(view.spec, flat, rank, optimizer, device) for name, flat in view.flats.items()}
    if view.spec.layout.offload_optimizer:
        found = [_leaving(view.spec, unit) for unit in units.values()]
        there = iter(host_tensors([group for pair in found for group in pair], device.type != "cpu"))
        units = {name: replace(unit, away={**next(there), **next(there)}) for name, unit in units.items()}
    for unit in units.values():
        master = unit.away.get(unit.master_role, unit.master)
        if not unit.in_halves:
            fill(unit.flat, unit.index, master)
            continue
        numbers = torch.empty(unit.flat.shard_numel, dtype=torch.float32, device=device)
        fill(unit.flat, unit.index, numbers)
        halves.split_halves(numbers, unit.shard, master)
    return units


def _build_unit(spec: StepSpec, flat: FlatLayout, rank: int, section: OptimizerSection, device: torch.device) -> Unit:
    compute, master_dtype, grad_dtype = (torch_dtype(d) for d in (spec.compute, spec.master, spec.gradients))
    index = shard_index(spec.layout, flat, rank)
    start, end = flat.shard_range(index)
    params = torch.empty(flat.padded_numel, dtype=compute, device=device)
    shard = params[start:end]
    if flat.zero == 3:
        set_storage(params, live=False)
        shard = torch.empty(flat.shard_numel, dtype=compute, device=device)
    held_dtype = torch.int16 if splits_master(spec) else master_dtype
    master = torch.empty(flat.shard_numel, dtype=held_dtype, device=device) if spec.mixed else shard
    grad = torch.empty(flat.padded_numel, dtype=grad_dtype, device=device)
    grad_shard = grad[start:end]
    if flat.zero >= 2:
        grad_shard = torch.empty(flat.shard_numel, dtype=grad_dtype, device=device)
    staging = unit_bytes(spec, "reduce", flat) // grad.element_size()
    reduce = torch.empty(staging, dtype=grad_dtype, device=device)
    for tensor in (grad, grad_shard, reduce):
        set_storage(tensor, live=False)
    runs = [
        (max(first, start) - start, min(last, end) - start, decayed, scale)
        for first, last, decayed, scale in flat.rate_runs()
        if first < end and start < last
    ]
    matrices = min(max(flat.matrix_numel - start, 0), flat.shard_numel) if spec.optimizer.orthogonalizes else 0
    narrow = None
    if is_narrow(spec):
        coordinates, weights = spec.layout.coordinates(rank), shard if splits_master(spec) else None
        narrow = NarrowShard(flat, index, coordinates, master_dtype, chunk_numel(spec), weights)
    states = ShardOptimizer(section, master, runs, matrices, narrow)
    unit = Unit(
        flat=flat,
        index=index,
        params=params,
        shard=shard,
        master=master,
        grad=grad,
        grad_shard=grad_shard,
        reduce=reduce,
        optimizer=states,
    )
    if spec.layout.offload_optimizer:
        for group in _leaving(spec, unit):
            for tensor in group.values():
                set_storage(tensor, live=False)
    return unit


def _leaving(spec: StepSpec, unit: Unit) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The tensors of the device whose values lie in the host's memory between updates, by role, in their parts there."""
    return ({unit.master_role: unit.master} if spec.mixed else {}), unit.optimizer.state


def share_parameters(spec: StepSpec, units: dict[str, Unit], groups: Mapping[str, AxisGroup]) -> None:
    """Copies every rank's master shard to the parameters in the compute format, after building units and after loading them."""
    for unit in units.values():
        if spec.mixed and not unit.in_halves:
            unit.shard.copy_(unit.states[MASTER])
        if unit.flat.zero in (1, 2):
            groups[axes_name(unit.flat.shard_axes)].all_gather(unit.params, unit.shard).wait()


def flat_units(units: dict[str, Unit]) -> dict[str, FlatUnit]:
    """Every unit's flat buffers, with the views for segments."""
    return {name: FlatUnit(unit.flat.parameters, unit.params, unit.grad) for name, unit in units.items()}


def bind_segments(view: RankView, units: dict[str, Unit], flats: dict[str, FlatUnit]) -> dict[str, Any]:
    """The weights of each segment's function. They are views that stay valid through gathers and frees."""
    weights = {}
    for segment in view.segments:
        freed = [t for name in segment.units for t in (units[name].params, units[name].grad) if not is_live(t)]
        for tensor in freed:  # a view can only be taken of storage that is there
            set_storage(tensor, live=True)
        weights[segment.name] = bind_weights(segment, flats)
        for tensor in freed:
            set_storage(tensor, live=False)
    return weights


def watch_units(tracker: MemoryTracker, units: Iterable[Unit], tables: Iterable[Tensor]) -> None:
    """Counts the buffers that are there before a step from now on: those of the units, and the rotary tables."""
    for unit in units:
        away = [tensor for role, tensor in unit.device_states.items() if role in unit.away]
        for tensor in (unit.params, unit.grad, unit.grad_shard, unit.reduce, *away):
            tracker.watch(tensor, resizable=True)
        for tensor in (unit.shard, unit.master, *unit.optimizer.state.values()):
            tracker.watch(tensor)
    for table in tables:
        tracker.watch(table)
