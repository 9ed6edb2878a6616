"""The computing instructions: a segment's forward and backward on buffers by name."""

from collections.abc import Mapping
from typing import Any

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
        self._env = Environment(operations, view.spec.model, parallel)
        self._live = live
        self._routers = routers
        self._records_loss = parallel.tp is None or parallel.tp.index == 0 or not view.spec.model.num_experts
        self.num_targets: Tensor
        """Valid targets of the global batch, of every depth of prediction, once they are counted."""
        self.loss: Tensor
        """Sum of the token losses that this rank has computed (the same on ranks that differ in tp: where the loss is summed over
        these too, the first has it), then its routers' balance and z losses, then the sums of MTP modules."""

    def forward(self, step: Instruction) -> None:
        segment, m = self._stages.segments[step.segment or ""], _microbatch(step)
        batch: Microbatch = self._live[buffers.batch(m)]
        weights = self._weights[segment.name]
        if segment.kind == "embedding":
            out = embedding_forward(self._env, batch.tokens, weights, batch.positions)
        elif segment.kind == "head":
            self._record(losses(self._env, self._live[hidden("head", m)], batch, weights))
            return
        else:
            kept = saved(segment.name, m)
            out = self._run_block(segment, m, kept if kept in step.writes else None)
        self._live[hidden(self._stages.following[segment.name], m)] = out

    def _record(self, sums: Tensor) -> None:
        """Adds the sums of the token losses, [1 + depths of multi-token prediction]."""
        if self._records_loss:
            self.loss[0] += sums[0]
            self.loss[len(self.loss) - len(sums) + 1 :] += sums[1:]

    def _run_block(self, segment: Segment, m: int, kept: str | None) -> Tensor:
        """A block's forward. Keeps its activations under the name, if one is given."""
        rebuilt = SELECTIVE if self._stages.policies[segment.name] == "selective" else ()
        arrays = Saved(rebuilt, keeps=kept is not None)
        if kept is not None:
            self._live[kept] = arrays
        x, batch = self._live[hidden(segment.name, m)], self._live[buffers.batch(m)]
        weights, balancing = self._weights[segment.name], self._balancing(segment)
        return block_forward(self._env, x, weights, batch, arrays, balancing, segment.depth)

    def _balancing(self, segment: Segment) -> Balancing | None:
        return self._routers.balancing(segment.name, self.loss[1:3])

    def recompute(self, step: Instruction) -> None:
        segment, m = self._stages.segments[step.segment or ""], _microbatch(step)
        self._run_block(segment, m, saved(segment.name, m))

    def backward(self, step: Instruction) -> None:
        self._allocate_gradients(step)
        segment, m = self._stages.segments[step.segment or ""], _microbatch(step)
        weights = self._weights[segment.name]
        if segment.kind == "head":
            x, batch = self._live[hidden("head", m)], self._live[buffers.batch(m)]
            sums, grad = losses_backward(self._env, x, batch, weights, self.num_targets)
            self._record(sums)
            self._live[dhidden("head", m)] = grad
        elif segment.kind == "embedding":
            upstream = self._live[dhidden(self._stages.following[segment.name], m)]
            batch = self._live[buffers.batch(m)]
            embedding_backward(self._env, batch.tokens, upstream, weights, batch.positions)
        else:
            self._input_gradient(segment, m)
        self._settle(segment.units)

    def backward_input(self, step: Instruction) -> None:
        self._allocate_gradients(step)
        segment, m = self._stages.segments[step.segment or ""], _microbatch(step)
        with deferring(self._flats[unit] for unit in segment.units) as pending:
            self._input_gradient(segment, m)
        self._live[deferred(segment.name, m)] = pending

    def backward_weight(self, step: Instruction) -> None:
        self._allocate_gradients(step)
        segment, m = self._stages.segments[step.segment or ""], _microbatch(step)
        self._live[deferred(segment.name, m)].run()
        self._settle(segment.units)

    def _input_gradient(self, segment: Segment, m: int) -> None:
        name, batch = segment.name, self._live[buffers.batch(m)]
        upstream, x = self._live[dhidden(self._stages.following[name], m)], self._live[hidden(name, m)]
        weights, balancing = self._weights[name], self._balancing(segment)
        self._live[dhidden(name, m)] = block_backward(
            self._env, upstream, x, weights, batch, self._live[saved(name, m)], balancing, segment.depth
        )

    def _allocate_gradients(self, step: Instruction) -> None:
        for name in step.writes:
            if name.startswith("grad/"):
                unit = name.removeprefix("grad/")
                if not is_live(self._units[unit].grad):
                    set_storage(self._units[unit].grad, live=True)
                    self._flats[unit].begin_gradients()

    def _settle(self, units: tuple[str, ...]) -> None:
        for unit in units:
            self._flats[unit].settle_gradients()


def _microbatch(step: Instruction) -> int:
    assert step.microbatch is not None
    return step.microbatch
