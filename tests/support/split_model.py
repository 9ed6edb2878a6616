"""A full model's segments run by one rank of `tp` on its part of the weights, and the same model whole beside it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad

from fourfold.config import ModelConfig
from fourfold.layout import FlatLayout, Layout, flat_layouts
from fourfold.layout.mesh import tensor_head_degree
from fourfold.model import torch_operations
from fourfold.model.block import block_backward, block_forward
from fourfold.model.embedding import embedding_backward, embedding_forward
from fourfold.model.environment import Environment, Microbatch
from fourfold.model.head import head_loss, head_loss_backward
from fourfold.model.parallel import ALONE, Parallel, Pending
from fourfold.model.spec import bind_weights
from fourfold.model.weights import FlatUnit, deferring
from fourfold.runtime.collectives import AxisGroup, make_groups
from fourfold.runtime.links import Links
from tests.support.differentiable import rebuilding
from tests.support.plain_model import PlainModel

LINKS: Links = {}
"""Process groups of this process, made once."""


class CountingGroup:
    """A group of `Parallel` that notes what it starts: (kind, bytes of the full buffer), in order."""

    def __init__(self, group: AxisGroup) -> None:
        self._group = group
        self.size, self.index = group.size, group.index
        self.started: list[tuple[str, int]] = []

    @property
    def sent_bytes(self) -> int:
        return self._group.sent_bytes

    @property
    def surplus_bytes(self) -> int:
        return self._group.surplus_bytes

    def _note(self, kind: str, full: Tensor) -> None:
        self.started.append((kind, full.numel() * full.element_size()))

    def all_gather(self, full: Tensor, shard: Tensor) -> Pending:
        self._note("all_gather", full)
        return self._group.all_gather(full, shard)

    def sum_scatter(self, full: Tensor, into: Tensor) -> Pending:
        self._note("reduce_scatter", full)
        return self._group.sum_scatter(full, into)

    def all_reduce(self, full: Tensor) -> Pending:
        self._note("all_reduce", full)
        return self._group.all_reduce(full)

    def all_to_all(
        self,
        received: Tensor,
        sent: Tensor,
        received_rows: Sequence[int] | None = None,
        sent_rows: Sequence[int] | None = None,
    ) -> Pending:
        self._note("all_to_all", sent)
        return self._group.all_to_all(received, sent, received_rows, sent_rows)

    def shift(self, received: Sequence[Tensor], sent: Sequence[Tensor], back: bool = False) -> Pending:
        self.started.append(("shift", sum(t.numel() * t.element_size() for t in sent)))
        return self._group.shift(received, sent, back)


def tensor_layout(model: ModelConfig, tp: int, sequence: bool) -> Layout:
    """A layout of tensor parallelism alone."""
    return Layout(
        pp=1,
        dp_replicate=1,
        dp_shard=1,
        cp=1,
        tp=tp,
        zero=0,
        schedule="1f1b",
        microbatch_sequences=1,
        num_microbatches=1,
        sequence_length=1,
        recompute=(),
        prefetch=0,
        sequence_parallel=sequence,
        tp_head=tp if model.is_mla else tensor_head_degree(tp, model.num_kv_heads),
    )


def tensor_group(layout: Layout, rank: int) -> AxisGroup:
    """The rank's tensor-parallel group."""
    return make_groups(layout, rank, ["tp"], 60.0, LINKS)["tp"]


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """Norm of the difference over norm."""
    return ((actual - expected).norm() / expected.norm().clamp(min=1e-30)).item()


def take_box(full: Tensor, box: Sequence[tuple[int, int]]) -> Tensor:
    """The part of a parameter that a rank holds."""
    return full[tuple(slice(start, end) for start, end in box)]


@dataclass
class Trace:
    """The results of one pass over the segments, in order: inputs of blocks and head; their gradients, last first; the loss."""

    hidden: list[Tensor] = field(default_factory=list)
    gradients: list[Tensor] = field(default_factory=list)
    loss: Tensor = field(default_factory=lambda: torch.zeros(()))
    evaluated: Tensor = field(default_factory=lambda: torch.zeros(()))


