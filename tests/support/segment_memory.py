"""Live bytes, sent bytes and collectives of every phase of a segment on one rank, measured beside its footprint."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch

from fourfold.config import ModelConfig
from fourfold.model import torch_operations
from fourfold.model.block import block_backward, block_forward
from fourfold.model.embedding import embedding_backward, embedding_forward
from fourfold.model.environment import Environment, Saved
from fourfold.model.footprint import Footprint, Halves, Shape, segment_footprint, segment_halves
from fourfold.model.head import head_loss, head_loss_backward
from fourfold.model.parallel import Parallel, Pending
from fourfold.model.torch_operations import torch_dtype
from fourfold.model.weights import deferring
from fourfold.model.work import sent_bytes
from fourfold.runtime.tracker import MemoryTracker
from tests.support.differentiable import rebuilding
from tests.support.plain_model import PlainModel, random_tokens
from tests.support.split_model import CountingGroup, SplitModel, tensor_group, tensor_layout

ROWS = 4


class PatientWork:
    """gloo's own thread lets go of a tensor a moment after the collective is complete; this waits for that moment."""

    def __init__(self, work: Pending) -> None:
        self._work = work

    def wait(self) -> None:
        self._work.wait()
        time.sleep(0.002)


class PatientGroup(CountingGroup):
    """A counting group whose tensors are free once they are waited for."""

    def all_reduce(self, full: torch.Tensor) -> Pending:
        return PatientWork(super().all_reduce(full))


@dataclass
class Phase:
    """Bytes above what is always there. `collectives`: (kind, bytes) in order; `sent`: what the group counted."""

    peak: int
    predicted_peak: int
    after: int
    predicted_after: int
    collectives: list[tuple[str, int]]
    predicted_collectives: list[tuple[str, int]]
    sent: int
    predicted_sent: int


class Meter:
    """Runs phases under a tracker that knows what is always there."""

    def __init__(self, group: Any, constant: list[torch.Tensor]) -> None:
        self.tracker = MemoryTracker()
        self.group = group
        self.phases: dict[str, Phase] = {}
        for tensor in constant:
            self.tracker.watch(tensor)
        self.base = self.tracker.live_bytes

    def run(
        self, name: str, call: Callable[[], Any], collectives: Any, before: int, written: int, ws: int, after: int
    ) -> Any:
        self.tracker.peak_bytes = self.tracker.live_bytes
        started, sent = len(self.group.started) if self.group else 0, self.group.sent_bytes if self.group else 0
        with self.tracker:
            result = call()
        predicted = [(c.kind, c.bytes) for c in collectives]
        self.phases[name] = Phase(
            peak=self.tracker.peak_bytes - self.base,
            predicted_peak=before + written + ws,
            after=self.tracker.live_bytes - self.base,
            predicted_after=after,
            collectives=self.group.started[started:] if self.group else [],
            predicted_collectives=predicted,
            sent=self.group.sent_bytes - sent if self.group else 0,
            predicted_sent=sum(sent_bytes(kind, size, self.group.size) for kind, size in predicted)
            if self.group
            else 0,
        )
        return result


def measure(
    rank: int,
    model: ModelConfig,
    tp: int,
    sequence: bool,
    compute: str,
    policy: str,
    length: int = 128,
    documents: bool = False,
) -> dict[str, Phase]:
    """Every phase of the embedding, a block and the head on one rank of `tp`; gradients in fp32, or fp64 for fp64."""
    gradients = "fp64" if compute == "fp64" else "fp32"
    dtype = torch_dtype(compute)
    full = PlainModel(model, dtype)
    layout = tensor_layout(model, tp, sequence)
    split = SplitModel(full, layout, rank, torch_dtype(gradients))
    shape = Shape(
        ROWS, length, compute, gradients, documents, tp=tp, sequence_parallel=sequence, tp_copies=layout.tp_copy
    )
    tokens, targets = random_tokens(model, ROWS, length)
    batch = full.microbatch(tokens, targets, [[length - 9, 9]] * ROWS if documents else None)
    group = PatientGroup(tensor_group(layout, rank)) if tp > 1 else None
    env = Environment(torch_operations, model, Parallel(tp=group, sequence=sequence, tp_copies=layout.tp_copy))
    constant = [t for unit in split.units.values() for t in (unit.parameters, unit.gradients)]
    learned = [] if batch.positions is None else [batch.positions]
    meter = Meter(group, [*constant, tokens, targets, *chain(*batch.rope.values()), *learned])
    embed, block, *_, head = split.segments
    footprints = {s.name: segment_footprint(s, model, shape, policy) for s in (embed, block, head)}
    x = _embedding(meter, footprints["embed"], batch, split, env)
    grad = _head(meter, footprints["head"], x, targets, split, env)
    halves = segment_halves(block, model, shape, policy)
    for each in (None, halves):
        grad = _block(meter, footprints[block.name], block, x, grad, split, batch, env, policy, each)
    h = footprints["embed"].output_bytes
    f = footprints["embed"]
    meter.run(
        "embedding backward",
        lambda: embedding_backward(env, tokens, grad, split.weights["embed"], batch.positions),  # type: ignore
        f.backward.collectives, 2 * h, 0, f.backward_workspace_bytes, 2 * h,
    )  # fmt: skip
    return meter.phases


