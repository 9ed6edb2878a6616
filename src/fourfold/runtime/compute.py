"""The computing instructions: a segment's function on buffers by name, its backward on its own graph."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from fourfold.model.depths import losses, losses_backward
from fourfold.model.embedding import embedding_backward, embedding_forward
from fourfold.model.multi_token import module_forward
from fourfold.model.parallel import Parallel
from fourfold.model.segments import Microbatch, block_forward
from fourfold.model.spec import Segment
from fourfold.model.weights import FlatUnit, deferring
from fourfold.program import Instruction, buffers
from fourfold.program.buffers import deferred, dhidden, hidden, saved
from fourfold.program.view import RankView
from fourfold.runtime.routers import Routers
from fourfold.runtime.units import Unit, is_live, set_storage


class Compute:
    """Runs the segments of one rank. `live` holds what lives within a step, by buffer name; the executor shares it."""

    def __init__(
        self,
        view: RankView,
        units: Mapping[str, Unit],
        flats: Mapping[str, FlatUnit],
        weights: Mapping[str, Any],
        parallel: Parallel,
        live: dict[str, Any],
        routers: Routers,
    ) -> None:
        self._model, self._stages = view.spec.model, view.stages
        self._units = units
        self._flats = flats
        self._weights = weights
        self._parallel = parallel
        self._live = live
        self._routers = routers
        self._records_loss = parallel.tp is None or parallel.tp.index == 0 or not self._model.num_experts
        self.num_targets: Tensor
        """Valid targets of the global batch, of every depth of prediction, once they are counted."""
        self.loss: Tensor
        """Sum of the token losses that this rank has computed (the same on ranks that differ in tp: where the loss is summed over
        these too, the first has it), then its routers' balance and z losses, then the sums of modules of multi-token prediction."""

    def forward(self, step: Instruction) -> None:
        segment, m = self._stages.segments[step.segment or ""], _microbatch(step)
        batch: Microbatch = self._live[buffers.batch(m)]
        weights = self._weights[segment.name]
        if segment.kind == "embedding":
            out = embedding_forward(batch.tokens, weights, self._parallel, batch.positions)
        elif segment.kind == "head":
            x = self._live[hidden("head", m)]
            self._record(losses(x, batch, weights, self._model, self._parallel))
            return
        elif saved(segment.name, m) in step.writes:
            out = self._run_with_graph(segment.name, m)
        else:
            out = self._run_block(segment, m, self._live[hidden(segment.name, m)], False)
        self._live[hidden(self._stages.following[segment.name], m)] = out

    def _record(self, sums: Tensor) -> None:
        """Adds the sums of the token losses, [1 + depths of multi-token prediction]."""
        if self._records_loss:
            self.loss[0] += sums[0]
            self.loss[len(self.loss) - len(sums) + 1 :] += sums[1:]

    def _run_block(self, segment: Segment, m: int, x: Tensor, keep: bool) -> Tensor:
        model, batch = self._model, self._live[buffers.batch(m)]
        weights, balancing = self._weights[segment.name], self._routers.balancing(segment.name, self.loss[1:3])
        if segment.depth:
            return module_forward(x, weights, model, batch, segment.depth, self._parallel, keep, balancing)
        return block_forward(x, weights, model, batch, self._parallel, keep, balancing)

    def recompute(self, step: Instruction) -> None:
        self._run_with_graph(step.segment or "", _microbatch(step))

    def _run_with_graph(self, name: str, m: int) -> Tensor:
        """A block's forward on a detached input; its graph is kept by its root, so the output itself can be freed."""
        x = self._live[hidden(name, m)].detach().requires_grad_()
        segment = self._stages.segments[name]
        with torch.enable_grad():
            out = self._run_block(segment, m, x, self._stages.policies[segment.name] != "selective")
        self._live[saved(name, m)] = (x, get_gradient_edge(out))
        return out.detach()

    def backward(self, step: Instruction) -> None:
        self._allocate_gradients(step)
        segment, m = self._stages.segments[step.segment or ""], _microbatch(step)
        weights = self._weights[segment.name]
        if segment.kind == "head":
            x, batch = self._live[hidden("head", m)], self._live[buffers.batch(m)]
            sums, grad = losses_backward(x, batch, weights, self._model, self.num_targets, self._parallel)
            self._record(sums)
            self._live[dhidden("head", m)] = grad
        elif segment.kind == "embedding":
            upstream = self._live[dhidden(self._stages.following[segment.name], m)]
            batch = self._live[buffers.batch(m)]
            embedding_backward(batch.tokens, upstream, weights, self._parallel, batch.positions)
        else:
            self._input_gradient(segment.name, m)
        self._settle(segment.units)

    def backward_input(self, step: Instruction) -> None:
        self._allocate_gradients(step)
        segment, m = self._stages.segments[step.segment or ""], _microbatch(step)
        with deferring(self._flats[unit] for unit in segment.units) as pending:
            self._input_gradient(segment.name, m)
        self._live[deferred(segment.name, m)] = pending

    def backward_weight(self, step: Instruction) -> None:
        self._allocate_gradients(step)
        segment, m = self._stages.segments[step.segment or ""], _microbatch(step)
        self._live[deferred(segment.name, m)].run()
        self._settle(segment.units)

    def _input_gradient(self, name: str, m: int) -> None:
        upstream = self._live[dhidden(self._stages.following[name], m)]
        x, edge = self._live[saved(name, m)]
        (self._live[dhidden(name, m)],) = torch.autograd.grad(edge, [x], [upstream])

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
