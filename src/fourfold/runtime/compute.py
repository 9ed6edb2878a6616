"""The computing instructions: a segment's forward and backward on buffers by name."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fourfold.model.block import block_backward, block_backward_parts, block_forward, block_forward_parts
from fourfold.model.depths import losses, losses_backward
from fourfold.model.embedding import embedding_backward, embedding_forward
from fourfold.model.environment import SELECTIVE, Environment, Microbatch, Saved
from fourfold.model.experts.balance import Balancing
from fourfold.model.experts.parts import PassInParts
from fourfold.model.operations import Operations
from fourfold.model.parallel import Parallel
from fourfold.model.spec import Segment
from fourfold.model.weights import FlatUnit, deferring
from fourfold.program import Instruction, buffers
from fourfold.program.buffers import combined, deferred, dhidden, dispatched, hidden, saved
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
        self._env = Environment(operations, view.spec.model, parallel, view.spec.recipe)
        self._live = live
        self._routers = routers
        self._records_loss = parallel.tp is None or parallel.tp.index == 0 or not view.spec.model.num_experts
        self.num_targets: Tensor
        """Valid targets of the global batch, of every depth of prediction, once they are counted."""
        self.loss: Tensor
        """Sum of the token losses that this rank has computed (the same on ranks that differ in tp: where the loss is summed over
        these too, the first has it), then its routers' balance and z losses, then the sums of MTP modules."""
        self.replays: list[Replayed] = []
        """Tensors that this step computed twice, in order."""

    def forward(self, step: Instruction) -> None:
        segment, m = self._stages.segments[step.segment or ""], _microbatch(step)
        batch: Microbatch = self._live[buffers.batch(m)]
        weights = self._weights[segment.name]
        if segment.kind == "embedding":
            out = embedding_forward(self._env, batch.tokens, weights, batch.positions)
        elif segment.kind == "head":
            self._record(losses(self._env, self._live[hidden("head", m)], batch, weights))
            return
        elif dispatched(segment.name, m) in step.writes:
            self._forward_in_parts(segment, m)
            return
        else:
            kept = saved(segment.name, m)
            out = self._run_block(segment, m, kept if kept in step.writes else None)
        self._live[hidden(self._stages.following[segment.name], m)] = out

    def _forward_in_parts(self, segment: Segment, m: int) -> None:
        """The first part; the last keeps the activations."""
        arrays = Saved(self._rebuilt(segment), keeps=self._stages.policies[segment.name] != "full")
        given = self._of_forward(segment, m, arrays)
        run = PassInParts(self._env, lambda env: block_forward_parts(env, *given), arrays)
        run.advance()
        self._live[dispatched(segment.name, m)] = run

    def experts_forward(self, step: Instruction) -> None:
        """The second part of a forward: what the experts make of the rows that came."""
        name, m = step.segment or "", _microbatch(step)
        self._next_part(dispatched(name, m), combined(name, m))

    def finish_forward(self, step: Instruction) -> None:
        """The last part of a forward, with the rows that came back."""
        name, m = step.segment or "", _microbatch(step)
        run: PassInParts = self._live[combined(name, m)]
        self._live[hidden(self._stages.following[name], m)] = run.advance()
        if saved(name, m) in step.writes:
            self._live[saved(name, m)] = run.saved

    def experts_backward(self, step: Instruction) -> None:
        """The second part of a backward."""
        self._allocate_gradients(step)
        name, m = step.segment or "", _microbatch(step)
        self._next_part(dispatched(name, m, gradient=True), combined(name, m, gradient=True))

    def finish_backward(self, step: Instruction) -> None:
        """The last part of a backward."""
        self._allocate_gradients(step)
        name, m = step.segment or "", _microbatch(step)
        run: PassInParts = self._live[combined(name, m, gradient=True)]
        self._live[dhidden(name, m)] = run.advance()
        self._settle(self._stages.segments[name].units)

    def _next_part(self, before: str, after: str) -> None:
        run: PassInParts = self._live[before]
        run.advance()
        self._live[after] = run

    def _record(self, sums: Tensor) -> None:
        """Adds the sums of the token losses, [1 + depths of multi-token prediction]."""
        if self._records_loss:
            self.loss[0].add_(sums[0])
            if len(sums) > 1:
                self.loss[len(self.loss) - len(sums) + 1 :].add_(sums[1:])

    def _run_block(self, segment: Segment, m: int, kept: str | None) -> Tensor:
        """A block's forward. Keeps its activations under the name, if one is given."""
        arrays = Saved(self._rebuilt(segment), keeps=kept is not None)
        if kept is not None:
            self._live[kept] = arrays
        return block_forward(self._env, *self._of_forward(segment, m, arrays))

    def _of_forward(self, segment: Segment, m: int, arrays: Saved) -> tuple[Any, ...]:
        """The arguments of a block's forward behind the environment."""
        x, batch = self._live[hidden(segment.name, m)], self._live[buffers.batch(m)]
        return x, self._weights[segment.name], batch, arrays, self._balancing(segment), segment.depth

    def _rebuilt(self, segment: Segment) -> Iterable[str]:
        return SELECTIVE if self._stages.policies[segment.name] == "selective" else ()

    def _balancing(self, segment: Segment) -> Balancing | None:
        return self._routers.balancing(segment.name, self.loss) if segment.moe else None

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
        elif dispatched(segment.name, m, gradient=True) in step.writes:
            given = self._of_backward(segment, m)
            run = PassInParts(self._env, lambda env: block_backward_parts(env, *given))
            run.advance()
            self._live[dispatched(segment.name, m, gradient=True)] = run
            return
        else:
            self._live[dhidden(segment.name, m)] = block_backward(self._env, *self._of_backward(segment, m))
        self._settle(segment.units)

    def backward_input(self, step: Instruction) -> None:
        self._allocate_gradients(step)
        segment, m = self._stages.segments[step.segment or ""], _microbatch(step)
        with deferring(self._flats[unit] for unit in segment.units) as pending:
            self._live[dhidden(segment.name, m)] = block_backward(self._env, *self._of_backward(segment, m))
        self._live[deferred(segment.name, m)] = pending

    def backward_weight(self, step: Instruction) -> None:
        self._allocate_gradients(step)
        segment, m = self._stages.segments[step.segment or ""], _microbatch(step)
        self._live[deferred(segment.name, m)].run()
        self._settle(segment.units)

    def replay(self, step: Instruction) -> None:
        """A segment's forward and backward once more. Notes in `replays` what it made of other bits than before."""
        segment, m = self._stages.segments[step.segment or ""], _microbatch(step)
        weights, x, batch = (
            self._weights[segment.name],
            self._live[hidden(segment.name, m)],
            self._live[buffers.batch(m)],
        )
        arrays, following = Saved(self._rebuilt(segment)), self._stages.following.get(segment.name, "")
        balancing = self._balancing(segment)
        if balancing is not None:  # the loads and losses are recorded already
            balancing = replace(balancing, load=None, losses=torch.zeros_like(self.loss[1:3]))
        if segment.kind == "block":
            out = block_forward(self._env, x, weights, batch, arrays, balancing, segment.depth)
            self._compare(step, f"the output of {segment.name}", out, self._live[hidden(following, m)])
            del out
        before = self._gradient_checksums(segment)
        for unit in segment.units:
            self._flats[unit].begin_gradients()
        if segment.kind == "block":
            upstream = self._live[dhidden(following, m)]
            grad = block_backward(self._env, upstream, x, weights, batch, arrays, balancing, segment.depth)
        else:
            _, grad = losses_backward(self._env, x, batch, weights, self.num_targets)
        self._settle(segment.units)
        self._compare(step, f"the gradient of the input of {segment.name}", grad, self._live[dhidden(segment.name, m)])
        for name, value in self._gradient_checksums(segment).items():
            self.replays.append(Replayed(f"the gradient of {name}", step, value != before[name]))

    def _compare(self, step: Instruction, what: str, again: Tensor, before: Tensor) -> None:
        self.replays.append(Replayed(what, step, checksum(again) != checksum(before)))

    def _gradient_checksums(self, segment: Segment) -> dict[str, Tensor]:
        units = [self._units[name] for name in segment.units]
        return {name: checksum(part) for unit in units for name, part in by_parameter(unit.flat, unit.grad)}

    def _of_backward(self, segment: Segment, m: int) -> tuple[Any, ...]:
        """The arguments of a block's backward behind the environment."""
        name, batch = segment.name, self._live[buffers.batch(m)]
        upstream, x = self._live[dhidden(self._stages.following[name], m)], self._live[hidden(name, m)]
        weights, balancing = self._weights[name], self._balancing(segment)
        return upstream, x, weights, batch, self._live[saved(name, m)], balancing, segment.depth

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
