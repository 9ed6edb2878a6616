"""The interpreter: runs a program's instructions on torch.distributed, one short handler an operation."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from fourfold.config import RunFailure
from fourfold.config.schema import OptimizerSection
from fourfold.model.head import head_loss, head_loss_backward
from fourfold.model.segments import Microbatch, block_forward, embedding_backward, embedding_forward
from fourfold.program import Instruction, Op, Program
from fourfold.program.buffers import Lowering, hidden
from fourfold.runtime.collectives import Group, Handle
from fourfold.runtime.optimizer import sum_of_squares
from fourfold.runtime.units import Unit, bind_segments, flat_units, is_live, set_storage

Observer = Callable[[int, Instruction], None]


class StepData(Protocol):
    """This rank's part of one global batch."""

    num_targets: int
    """Valid target tokens among this rank's microbatches."""

    def load(self, microbatch: int) -> Microbatch: ...


@dataclass(frozen=True)
class StepResult:
    """What one step gave. `loss`: mean over the valid targets of the whole global batch, in nats."""

    loss: float
    grad_norm: float
    skipped: bool
    num_targets: int


class StepTimeout(RunFailure):
    """A collective did not finish; `index` is the instruction that waited."""

    def __init__(self, index: int, cause: Exception) -> None:
        super().__init__(str(cause))
        self.index = index


