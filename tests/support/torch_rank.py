"""One rank's view of a segment on torch, alone in its process: what `RecordedRank` is on shape-only tensors. Its collectives end
at once."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fourfold.config import ModelConfig
from fourfold.model import torch_operations
from fourfold.model.block import block_backward, block_forward
from fourfold.model.depths import losses, losses_backward
from fourfold.model.embedding import embedding_backward, embedding_forward
from fourfold.model.environment import Environment, Microbatch, Saved
from fourfold.model.experts.balance import Balancing
from fourfold.model.layers import ropes_of
from fourfold.model.local_parameter import local_parameter
from fourfold.model.parallel import ContextParallel, Parallel
from fourfold.model.shape import Shape
from fourfold.model.spec import Segment, bind_weights, build_segments
from fourfold.model.torch_operations import torch_dtype
from fourfold.model.weights import FlatUnit, deferring
from fourfold.model.work import Collective
from tests.support.differentiable import rebuilding
from tests.support.executed import ExecutedKernels


class StartedCollectives:
    """Collectives that the groups of one rank started, in order, and the counter of kernels meanwhile."""

    def __init__(self, head_sizes: tuple[int, int]) -> None:
        self.started: list[Collective] = []
        self.head_sizes = head_sizes
        self.kernels = ExecutedKernels(head_sizes)

    def wait(self) -> None:
        """Everything is complete as soon as it is started."""


class LonelyGroup:
    """A group of whose ranks one runs; the others have what it has."""

    def __init__(self, log: StartedCollectives, axes: str, size: int, index: int) -> None:
        self._log, self._axes, self.size, self.index = log, axes, size, index

    def _start(
        self, kind: Any, sent: Sequence[Tensor], into: Sequence[Tensor], values: Sequence[Tensor]
    ) -> StartedCollectives:
        self._log.started.append(
            Collective(kind, self._axes, sum(x.numel() * x.element_size() for x in sent), self.size)
        )
        with self._log.kernels.paused():
            for target, value in zip(into, values, strict=True):
                target.copy_(value)
        return self._log

    def all_gather(self, full: Tensor, shard: Tensor) -> StartedCollectives:
        shards = full.view(self.size, *shard.shape)
        return self._start("all_gather", [full], [shards], [shard.expand_as(shards)])

    def sum_scatter(self, full: Tensor, into: Tensor) -> StartedCollectives:
        return self._start("reduce_scatter", [full], [into], [full.view(self.size, *into.shape)[self.index]])

    def all_reduce(self, full: Tensor) -> StartedCollectives:
        return self._start("all_reduce", [full], [], [])

    def all_to_all(self, received: Tensor, sent: Tensor, *rows: Any) -> StartedCollectives:
        return self._start("all_to_all", [sent], [received], [sent])

    def shift(self, received: Sequence[Tensor], sent: Sequence[Tensor], back: bool = False) -> StartedCollectives:
        return self._start("shift", sent, received, sent)


class TorchRank:
    """`passes` runs all there is to run of the segment, and gives what each executed."""

    def __init__(self, segment: Segment, model: ModelConfig, shape: Shape, ring_rank: int) -> None:
        torch.manual_seed(0)
        self.segment, self.model, self.shape = segment, model, shape
        self.log = StartedCollectives((model.head_dim, model.value_head_dim or model.head_dim))
        self.env = Environment(torch_operations, model, self._parallel(ring_rank), shape.recipe)
        self.units = self._units()
        self.weights: Any = bind_weights(segment, self.units)
        self.batch = self._microbatch()
        self.balancing = self._balancing() if segment.moe else None

    def _group(self, axes: str, size: int, index: int = 0) -> Any:
        return LonelyGroup(self.log, axes, size, index) if size > 1 else None

    def _parallel(self, ring_rank: int) -> Parallel:
        shape, context = self.shape, None
        if shape.cp_ring * shape.cp_ulysses > 1:
            ring = self._group("cp_ring", shape.cp_ring, ring_rank)
            context = ContextParallel(ring, self._group("cp_ulysses", shape.cp_ulysses), shape.cp_gather)
        tp, ep, etp = (self._group(axis, getattr(shape, axis)) for axis in ("tp", "ep", "etp"))
        scales = self._group(*self._sharing())
        return Parallel(tp, shape.sequence_parallel, shape.tp_copies, context, ep, etp, scales)

    def _sharing(self) -> tuple[str, int]:
        """The axes along which ranks share a microbatch, and how many they are."""
        split = {"cp": self.shape.cp_ring * self.shape.cp_ulysses, "tp": self.shape.tp}
        return "+".join(axis for axis, size in split.items() if size > 1), split["cp"] * split["tp"]

    def _units(self) -> dict[str, FlatUnit]:
        result = {}
        for unit in (unit for segment in build_segments(self.model) for unit in segment.own):
            if unit.name in self.segment.units:
                parameters = [local_parameter(spec, unit.domain, self.shape.degree) for spec in unit.parameters]
                values = 0.1 * torch.randn(sum(parameter.numel for parameter in parameters))
                flats = (values.to(torch_dtype(name)) for name in (self.shape.compute, self.shape.gradients))
                result[unit.name] = FlatUnit(parameters, *flats)
        return result

    def _microbatch(self) -> Microbatch:
        shape, model = self.shape, self.model
        size = (1 + 2 * model.mtp_layers, shape.sequences, shape.tokens // shape.sequences)
        tokens = torch.randint(model.vocab_size, size)
        ahead = tokens[1:].chunk(2) if model.mtp_layers else (None, None)
        rows = size[1:] if shape.document_mask else size[2:]
        dtype = torch_dtype(shape.compute)
        rope: Any = {r: tuple(torch.rand(*rows, 1, r.width // 2).to(dtype) for _ in range(2)) for r in ropes_of(model)}
        documents = [[shape.sequence_length]] * shape.sequences if shape.document_mask else None
        positions = torch.zeros(size[1:], dtype=torch.int64) if model.positions == "learned" else None
        return Microbatch(tokens[0], tokens[0].clone(), rope, documents, positions, *ahead)

    def _balancing(self) -> Balancing:
        shape, experts = self.shape, self.model.num_experts
        group = self._group(*self._sharing())
        bias = torch.zeros(experts, dtype=torch_dtype("fp64" if shape.compute == "fp64" else "fp32"))
        return Balancing(
            shape.sequences, shape.sequence_length, shape.sequences, (group,) if group is not None else (),
            bias if self.model.router == "sigmoid" else None, torch.zeros(experts, dtype=torch.float64),
            torch.zeros(2, dtype=torch.float64),
        )  # fmt: skip

    def _hidden(self, depths: int = 1) -> Tensor:
        return torch.randn(depths * self.shape.hidden_tokens, self.model.hidden_size).to(
            torch_dtype(self.shape.compute)
        )

    def _run(self, call: Any) -> tuple[Any, ExecutedKernels, list[Collective]]:
        self.log.started, self.log.kernels = [], ExecutedKernels(self.log.head_sizes)
        with self.log.kernels:
            result = call()
        return result, self.log.kernels, list(self.log.started)

    def passes(self, policy: str) -> dict[str, tuple[ExecutedKernels, list[Collective]]]:
        """By the names of a footprint's phases; `recompute` is held against `forward`."""
        env, batch, weights = self.env, self.batch, self.weights
        if self.segment.kind == "embedding":
            _, *forward = self._run(lambda: embedding_forward(env, batch.tokens, weights, batch.positions))
            grad = self._hidden()
            _, *backward = self._run(lambda: embedding_backward(env, batch.tokens, grad, weights, batch.positions))
            return {"forward": (*forward,), "backward": (*backward,)}
        if self.segment.kind == "head":
            depths = 1 + self.model.mtp_layers
            x, counts = self._hidden(depths), torch.full((depths,), 7)
            _, *forward = self._run(lambda: losses(env, x, batch, weights))
            _, *backward = self._run(lambda: losses_backward(env, x, batch, weights, counts))
            return {"forward": (*forward,), "backward": (*backward,)}
        return self._block(policy)

    def _block(self, policy: str) -> dict[str, tuple[ExecutedKernels, list[Collective]]]:
        depth, result = self.segment.depth, {}
        x, upstream = self._hidden(max(1, depth)), self._hidden(depth + 1 if depth else 1)

        def forward(saved: Saved) -> Saved:
            block_forward(self.segment, self.env, x, self.weights, self.batch, saved, self.balancing)
            return saved

        def backward() -> None:
            block_backward(self.segment, self.env, upstream, x, self.weights, self.batch, saved, self.balancing)

        def make() -> Saved:
            return rebuilding(policy != "selective")

        if policy == "full":
            _, *result["forward"] = self._run(lambda: forward(Saved(keeps=False)))
        saved, *result["recompute" if policy == "full" else "forward"] = self._run(lambda: forward(make()))
        _, *result["backward"] = self._run(backward)
        saved = forward(make())
        with deferring(self.units.values()) as pending:
            _, *result["input_gradient"] = self._run(backward)
        _, *result["weight_gradient"] = self._run(pending.run)
        return {name: (kernels, started) for name, (kernels, started) in result.items()}
