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
from fourfold.program.instruction import ALL_TO_ALLS, HOST_COPIES, STARTS
from fourfold.program.pinned import activation_slots
from fourfold.program.view import RankView
from fourfold.runtime.collectives import AxisGroup, Handle, Phases
from fourfold.runtime.compute import SegmentRunner
from fourfold.runtime.copies import HostCopier
from fourfold.runtime.corruption import ReplicaChecks, check_replays
from fourfold.runtime.device import Side, side_stream
from fourfold.runtime.first_bad_tensor import OwnGradients
from fourfold.runtime.host_link import HostLink
from fourfold.runtime.muon import MatrixOptimizer
from fourfold.runtime.norm import GradientNorm
from fourfold.runtime.numbers import FixedNumbers, NewNumbers
from fourfold.runtime.optimizer import DeviceClip, clip_on_device, clip_scale
from fourfold.runtime.parallel import bind_parallel
from fourfold.runtime.routers import Routers
from fourfold.runtime.step import Observer, StepData, StepOutOfMemory, StepResult, StepTimeout, read_result
from fourfold.runtime.units import Unit, bind_segments, flat_units, is_live, set_storage

_Bound = tuple[Callable[[Instruction], None], Instruction, tuple[str, ...], tuple[UntypedStorage, ...]]
"""Handler, instruction, buffers of the step that it drops, storages of units that it frees."""


