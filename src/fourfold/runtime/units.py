"""The tensors of every unit on one rank: parameters, shards, gradients and optimizer state, allocated and freed by name."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fourfold.config.optimizers import OptimizerSection
from fourfold.layout import FlatLayout
from fourfold.layout.mesh import axes_name
from fourfold.model.binding import bind_weights
from fourfold.model.torch_operations import torch_dtype
from fourfold.model.weights import FlatUnit, Weights
from fourfold.program.facts import Lowering
from fourfold.runtime.collectives import AxisGroup
from fourfold.runtime.optimizer import ShardOptimizer
from fourfold.runtime.tracker import MemoryTracker

FillShard = Callable[[FlatLayout, int, Tensor], None]


@dataclass(frozen=True)
class Unit:
    """One unit. `shard` and `grad_shard` are views of the whole buffers where those are held whole; `master` is `shard`
    itself where no second format is kept."""

    flat: FlatLayout
    index: int
    params: Tensor
    shard: Tensor
    master: Tensor
    grad: Tensor
    grad_shard: Tensor
    reduce: Tensor
    optimizer: ShardOptimizer


def set_storage(tensor: Tensor, live: bool) -> None:
    """Allocates or frees what lies under a flat buffer; its views stay valid and see whatever is put there next."""
    tensor.untyped_storage().resize_(tensor.numel() * tensor.element_size() if live else 0)


def is_live(tensor: Tensor) -> bool:
    return tensor.untyped_storage().size() > 0


def build_units(
    facts: Lowering, rank: int, optimizer: OptimizerSection, device: torch.device, fill: FillShard
) -> dict[str, Unit]:
    """Allocates every unit of the rank and fills its parameters; `fill(flat, shard, out)` writes one shard in the master format."""
    return {
        name: _build_unit(facts, flat, shard_index(facts, name, rank), optimizer, device, fill)
        for name, flat in facts.flats.items()
    }


def shard_index(facts: Lowering, unit: str, rank: int) -> int:
    """Which shard of the unit the rank has."""
    axes = facts.shard_axes(unit)
    return facts.layout.group_of(rank, axes).index(rank) if facts.zero_of(unit) > 0 else 0


def _build_unit(
    facts: Lowering, flat: FlatLayout, index: int, section: OptimizerSection, device: torch.device, fill: FillShard
) -> Unit:
    compute, master_dtype, grad_dtype = (torch_dtype(d) for d in (facts.compute, facts.master, facts.gradients))
    start, end = flat.shard_range(index)
    zero = facts.zero_of(flat.unit)
    params = torch.empty(flat.padded_numel, dtype=compute, device=device)
    shard = params[start:end]
    if zero == 3:
        set_storage(params, live=False)
        shard = torch.empty(flat.shard_numel, dtype=compute, device=device)
    master = torch.empty(flat.shard_numel, dtype=master_dtype, device=device) if facts.mixed else shard
    fill(flat, index, master)
    grad = torch.empty(flat.padded_numel, dtype=grad_dtype, device=device)
    grad_shard = grad[start:end]
    if zero >= 2:
        grad_shard = torch.empty(flat.shard_numel, dtype=grad_dtype, device=device)
    landing = facts.buffer_bytes(f"reduce/{flat.unit}") // grad.element_size()
    reduce = torch.empty(landing, dtype=grad_dtype, device=device)
    for tensor in (grad, grad_shard, reduce):
        set_storage(tensor, live=False)
    return Unit(
        flat=flat,
        index=index,
        params=params,
        shard=shard,
        master=master,
        grad=grad,
        grad_shard=grad_shard,
        reduce=reduce,
        optimizer=ShardOptimizer(section, master, flat.decayed_numel - start),
    )


def share_parameters(facts: Lowering, units: dict[str, Unit], groups: Mapping[str, AxisGroup]) -> None:
    """Brings what is computed with up to date with every rank's master shard: after building units, and after loading them."""
    for name, unit in units.items():
        if facts.mixed:
            unit.shard.copy_(unit.master)
        if facts.zero_of(name) in (1, 2):
            groups[axes_name(facts.shard_axes(name))].all_gather(unit.params, unit.shard).wait()


def flat_units(facts: Lowering, units: dict[str, Unit]) -> dict[str, FlatUnit]:
    """Every unit's flat buffers with the views that segments take of them."""
    return {name: FlatUnit(unit.flat.parameters, unit.params, unit.grad) for name, unit in units.items()}


def bind_segments(facts: Lowering, units: dict[str, Unit], flats: dict[str, FlatUnit]) -> dict[str, Weights]:
    """The weights that each segment's function takes, as views that outlive gathers and frees."""
    weights = {}
    for segment in facts.local_segments:
        freed = [t for name in segment.units for t in (units[name].params, units[name].grad) if not is_live(t)]
        for tensor in freed:  # a view can only be taken of storage that is there
            set_storage(tensor, live=True)
        weights[segment.name] = bind_weights(segment, facts.model, flats)
        for tensor in freed:
            set_storage(tensor, live=False)
    return weights


def watch_units(tracker: MemoryTracker, units: Iterable[Unit], tables: Iterable[Tensor]) -> None:
    """What is there before a step, counted from now on: the units' buffers and the rotary tables."""
    for unit in units:
        for tensor in (unit.params, unit.grad, unit.grad_shard, unit.reduce):
            tracker.watch(tensor, resizable=True)
        for tensor in (unit.shard, unit.master, *unit.optimizer.state.values()):
            tracker.watch(tensor)
    for table in tables:
        tracker.watch(table)
