"""The computing instructions: a segment's forward and backward on buffers by name."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fourfold.model.block import block_backward, block_forward
from fourfold.model.depths import losses, losses_backward
from fourfold.model.embedding import embedding_backward, embedding_forward
from fourfold.model.environment import SELECTIVE, Environment, Microbatch, Saved
from fourfold.model.experts.balance import Balancing
from fourfold.model.operations import Operations
from fourfold.model.parallel import Parallel
from fourfold.model.spec import Segment
from fourfold.model.weights import FlatUnit, deferring
from fourfold.program import Instruction, buffers
from fourfold.program.buffers import deferred, dhidden, hidden, saved
from fourfold.program.view import RankView
from fourfold.runtime.corruption import Replayed, by_parameter, checksum
from fourfold.runtime.routers import Routers
from fourfold.runtime.units import Unit, is_live, set_storage


class SegmentRunner:
    """Runs the segments of one rank. `live` holds the buffers that live within a step, by name; the executor shares it."""

    def __init__(
        self,
        view: RankView,
        units: Mapping[str, Unit],
        flats: Mapping[str, FlatUnit],
        weights: Mapping[str, Any],
        parallel: Parallel,
        live: dict[str, Any],
        routers: Routers,
        operations: Operations,
    ) -> None:
        self._stages = view.stages
        self._units = units
        self._flats = flats
        self._weights = weights
        self.environment = Environment(operations, view.spec.model, parallel, view.spec.recipe)
        self._live = live
        self._routers = routers
        self._records_loss = parallel.tp is None or parallel.tp.index == 0 or not view.spec.model.num_experts
        self.num_targets: Tensor
        """Valid targets of the global batch, of every depth of prediction, once they are counted."""
        self.loss: Tensor
        """Sum of the token losses that this rank has computed (the same on ranks that differ in tp: where the loss is summed over
        these too, the first has it), its routers' balance and z losses, the logits' sum of Z^2, the sums of MTP modules."""
        self.replays: list[Replayed] = []
        """Tensors that this step computed twice, in order."""

    def forward(self, step: Instruction) -> None:
        segment, m = self._stages.segments[step.segment or ""], microbatch_of(step)
        batch: Microbatch = self._live[buffers.batch(m)]
        weights = self._weights[segment.name]
        if segment.kind == "embedding":
            out = embedding_forward(self.environment, batch.tokens, weights, batch.positions)
        elif segment.kind == "head":
            self._record(losses(self.environment, self._live[hidden("head", m)], batch, weights))
            return
        else:
            kept = saved(segment.name, m)
            out = self._run_block(segment, m, kept if kept in step.writes else None)
        self._live[hidden(self._stages.following[segment.name], m)] = out

    def _record(self, sums: Tensor) -> None:
        """Adds the head's sums, [1 + z-loss + depths of multi-token prediction]."""
        if self._records_loss:
            self.loss[0].add_(sums[0])
            if len(sums) > 1:
                self.loss[len(self.loss) - len(sums) + 1 :].add_(sums[1:])

    def _run_block(self, segment: Segment, m: int, kept: str | None) -> Tensor:
        """A block's forward. Keeps its activations under the name, if one is given."""
        arrays = Saved(self.rebuilt(segment), keeps=kept is not None)
        if kept is not None:
            self._live[kept] = arrays
        return block_forward(segment, self.environment, *self.forward_arguments(segment, m, arrays))

    def forward_arguments(self, segment: Segment, m: int, arrays: Saved) -> tuple[Any, ...]:
        """The arguments of a block's forward behind the environment."""
        x, batch = self._live[hidden(segment.name, m)], self._live[buffers.batch(m)]
        return x, self._weights[segment.name], batch, arrays, self._balancing(segment)

    def rebuilt(self, segment: Segment) -> Iterable[str]:
        """The activations that a segment's backward makes again."""
        return SELECTIVE if self._stages.policies[segment.name] == "selective" else ()

    def _balancing(self, segment: Segment) -> Balancing | None:
        return self._routers.balancing(segment.name, self.loss) if segment.moe else None

    def recompute(self, step: Instruction) -> None:
        segment, m = self._stages.segments[step.segment or ""], microbatch_of(step)
        self._run_block(segment, m, saved(segment.name, m))

    def backward(self, step: Instruction) -> None:
        self.allocate_gradients(step)
        segment, m = self._stages.segments[step.segment or ""], microbatch_of(step)
        weights = self._weights[segment.name]
        if segment.kind == "head":
            x, batch = self._live[hidden("head", m)], self._live[buffers.batch(m)]
            sums, grad = losses_backward(self.environment, x, batch, weights, self.num_targets)
            self._record(sums)
            self._live[dhidden("head", m)] = grad
        elif segment.kind == "embedding":
            upstream = self._live[dhidden(self._stages.following[segment.name], m)]
            batch = self._live[buffers.batch(m)]
            embedding_backward(self.environment, batch.tokens, upstream, weights, batch.positions)
        else:
            self._live[dhidden(segment.name, m)] = block_backward(
                segment, self.environment, *self.backward_arguments(segment, m)
            )
        self.settle(segment.units)

    def backward_input(self, step: Instruction) -> None:
        self.allocate_gradients(step)
        segment, m = self._stages.segments[step.segment or ""], microbatch_of(step)
        with deferring(self._flats[unit] for unit in segment.units) as pending:
            self._live[dhidden(segment.name, m)] = block_backward(
                segment, self.environment, *self.backward_arguments(segment, m)
            )
        self._live[deferred(segment.name, m)] = pending

    def backward_weight(self, step: Instruction) -> None:
        self.allocate_gradients(step)
        segment, m = self._stages.segments[step.segment or ""], microbatch_of(step)
        self._live[deferred(segment.name, m)].run()
        self.settle(segment.units)

    def replay(self, step: Instruction) -> None:
        """A segment's forward and backward once more. Notes in `replays` what it made of other bits than before."""
        segment, m = self._stages.segments[step.segment or ""], microbatch_of(step)
        weights, x, batch = (
            self._weights[segment.name],
            self._live[hidden(segment.name, m)],
            self._live[buffers.batch(m)],
        )
        arrays, following = Saved(self.rebuilt(segment)), self._stages.following.get(segment.name, "")
        balancing = self._balancing(segment)
        if balancing is not None:  # the loads and losses are recorded already
            balancing = replace(balancing, load=None, losses=torch.zeros_like(self.loss[1:3]))
        if segment.kind == "block":
            out = block_forward(segment, self.environment, x, weights, batch, arrays, balancing)
            self._compare(step, f"the output of {segment.name}", out, self._live[hidden(following, m)])
            del out
        before = self._gradient_checksums(segment)
        for unit in segment.units:
            self._flats[unit].begin_gradients()
        if segment.kind == "block":
            upstream = self._live[dhidden(following, m)]
            grad = block_backward(segment, self.environment, upstream, x, weights, batch, arrays, balancing)
        else:
            _, grad = losses_backward(self.environment, x, batch, weights, self.num_targets)
        self.settle(segment.units)
        self._compare(step, f"the gradient of the input of {segment.name}", grad, self._live[dhidden(segment.name, m)])
        for name, value in self._gradient_checksums(segment).items():
            self.replays.append(Replayed(f"the gradient of {name}", step, value != before[name]))

    def _compare(self, step: Instruction, what: str, again: Tensor, before: Tensor) -> None:
        self.replays.append(Replayed(what, step, checksum(again) != checksum(before)))

    def _gradient_checksums(self, segment: Segment) -> dict[str, Tensor]:
        units = [self._units[name] for name in segment.units]
        return {name: checksum(part) for unit in units for name, part in by_parameter(unit.flat, unit.grad)}

    def backward_arguments(self, segment: Segment, m: int) -> tuple[Any, ...]:
        """The arguments of a block's backward behind the environment."""
        name, batch = segment.name, self._live[buffers.batch(m)]
        upstream, x = self._live[dhidden(self._stages.following[name], m)], self._live[hidden(name, m)]
        weights, balancing = self._weights[name], self._balancing(segment)
        return upstream, x, weights, batch, self._live[saved(name, m)], balancing

    def allocate_gradients(self, step: Instruction) -> None:
        """Allocates the gradients that a pass writes, where they are not there."""
        for name in step.writes:
            if name.startswith("grad/"):
                unit = name.removeprefix("grad/")
                if not is_live(self._units[unit].grad):
                    set_storage(self._units[unit].grad, live=True)
                    self._flats[unit].begin_gradients()

    def settle(self, units: tuple[str, ...]) -> None:
        """Completes the gradients of units that a pass has added to."""
        for unit in units:
            self._flats[unit].settle_gradients()


def microbatch_of(step: Instruction) -> int:
    """The microbatch of an instruction that has one."""
    assert step.microbatch is not None
    return step.microbatch