def _embedding(meter: Meter, f: Footprint, batch: Any, split: SplitModel, env: Environment) -> torch.Tensor:
    weights: Any = split.weights["embed"]
    return meter.run(
        "embedding forward",
        lambda: embedding_forward(env, batch.tokens, weights, batch.positions),
        f.forward.collectives, 0, f.output_bytes, f.forward_workspace_bytes, f.output_bytes,
    )  # fmt: skip


def _head(
    meter: Meter, f: Footprint, x: torch.Tensor, targets: Any, split: SplitModel, env: Environment
) -> torch.Tensor:
    h, weights = x.numel() * x.element_size(), split.weights["head"]
    meter.run(
        "head forward",
        lambda: head_loss(env, x, targets, weights).item(),  # type: ignore[arg-type]
        f.forward.collectives, h, 0, f.forward_workspace_bytes, h,
    )  # fmt: skip
    divisor = torch.tensor(100)
    return meter.run(
        "head backward",
        lambda: head_loss_backward(env, x, targets, weights, divisor)[1],  # type: ignore[arg-type]
        f.backward.collectives, h, h, f.backward_workspace_bytes, 2 * h,
    )  # fmt: skip


def _block(
    meter: Meter,
    f: Footprint,
    block: Any,
    x: torch.Tensor,
    upstream: torch.Tensor,
    split: SplitModel,
    batch: Any,
    env: Environment,
    policy: str,
    halves: Halves | None,
) -> torch.Tensor:
    """Forward and backward of a block whose input `x` and upstream gradient stay live; returns the input's gradient. `halves`:
    the parts of a split backward."""
    h, weights = f.output_bytes, split.weights[block.name]

    def forward() -> Saved:
        saved = rebuilding(policy != "selective")
        block_forward(block, env, x, weights, batch, saved)
        return saved

    def without_backward() -> torch.Tensor:
        return block_forward(block, env, x, weights, batch, Saved(keeps=False))

    if policy == "full":
        meter.run("forward", without_backward, f.forward.collectives, 2 * h, h, f.forward_workspace_bytes, 3 * h)
        workspace, written = f.recompute_workspace_bytes, f.saved_bytes
    else:
        workspace, written = f.forward_workspace_bytes, f.saved_bytes + h
    label = "recompute" if policy == "full" else "forward"
    saved = meter.run(label, forward, f.forward.collectives, 2 * h, written, workspace, 2 * h + f.saved_bytes)
    before = 2 * h + f.saved_bytes

    def backward() -> Any:
        with deferring([split.units[name] for name in block.units if halves is not None]) as pending:
            grad = block_backward(block, env, upstream, x, weights, batch, saved)
        return grad, pending

    if halves is None:
        after = 3 * h
        grad, _ = meter.run("backward", backward, f.backward.collectives, before, h, f.backward_workspace_bytes, after)
        return grad
    routed = block.moe
    placement = block.layer_kind.placement
    keeps_upstream = not env.parallel.sequence and not (routed and weights.feed_forward.shared is None)
    held = halves.deferred_bytes - h * (keeps_upstream and placement == "pre") - h * (placement == "post")
    grad, pending = meter.run(
        "input gradient",
        backward,
        halves.input_gradient.collectives,
        before,
        h + halves.deferred_bytes,
        halves.input_workspace_bytes,
        3 * h + held,
    )
    meter.run(
        "weight gradient",
        pending.run,
        halves.weight_gradient.collectives,
        3 * h + held,
        0,
        halves.weight_workspace_bytes,
        3 * h,
    )
    return grad
