"""The interpreter: runs a program's instructions on torch.distributed, one short handler an operation."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, UntypedStorage

from fourfold.config.errors import is_out_of_memory
from fourfold.config.optimizers import OptimizerSection
from fourfold.layout.mesh import axes_name
from fourfold.model import torch_operations
from fourfold.model.operations import Operations
from fourfold.model.torch_operations import torch_dtype
from fourfold.program import Instruction, Op, Program, buffers
from fourfold.program.view import RankView
from fourfold.runtime.capabilities import all_handlers
from fourfold.runtime.collectives import AxisGroup, Handle, Phases
from fourfold.runtime.compute import SegmentRunner
from fourfold.runtime.corruption import ReplicaChecks, check_replays
from fourfold.runtime.device import Side, side_stream
from fourfold.runtime.first_bad_tensor import OwnGradients
from fourfold.runtime.norm import GradientNorm
from fourfold.runtime.numbers import FixedNumbers, NewNumbers
from fourfold.runtime.offload.host_link import HostLink
from fourfold.runtime.optimizer import DeviceClip, clip_on_device, clip_scale
from fourfold.runtime.parallel import bind_parallel
from fourfold.runtime.routers import Routers
from fourfold.runtime.step import Observer, StepData, StepOutOfMemory, StepResult, StepTimeout, read_result
from fourfold.runtime.step_state import Handlers, StepState
from fourfold.runtime.units import Unit, bind_segments, flat_units, is_live, set_storage

_Bound = tuple[Callable[[Instruction], None], Instruction, tuple[str, ...], tuple[UntypedStorage, ...]]
"""Handler, instruction, buffers of the step that it drops, storages of units that it frees."""


class Executor(StepState):
    """Runs programs over one rank's units. The units live between steps; buffers that live within one step are here, by name."""

    def __init__(
        self,
        view: RankView,
        units: dict[str, Unit],
        groups: Mapping[str, AxisGroup],
        optimizer: OptimizerSection,
        device: torch.device,
        rank: int = 0,
        record_progress: Callable[[int], None] = lambda counter: None,
        operations: Operations = torch_operations,
        side: Side | None = None,
        link: HostLink | None = None,
        locate_nan: bool = False,
        fixed: bool = False,
    ) -> None:
        """`fixed`: the numbers of a step lie in memory that stays, so that a graph can be replayed with the next step's."""
        self.view = view
        spec = view.spec
        self.units = units
        self.groups = groups
        self.updates = 0
        """Optimizer updates made so far; skipped steps do not count."""
        self.largest_norm = math.inf
        self._hidden_shape = (spec.layout.hidden_tokens, spec.model.hidden_size)
        self._compute_dtype = torch_dtype(spec.compute)
        self.optimizer = optimizer
        self.device = device
        self._side = side if side is not None else side_stream(device)
        self.link = link if link is not None else HostLink(device)
        self._record_progress = record_progress
        self.live: dict[str, Any] = {}
        self.handles: dict[str, Handle] = {}
        flats = flat_units(units)
        weights = bind_segments(view, units, flats)
        split = axes_name(spec.layout.active(("cp", "tp")))  # named by the programs where a balance loss needs it
        self.routers = Routers(view, [groups[split]] if split in groups else [], device)
        parallel = bind_parallel(spec.layout, groups)
        self.compute = SegmentRunner(view, units, flats, weights, parallel, self.live, self.routers, operations)
        self._gradient_norm = GradientNorm(view, units, rank, device)
        self.rank = rank
        self.own_gradients = OwnGradients(spec.segments, units) if locate_nan else None
        self.replicas = ReplicaChecks(view, units, groups, rank)
        self._programs: dict[int, tuple[Program, list[_Bound]]] = {}
        self._make_numbers = (FixedNumbers if fixed else NewNumbers)(spec.model, device)
        core: Handlers = {
            Op.FREE: lambda step: None,
            Op.LOAD: self._load,
            Op.COUNT: self._count,
            Op.FORWARD: self.compute.forward,
            Op.RECOMPUTE: self.compute.recompute,
            Op.BACKWARD: self.compute.backward,
            Op.BACKWARD_INPUT: self.compute.backward_input,
            Op.BACKWARD_WEIGHT: self.compute.backward_weight,
            Op.REPLAY: self.compute.replay,
            Op.SEND_ACTIVATION: self._send,
            Op.SEND_GRADIENT: self._send,
            Op.RECV_ACTIVATION: self._receive,
            Op.RECV_GRADIENT: self._receive,
            Op.GATHER: self._gather,
            Op.REDUCE: self._reduce,
            Op.REDUCE_TIED: self._reduce_tied,
            Op.SUM_LOSS: self._sum_loss,
            Op.BALANCE: lambda step: self.routers.balance(self.groups[c.axes] for c in step.collectives),
            Op.CHECKSUM: lambda step: self.replicas.compare(),
            Op.CLIP_NORM: self._clip_norm,
            Op.UPDATE: self._update,
            Op.PARAMETER_ALL_GATHER: self._all_gather_parameters,
            Op.WAIT: self._wait,
        }
        self._handlers = all_handlers(self, core)

    def run(self, program: Program, data: StepData, lr: float = 0.0, observer: Observer | None = None) -> StepResult:
        """Runs one program. `observer(index, instruction)` is called after each instruction. Raises `StepFailure`."""
        self.begin(data, lr)
        return self.finish(program, self.issue(program, data, observer))

    def begin(self, data: StepData, lr: float) -> None:
        """Brings the numbers of a step to the device."""
        counts = data.num_targets if isinstance(data.num_targets, tuple) else (data.num_targets,)
        self.numbers = self._make_numbers(lr, self.updates + 1, counts)
        self.compute.num_targets, self.compute.loss = self.numbers.num_targets, self.numbers.loss

    def issue(self, program: Program, data: StepData, observer: Observer | None = None) -> Tensor:
        """Gives the device all instructions of a program; the squared norm of the gradients, which it may not have computed yet."""
        self._clear(data)
        record = self._record_progress
        with torch.no_grad():
            for counter, (handler, step, dropped, freed) in enumerate(self._bound(program)):
                record(counter)
                try:
                    handler(step)
                except (RuntimeError, MemoryError) as error:
                    if is_out_of_memory(error):
                        raise StepOutOfMemory(counter, error) from error
                    if step.op.is_start or step.op is Op.WAIT or step.collectives:
                        raise StepTimeout(counter, error) from error
                    raise
                for name in dropped:
                    del self.live[name]
                for storage in freed:
                    storage.resize_(0)
                if observer is not None:
                    observer(counter, step)
        return self._total

    def finish(self, program: Program, total: Tensor) -> StepResult:
        """The result of a step that was issued. `total`: the squared norm of its gradients."""
        self._record_progress(len(program.instructions))
        trains = program.kind == "train"
        imbalance = self.routers.imbalance if trains else None
        read = self.compute.num_targets, self.compute.loss, total, imbalance, self.view.spec.model
        result = read_result(*read, self.largest_norm)
        if trains and not result.skipped:
            self.updates += 1
            self.routers.move_biases()
        return result

    def _bound(self, program: Program) -> list[_Bound]:
        """The instructions with what the interpreter needs of each. Found once for each of the few programs that a run has."""
        known = self._programs.get(id(program))
        if known is None:
            known = self._programs[id(program)] = program, [self._bind(step) for step in program.instructions]
            self.link.reserve(program, routed=self.view.spec.model.num_experts > 0)
        return known[1]

    def _bind(self, step: Instruction) -> _Bound:
        units = {name: tensors for name in step.frees if (tensors := self._unit_buffers(name))}
        dropped = tuple(name for name in step.frees if name not in units)
        storages = (tensor.untyped_storage() for tensors in units.values() for tensor in tensors)
        return self._handlers[step.op], step, dropped, tuple(storages)

    def _clear(self, data: StepData) -> None:
        self._data = data
        self._total = torch.zeros((), dtype=torch.float64, device=self.device)
        self.scale: float | DeviceClip = 1.0
        self.live.clear()
        self.compute.replays.clear()
        if self.own_gradients is not None:
            self.own_gradients.clear()
        self.handles.clear()

    # Buffers

    def buffer(self, name: str) -> Any:
        """The buffer of that name, or None where it is not live."""
        tensors = self._unit_buffers(name)
        return tensors[0] if tensors else self.live.get(name)

    def _unit_buffers(self, name: str) -> tuple[Tensor, ...]:
        """The tensors of a unit's buffer; none of another's."""
        kind, _, unit = name.partition("/")
        if kind in ("params", "grad", "grad_shard", "reduce", "master"):
            return (getattr(self.units[unit], kind),)
        return tuple(self.units[unit].optimizer.state.values()) if kind == "optimizer" else ()

    def _load(self, step: Instruction) -> None:
        assert step.microbatch is not None
        self.live[buffers.batch(step.microbatch)] = self._data.load(step.microbatch)

    # Communication

    def _wait(self, step: Instruction) -> None:
        handle = self.handles.pop(step.handle or "", None)
        if handle is None:
            raise ValueError(f"program waits for {step.handle!r}, which is not in flight")
        handle.wait()

    def _count(self, step: Instruction) -> None:
        self.start(step, self.group(step).all_reduce(self.compute.num_targets))

    def _sum_loss(self, step: Instruction) -> None:
        self.start(step, self.group(step).all_reduce(self.compute.loss))

    def _send(self, step: Instruction) -> None:
        assert step.peer is not None
        self.start(step, self.groups["pp"].send(self.live[step.reads[0]], step.peer))

    def _receive(self, step: Instruction) -> None:
        assert step.peer is not None
        buffer = torch.empty(self._hidden_shape, dtype=self._compute_dtype, device=self.device)
        self.live[step.writes[0]] = buffer
        self.start(step, self.groups["pp"].receive(buffer, step.peer))

    def _gather(self, step: Instruction) -> None:
        unit = self.units[step.segment or ""]
        set_storage(unit.params, live=True)
        self.start(step, self.group(step).all_gather(unit.params, unit.shard))

    def _all_gather_parameters(self, step: Instruction) -> None:
        unit = self.units[step.segment or ""]
        self.start(step, self.group(step).all_gather(unit.params, unit.shard))

    def _reduce(self, step: Instruction) -> None:
        unit = self.units[step.segment or ""]
        self.begin_reduction(step)
        staging = unit.reduce if f"reduce/{step.segment}" in step.writes else None
        if staging is not None:
            set_storage(staging, live=True)
        first = f"grad_shard/{step.segment}" in step.writes and not is_live(unit.grad_shard)
        if first:
            set_storage(unit.grad_shard, live=True)
        self.start_phases(step, self._reduction(step, unit, staging, first))

    def _reduction(self, step: Instruction, unit: Unit, staging: Tensor | None, first: bool) -> Phases:
        """The phases of a Reduce, in the order of its collectives: partial sums, then the data-parallel ranks."""
        sums = len(unit.flat.sums)
        for axis, start, end in unit.flat.sums:
            yield from self.groups[axis].all_reduce_phases(unit.grad[start:end])
        for collective in step.collectives[sums:]:
            group = self.groups[collective.axes]
            if collective.kind == "reduce_scatter":
                yield from group.reduce_scatter_phases(unit.grad, staging, unit.grad_shard, first)
            else:
                unsharded = unit.flat.zero == 0
                yield from group.all_reduce_phases(unit.grad if unsharded else unit.grad_shard)

    def _reduce_tied(self, step: Instruction) -> None:
        self.start(step, self.group(step).all_reduce(self.units[step.segment or ""].grad_shard))

    # Update

    def _clip_norm(self, step: Instruction) -> None:
        check_replays(self.compute.replays, self.rank)
        if self.own_gradients is not None:
            self.own_gradients.take_others()
        total = self._gradient_norm.sum_of_squares()
        for collective in step.collectives:
            self.groups[collective.axes].all_reduce(total).wait()
        self._total, limit = total, self.optimizer.clip_norm
        if self._on_host:
            self.scale = clip_scale(total.sqrt().item(), limit)
        else:
            self.scale = clip_on_device(self.usable_total(), limit, self.numbers.number)

    def _update(self, step: Instruction) -> None:
        unit = self.units[step.segment or ""]
        if self.skips():
            return
        unit.optimizer.update(unit.grad_shard.to(unit.optimizer.dtype), self.numbers.lr, self.updates, self.scale)
        unit.copy_master()