class Executor:
    """Runs programs over one rank's units. What lives between steps is the units; what lives within one is here, by name."""

    def __init__(
        self,
        facts: Lowering,
        units: dict[str, Unit],
        groups: Mapping[str, Group],
        optimizer: OptimizerSection,
        device: torch.device,
        publish: Callable[[int], None] = lambda counter: None,
    ) -> None:
        self.facts = facts
        self.units = units
        self.groups = groups
        self.updates = 0
        """Optimizer updates made so far; skipped steps do not count."""
        self._optimizer = optimizer
        self._device = device
        self._publish = publish
        self._flats = flat_units(facts, units)
        self._weights: dict[str, Any] = bind_segments(facts, units, self._flats)
        self._segments = {segment.name: segment for segment in facts.segments}
        self._next = {a.name: b.name for a, b in zip(facts.segments, facts.segments[1:], strict=False)}
        self._live: dict[str, Any] = {}
        self._handles: dict[str, Handle] = {}
        self._handlers: dict[Op, Callable[[Instruction], None]] = {
            Op.LOAD: self._load,
            Op.COUNT: self._count,
            Op.FORWARD: self._forward,
            Op.RECOMPUTE: self._recompute,
            Op.BACKWARD: self._backward,
            Op.GATHER: self._gather,
            Op.FREE: lambda step: None,
            Op.REDUCE: self._reduce,
            Op.SUM_LOSS: self._sum_loss,
            Op.CLIP_NORM: self._clip_norm,
            Op.UPDATE: self._update,
            Op.PUBLISH: self._publish_unit,
            Op.WAIT: self._wait,
        }

    def run(self, program: Program, data: StepData, lr: float = 0.0, observer: Observer | None = None) -> StepResult:
        """Runs one program. `observer(index, instruction)` is called after each instruction. Raises `StepTimeout`."""
        self._begin(program, data, lr)
        with torch.no_grad():
            for counter, step in enumerate(program.instructions):
                self._publish(counter)
                try:
                    self._handlers[step.op](step)
                except RuntimeError as error:
                    if step.op in (Op.WAIT, Op.CLIP_NORM, Op.GATHER, Op.REDUCE, Op.PUBLISH, Op.COUNT, Op.SUM_LOSS):
                        raise StepTimeout(counter, error) from error
                    raise
                for name in step.frees:
                    self._free(name)
                if observer is not None:
                    observer(counter, step)
        self._publish(len(program.instructions))
        total = int(self._num_targets.item())
        return StepResult(self._loss.item() / max(total, 1), self._norm, self._skip, total)

    def _begin(self, program: Program, data: StepData, lr: float) -> None:
        self._data = data
        self._lr = lr
        self._num_targets = torch.tensor(data.num_targets, dtype=torch.int64, device=self._device)
        self._loss = torch.zeros((), dtype=torch.float64, device=self._device)
        self._norm = 0.0
        self._scale = 1.0
        self._skip = False
        self._live.clear()
        self._handles.clear()

    # Buffers

    def _free(self, name: str) -> None:
        tensor = self._unit_buffer(name)
        if tensor is None:
            del self._live[name]
        else:
            set_storage(tensor, live=False)

    def _unit_buffer(self, name: str) -> Tensor | None:
        kind, _, unit = name.partition("/")
        if kind in ("params", "grad", "grad_shard", "reduce"):
            return getattr(self.units[unit], kind)
        return None

    def _allocate_gradients(self, step: Instruction) -> None:
        for name in step.writes:
            if name.startswith("grad/"):
                grad = self.units[name.removeprefix("grad/")].grad
                if not is_live(grad):
                    set_storage(grad, live=True)
                    self._flats[name.removeprefix("grad/")].begin_gradients()

    # Compute

    def _load(self, step: Instruction) -> None:
        assert step.microbatch is not None
        self._live[f"batch/m{step.microbatch}"] = self._data.load(step.microbatch)

    def _forward(self, step: Instruction) -> None:
        segment, m = self._segments[step.segment or ""], step.microbatch
        batch: Microbatch = self._live[f"batch/m{m}"]
        weights = self._weights[segment.name]
        if segment.kind == "embedding":
            out = embedding_forward(batch.tokens, weights)
        elif segment.kind == "head":
            self._loss += head_loss(self._live[f"hidden/head/m{m}"], batch.targets, weights, self.facts.model)
            return
        elif any(name.startswith("saved/") for name in step.writes):
            out = self._run_with_graph(segment.name, m)
        else:
            x = self._live[f"hidden/{segment.name}/m{m}"]
            out = block_forward(x, weights, self.facts.model, batch, keep=False)
        assert m is not None
        self._live[hidden(self._next[segment.name], m)] = out

    def _run_with_graph(self, name: str, m: int | None) -> Tensor:
        """A block's forward on a detached input; its graph is kept by its root, so the output itself can be freed."""
        x = self._live[f"hidden/{name}/m{m}"].detach().requires_grad_()
        keep = self.facts.policy(self._segments[name]) != "selective"
        with torch.enable_grad():
            out = block_forward(x, self._weights[name], self.facts.model, self._live[f"batch/m{m}"], keep)
        self._live[f"saved/{name}/m{m}"] = (x, get_gradient_edge(out))
        return out.detach()

    def _recompute(self, step: Instruction) -> None:
        self._run_with_graph(step.segment or "", step.microbatch)

    def _backward(self, step: Instruction) -> None:
        self._allocate_gradients(step)
        segment, m = self._segments[step.segment or ""], step.microbatch
        weights = self._weights[segment.name]
        if segment.kind == "head":
            x, targets = self._live[f"hidden/head/m{m}"], self._live[f"batch/m{m}"].targets
            loss, grad = head_loss_backward(x, targets, weights, self.facts.model, self._num_targets)
            self._loss += loss
            self._live[f"dhidden/head/m{m}"] = grad
        elif segment.kind == "embedding":
            upstream = self._live[f"dhidden/{self._next[segment.name]}/m{m}"]
            embedding_backward(self._live[f"batch/m{m}"].tokens, upstream, weights)
        else:
            upstream = self._live[f"dhidden/{self._next[segment.name]}/m{m}"]
            x, edge = self._live[f"saved/{segment.name}/m{m}"]
            (self._live[f"dhidden/{segment.name}/m{m}"],) = torch.autograd.grad(edge, [x], [upstream])
        for unit in segment.units:
            self._flats[unit].settle_gradients()

    # Communication

    def _start(self, step: Instruction, handle: Handle) -> None:
        self._handles[step.short] = handle

    def _wait(self, step: Instruction) -> None:
        handle = self._handles.pop(step.handle or "", None)
        if handle is None:
            raise ValueError(f"program waits for {step.handle!r}, which is not in flight")
        handle.wait()

    def _count(self, step: Instruction) -> None:
        self._start(step, self.groups[step.collectives[0].axes].all_reduce(self._num_targets))

    def _sum_loss(self, step: Instruction) -> None:
        self._start(step, self.groups[step.collectives[0].axes].all_reduce(self._loss))

    def _gather(self, step: Instruction) -> None:
        unit = self.units[step.segment or ""]
        set_storage(unit.params, live=True)
        self._start(step, self.groups[step.collectives[0].axes].all_gather(unit.params, unit.shard))

    def _publish_unit(self, step: Instruction) -> None:
        unit = self.units[step.segment or ""]
        self._start(step, self.groups[step.collectives[0].axes].all_gather(unit.params, unit.shard))

    def _reduce(self, step: Instruction) -> None:
        unit = self.units[step.segment or ""]
        for earlier in self._handles.values():
            earlier.advance()  # a reduction of several phases enters its next while later gradients are computed
        landing = unit.reduce if f"reduce/{step.segment}" in step.writes else None
        if landing is not None:
            set_storage(landing, live=True)
        group = self.groups[step.collectives[0].axes]
        if step.collectives[0].kind == "all_reduce":
            self._start(step, group.all_reduce(unit.grad))
            return
        first = f"grad_shard/{step.segment}" in step.writes and not is_live(unit.grad_shard)
        if first:
            set_storage(unit.grad_shard, live=True)
        if len(step.collectives) == 1:
            handle = group.reduce_scatter(unit.grad, landing, unit.grad_shard, first)
        else:
            outer = self.groups[step.collectives[1].axes]
            handle = group.reduce_scatter_then(unit.grad, landing, unit.grad_shard, first, outer)
        self._start(step, handle)

    # Update

    def _clip_norm(self, step: Instruction) -> None:
        squares = [sum_of_squares(self.units[name.partition("/")[2]].grad_shard) for name in step.reads]
        total = torch.stack(squares).sum()
        for collective in step.collectives:
            self.groups[collective.axes].all_reduce(total).wait()
        self._norm = total.sqrt().item()
        limit = self._optimizer.clip_norm
        self._scale = min(1.0, limit / (self._norm + 1e-6)) if limit is not None else 1.0
        self._skip = not torch.isfinite(total).item()

    def _update(self, step: Instruction) -> None:
        unit = self.units[step.segment or ""]
        if not self._skip:
            unit.optimizer.update(unit.grad_shard.to(unit.master.dtype), self._lr, self.updates, self._scale)
            if unit.master is not unit.shard:
                unit.shard.copy_(unit.master)
        if step.segment == self.facts.segments[-1].name and not self._skip:
            self.updates += 1