def run_segments(
    model: ModelConfig,
    segments: Any,
    weights: dict[str, Any],
    units: dict[str, FlatUnit],
    batch: Microbatch,
    num_targets: int,
    parallel: Parallel = ALONE,
    keep: bool = True,
    deferred: bool = False,
) -> Trace:
    """Every segment's forward and backward, as an executor runs them."""
    env, trace, behind, waiting = Environment(torch_operations, model, parallel), Trace(), [], []
    x = embedding_forward(env, batch.tokens, weights["embed"], batch.positions)
    for block in segments[1:-1]:
        saved = rebuilding(keep)
        out = block_forward(block, env, x, weights[block.name], batch, saved)
        behind.append((block, x, saved))
        trace.hidden.append(x)
        x = out
    trace.hidden.append(x)
    trace.evaluated = head_loss(env, x, batch.targets, weights["head"])
    trace.loss, grad = head_loss_backward(env, x, batch.targets, weights["head"], torch.tensor(num_targets))
    trace.gradients.append(grad)
    for block, x, saved in reversed(behind):
        with deferring(units[name] for name in block.units if deferred) as pending:
            grad = block_backward(block, env, grad, x, weights[block.name], batch, saved)
        waiting.append(pending)
        trace.gradients.append(grad)
    embedding_backward(env, batch.tokens, grad, weights["embed"], batch.positions)
    for pending in waiting:
        pending.run()
    return trace


def split_layout(model: ModelConfig, tp: int, cp: int, method: str, sequence: bool, length: int) -> Layout:
    """One pipeline rank's layout of tensor and context parallelism."""
    ulysses = cp if method == "ulysses" else 1
    base = tensor_layout(model, tp, sequence)
    return replace(base, cp=cp, cp_method=method, cp_ulysses=ulysses, sequence_length=length)


class SplitModel:
    """One rank's part of a plain model."""

    def __init__(self, full: PlainModel, layout: Layout, rank: int, gradients: torch.dtype = torch.float64) -> None:
        self.layout, self.coordinates = layout, layout.coordinates(rank)
        self.model, self.segments = full.model, full.segments
        self.flats: dict[str, FlatLayout] = flat_layouts(full.segments, layout)
        parameters = full.parameters()
        self.units = {}
        for name, flat in self.flats.items():
            parts = [take_box(parameters[p.name], p.box(self.coordinates)).reshape(-1) for p in flat.parameters]
            values = torch.cat(
                [pad(part, (0, p.numel - len(part))) for part, p in zip(parts, flat.parameters, strict=True)]
            )
            self.units[name] = FlatUnit(flat.parameters, values, torch.zeros_like(values, dtype=gradients))
        self.weights = {s.name: bind_weights(s, self.units) for s in self.segments}

    def summed_gradients(self) -> dict[str, Tensor]:
        """This rank's part of every gradient, partial sums added over the ranks that the flat buffer names."""
        result = {}
        for name, flat in self.flats.items():
            gradients = self.units[name].gradients
            for axis, start, end in flat.sums:
                gradients[start:end] = self._sum(axis, gradients[start:end])
            for parameter, start, end in flat.ranges():
                own = gradients[start:end].view(parameter.shape)
                rows = parameter.box(self.coordinates)[0]
                assert not own[rows[1] - rows[0] :].any(), f"the padding of {parameter.name} has a gradient"
                result[parameter.name] = own[: rows[1] - rows[0]]
        return result

    def _sum(self, axis: str, part: Tensor) -> Tensor:
        """Sums over the ranks of an axis; every rank of the world calls it."""
        every = [torch.empty_like(part) for _ in range(dist.get_world_size())]
        dist.all_gather(every, part.contiguous())
        own = self.layout.group_of(dist.get_rank(), (axis,))
        return torch.stack([every[rank] for rank in own]).sum(0)
