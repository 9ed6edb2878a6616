"""A rank's step as one CUDA graph: captured once, then replayed, so that the host gives the device a step in one call.

A graph repeats the same kernels on the same memory. The step's numbers therefore lie in `FixedNumbers`, and its microbatches are
copied to where the captured step reads them. Between them stands the program itself: the same instructions in every step.
"""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from fourfold.config import RunConfig, UserError
from fourfold.model.environment import Microbatch
from fourfold.program import Op, Program, StepSpec
from fourfold.runtime.executor import Executor
from fourfold.runtime.step import StepData, StepResult

EAGER_STEPS = 3
"""Steps before the capture: libraries make their handles and workspaces in them."""
SENDING = ("tiled", "triton")
"""Back ends of attention that bring the ends of their tiles' keys to the device."""
OPTIMIZERS = ("adamw", "sgd")
"""Optimizers whose update takes a learning rate that lies on the device."""


class Replayable(Protocol):
    def replay(self) -> object: ...


Capture = Callable[[Callable[[], None]], Replayable]
"""Captures what a function gives the device, without running it."""


def check_graphs(config: RunConfig, spec: StepSpec, device: torch.device, attention: str) -> None:
    """Raises `UserError` where `run.cuda_graphs` is set and a step is not the same kernels on the same memory every time.
    `attention`: its back end."""
    reasons = {
        "there is no CUDA device": device.type != "cuda",
        "its experts' rows differ from step to step": spec.model.num_experts > 0,
        f"attention by {attention} sends its tiles from the host in every call": attention in SENDING,
        "its documents differ from step to step (data.document_mask)": spec.document_mask,
        f"the optimizer {config.optimizer.name} takes its learning rate from the host; {' and '.join(OPTIMIZERS)} do not": (
            config.optimizer.name not in OPTIMIZERS
        ),
        "its copies to the host run beside the stream that is captured (layout.offload, layout.offload_optimizer)": (
            any(spec.layout.offload) or spec.layout.offload_optimizer
        ),
        "the norm beyond which a step changes nothing is the host's (spikes.policy = 'skip')": config.spikes.policy
        == "skip",
        "model.block is a function that may read the host": spec.model.block is not None,
    }
    reason = next((reason for reason, holds in reasons.items() if holds), None)
    if config.run.cuda_graphs and reason is not None:
        raise UserError(f"run.cuda_graphs = true, but {reason}; a value that works: false")


class FixedBatches:
    """The microbatches of a step in memory that stays; the step data of the captured program."""

    def __init__(self, program: Program) -> None:
        steps = [step for step in program.instructions if step.op is Op.LOAD]
        self._microbatches = sorted({step.microbatch for step in steps if step.microbatch is not None})
        self._known: dict[int, Microbatch] = {}
        self.num_targets: int | tuple[int, ...] = 0

    def set(self, data: StepData) -> None:
        """Puts the microbatches of the next step into the memory that stays."""
        self.num_targets = data.num_targets
        for m in self._microbatches:
            new = data.load(m)
            if m not in self._known:
                copies: dict[str, Any] = {name: each.clone() for name, each in _tensors(new)}
                self._known[m] = replace(new, **copies)
            for name, tensor in _tensors(self._known[m]):
                tensor.copy_(getattr(new, name))

    def load(self, microbatch: int) -> Microbatch:
        return self._known[microbatch]


class StepGraph:
    """Runs one program step after step: the first ones as any other, then by replaying their capture."""

    def __init__(
        self,
        executor: Executor,
        program: Program,
        capture: Capture,
        eager_steps: int = EAGER_STEPS,
        before_replay: Callable[[], None] = lambda: None,
    ) -> None:
        """`executor`: one with `fixed` numbers. `before_replay`: called before each replay, when the device has nothing to do."""
        self._executor, self._program, self._capture, self._left = executor, program, capture, eager_steps
        self._before_replay = before_replay
        self._data = FixedBatches(program)
        self._graph: Replayable | None = None
        self._total: Tensor
        self._norms: list[Any] = []

    def run(self, data: StepData, lr: float) -> StepResult:
        """One step. Raises `StepFailure` in those that are not replayed."""
        executor, program, own = self._executor, self._program, self._executor.own_gradients
        self._data.set(data)
        if self._left > 0:
            self._left -= 1
            return executor.run(program, self._data, lr)
        executor.begin(self._data, lr)
        if self._graph is None:
            self._graph = self._capture(self._issue)
            self._norms = own.taken if own is not None else []
        if own is not None:
            own.taken = self._norms
        self._before_replay()
        self._graph.replay()
        return executor.finish(program, self._total)

    def _issue(self) -> None:
        self._total = self._executor.issue(self._program, self._data)


def capture_cuda(issue: Callable[[], None]) -> Replayable:
    """The capture on the current CUDA device, beside whatever other threads ask of it."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        issue()
    return graph


def _tensors(batch: Microbatch) -> list[tuple[str, Tensor]]:
    found = ((each.name, getattr(batch, each.name)) for each in fields(batch))
    return [(name, value) for name, value in found if isinstance(value, Tensor)]