class Executor:
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
        self._hidden_shape = (spec.layout.hidden_tokens, spec.model.hidden_size)
        self._compute_dtype = torch_dtype(spec.compute)
        self._optimizer = optimizer
        self._muon = MatrixOptimizer(optimizer)
        self._device = device
        self._side = side if side is not None else side_stream(device)
        self.link = link if link is not None else HostLink(device)
        self._record_progress = record_progress
        self._live: dict[str, Any] = {}
        self._handles: dict[str, Handle] = {}
        flats = flat_units(units)
        weights = bind_segments(view, units, flats)
        split = axes_name(spec.layout.active(("cp", "tp")))  # named by the programs where a balance loss needs it
        self.routers = Routers(view, [groups[split]] if split in groups else [], device)
        parallel = bind_parallel(spec.layout, groups)
        self._compute = SegmentRunner(view, units, flats, weights, parallel, self._live, self.routers, operations)
        self._copies = HostCopier(view, units, self._live, self.link, device)
        self._gradient_norm = GradientNorm(view, units, rank, device)
        self._rank = rank
        self.own_gradients = OwnGradients(spec.segments, units) if locate_nan else None
        self.replicas = ReplicaChecks(view, units, groups, rank)
        self._programs: dict[int, tuple[Program, list[_Bound]]] = {}
        self._make_numbers = (FixedNumbers if fixed else NewNumbers)(spec.model, device)
        self._handlers: dict[Op, Callable[[Instruction], None]] = {
            **dict.fromkeys((op for op in Op if op.info.is_silent), lambda step: None),
            Op.LOAD: self._load,
            Op.COUNT: self._count,
            Op.FORWARD: self._compute.forward,
            Op.RECOMPUTE: self._compute.recompute,
            Op.BACKWARD: self._compute.backward,
            Op.BACKWARD_INPUT: self._compute.backward_input,
            Op.BACKWARD_WEIGHT: self._compute.backward_weight,
            Op.REPLAY: self._compute.replay,
            Op.EXPERTS_FORWARD: self._compute.experts_forward,
            Op.EXPERTS_BACKWARD: self._compute.experts_backward,
            Op.FINISH_FORWARD: self._compute.finish_forward,
            Op.FINISH_BACKWARD: self._compute.finish_backward,
            **dict.fromkeys(ALL_TO_ALLS, self._start_all_to_all),
            **dict.fromkeys(HOST_COPIES, self._start_copy),
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
            Op.MOMENTUM: self._move,
            Op.BRING: self._gather_matrices,
            Op.ORTHOGONALIZE: self._orthogonalize,
            Op.ALL_GATHER_HOMES: self._gather_matrices,
            Op.UPDATE: self._update,
            Op.PARAMETER_ALL_GATHER: self._all_gather_parameters,
            Op.WAIT: self._wait,
        }

    def run(self, program: Program, data: StepData, lr: float = 0.0, observer: Observer | None = None) -> StepResult:
        """Runs one program. `observer(index, instruction)` is called after each instruction. Raises `StepFailure`."""
        self.begin(data, lr)
        return self.finish(program, self.issue(program, data, observer))

    def begin(self, data: StepData, lr: float) -> None:
        """Brings the numbers of a step to the device."""
        counts = data.num_targets if isinstance(data.num_targets, tuple) else (data.num_targets,)
        self._numbers = self._make_numbers(lr, self.updates + 1, counts)
        self._compute.num_targets, self._compute.loss = self._numbers.num_targets, self._numbers.loss

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
                    if step.op in STARTS or step.op is Op.WAIT or step.collectives:
                        raise StepTimeout(counter, error) from error
                    raise
                for name in dropped:
                    del self._live[name]
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
        modules = self.view.spec.model.mtp_layers
        result = read_result(self._compute.num_targets, self._compute.loss, total, imbalance, modules)
        if trains and not result.skipped:
            self.updates += 1
            self.routers.move_biases()
        return result

    def _bound(self, program: Program) -> list[_Bound]:
        """The instructions with what the interpreter needs of each. Found once for each of the few programs that a run has."""
        known = self._programs.get(id(program))
        if known is None:
            known = self._programs[id(program)] = program, [self._bind(step) for step in program.instructions]
            self.link.reserve(activation_slots(program, self.view.spec.model.num_experts > 0))
        return known[1]

    def _bind(self, step: Instruction) -> _Bound:
        units = {name: tensors for name in step.frees if (tensors := self._unit_buffers(name))}
        dropped = tuple(name for name in step.frees if name not in units)
        storages = (tensor.untyped_storage() for tensors in units.values() for tensor in tensors)
        return self._handlers[step.op], step, dropped, tuple(storages)

    def _clear(self, data: StepData) -> None:
        self._data = data
        self._total = torch.zeros((), dtype=torch.float64, device=self._device)
        self._scale: float | DeviceClip = 1.0
        self._live.clear()
        self._compute.replays.clear()
        if self.own_gradients is not None:
            self.own_gradients.clear()
        self._handles.clear()

    # Buffers

    def buffer(self, name: str) -> Any:
        """The buffer of that name, or None where it is not live."""
        tensors = self._unit_buffers(name)
        return tensors[0] if tensors else self._live.get(name)

    def _unit_buffers(self, name: str) -> tuple[Tensor, ...]:
        """The tensors of a unit's buffer; none of another's."""
        kind, _, unit = name.partition("/")
        if kind in ("params", "grad", "grad_shard", "reduce", "master"):
            return (getattr(self.units[unit], kind),)
        return tuple(self.units[unit].optimizer.state.values()) if kind == "optimizer" else ()

    def _load(self, step: Instruction) -> None:
        assert step.microbatch is not None
        self._live[buffers.batch(step.microbatch)] = self._data.load(step.microbatch)

    # Communication

    def _group(self, step: Instruction, position: int = 0) -> AxisGroup:
        return self.groups[step.collectives[position].axes]

    def _start(self, step: Instruction, handle: Handle) -> None:
        self._handles[step.short] = handle

    def _wait(self, step: Instruction) -> None:
        handle = self._handles.pop(step.handle or "", None)
        if handle is None:
            raise ValueError(f"program waits for {step.handle!r}, which is not in flight")
        handle.wait()

    def _count(self, step: Instruction) -> None:
        self._start(step, self._group(step).all_reduce(self._compute.num_targets))

    def _sum_loss(self, step: Instruction) -> None:
        self._start(step, self._group(step).all_reduce(self._compute.loss))

    def _send(self, step: Instruction) -> None:
        assert step.peer is not None
        self._start(step, self.groups["pp"].send(self._live[step.reads[0]], step.peer))

    def _receive(self, step: Instruction) -> None:
        assert step.peer is not None
        buffer = torch.empty(self._hidden_shape, dtype=self._compute_dtype, device=self._device)
        self._live[step.writes[0]] = buffer
        self._start(step, self.groups["pp"].receive(buffer, step.peer))

    def _start_all_to_all(self, step: Instruction) -> None:
        self._start(step, Handle(iter([self._live[step.reads[0]].start()])))

    def _start_copy(self, step: Instruction) -> None:
        self._start(step, Handle(iter([[self._copies.start(step)]])))

    def _gather(self, step: Instruction) -> None:
        unit = self.units[step.segment or ""]
        set_storage(unit.params, live=True)
        self._start(step, self._group(step).all_gather(unit.params, unit.shard))

    def _all_gather_parameters(self, step: Instruction) -> None:
        unit = self.units[step.segment or ""]
        self._start(step, self._group(step).all_gather(unit.params, unit.shard))

    def _reduce(self, step: Instruction) -> None:
        unit = self.units[step.segment or ""]
        if self.own_gradients is not None:
            self.own_gradients.take(unit.flat.unit, step.microbatch or 0)
        if self._side is None:
            for earlier in self._handles.values():
                earlier.advance()  # a reduction of several phases enters its next while later gradients are computed
        staging = unit.reduce if f"reduce/{step.segment}" in step.writes else None
        if staging is not None:
            set_storage(staging, live=True)
        first = f"grad_shard/{step.segment}" in step.writes and not is_live(unit.grad_shard)
        if first:
            set_storage(unit.grad_shard, live=True)
        phases = self._reduction(step, unit, staging, first)
        if self._side is None or len(step.collectives) == 1:
            self._start(step, Handle(phases, len(step.collectives)))
            return
        with self._side():  # its phases follow each other there, and the computing stream waits for none before the end
            handle = Handle(phases, len(step.collectives))
            while handle.advance():
                pass
        self._start(step, handle)

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
        self._start(step, self._group(step).all_reduce(self.units[step.segment or ""].grad_shard))

    # Update

    def _clip_norm(self, step: Instruction) -> None:
        check_replays(self._compute.replays, self._rank)
        if self.own_gradients is not None:
            self.own_gradients.take_others()
        total = self._gradient_norm.sum_of_squares()
        for collective in step.collectives:
            self.groups[collective.axes].all_reduce(total).wait()
        self._total, limit = total, self._optimizer.clip_norm
        if self._on_host:
            self._scale = clip_scale(total.sqrt().item(), limit)
        else:
            self._scale = clip_on_device(total, limit, self._numbers.number)

    @property
    def _on_host(self) -> bool:
        """Whether the host may look at values, since it computed them itself."""
        return self._device.type == "cpu"

    def _skips(self) -> bool:
        """Whether some gradient is not finite; on a device the optimizer itself sees to that, and the host does not wait."""
        return self._on_host and not math.isfinite(self._total.item())

    def _move(self, step: Instruction) -> None:
        unit = self.units[step.segment or ""]
        self._live[buffers.direction(unit.flat)] = torch.empty_like(unit.shard)
        if not self._skips():
            self._live[buffers.direction(unit.flat)].copy_(self._muon.move(unit, self._scale))

    def _orthogonalize(self, step: Instruction) -> None:
        unit = self.units[step.segment or ""]
        own = self._live[step.writes[0]] = unit.shard.new_empty(unit.share.slot)
        if not self._skips():
            self._muon.orthogonalize(unit, self._live[step.reads[0]], own)

    def _gather_matrices(self, step: Instruction) -> None:
        """The all-gather of directions, or of owner ranks' results."""
        part = self._live[step.reads[0]]
        full = self._live[step.writes[0]] = part.new_empty(part.numel() * step.collectives[0].group_size)
        self._start(step, self._group(step).all_gather(full, part))

    def _update(self, step: Instruction) -> None:
        unit = self.units[step.segment or ""]
        if self._skips():
            return
        unit.optimizer.update(unit.grad_shard.to(unit.master.dtype), self._numbers.lr, self.updates, self._scale)
        if unit.share.held:
            given = next(name for name in step.reads if name.partition("/")[0] in buffers.FULL_MATRICES)
            assert not isinstance(self._numbers.lr, Tensor), "a step with Muon is not replayed"
            self._muon.update(unit, self._live[given], self._numbers.lr, self._scale)
        if unit.master is not unit.shard:
            unit.shard.copy_(unit.master)
