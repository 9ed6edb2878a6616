"""The loss and its divisor, the norm, and the update."""

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch

from fourfold.layout.flat import FlatLayout
from fourfold.runtime import norm
from fourfold.runtime.executor import Executor
from fourfold.runtime.optimizer import ShardOptimizer
from fourfold.runtime.units import set_storage
from tests.support.parity_runs import RankData
from tests.support.runtime_mutants.edits import everywhere, mutant, replaced

# The loss


@mutant
def the_divisor_is_each_ranks_own() -> Iterator[None]:
    def count(self: Executor, step: Any) -> None:
        self.start(step, self.groups[step.collectives[0].axes].all_reduce(self.compute.num_targets.clone()))

    with patch.object(Executor, "_count", count):
        yield


@mutant
def the_divisor_is_each_microbatchs_own() -> Iterator[None]:
    def make(original: Any) -> Any:
        def backward(env: Any, x: Any, targets: Any, weights: Any, count: Any, *rest: Any) -> Any:
            return original(env, x, targets, weights, (targets != -100).sum().clamp(min=1), *rest)

        return backward

    with everywhere("head_loss_backward", make):
        yield


@mutant
def the_loss_is_each_ranks_own() -> Iterator[None]:
    def sum_loss(self: Executor, step: Any) -> None:
        self.start(step, self.groups[step.collectives[0].axes].all_reduce(self.compute.loss.clone()))

    with patch.object(Executor, "_sum_loss", sum_loss):
        yield


@mutant
def all_ranks_read_the_same_rows() -> Iterator[None]:
    def make(original: Any) -> Any:
        def init(self: Any, batch: Any, spec: Any, rank: int, *device: Any) -> None:
            original(self, batch, spec, 0, *device)

        return init

    with replaced(RankData, "__init__", make):
        yield


# The update


@mutant
def the_norm_is_each_ranks_own() -> Iterator[None]:
    def make(original: Any) -> Any:
        def clip(self: Executor, step: Any) -> None:
            original(self, step)
            shards = [self.units[name.partition("/")[2]].grad_shard for name in step.reads]
            own = torch.stack([shard.norm().double().square() for shard in shards]).sum().sqrt().item()
            self.scale = min(1.0, self.optimizer.clip_norm / (own + 1e-6))

        return clip

    with replaced(Executor, "_clip_norm", make):
        yield


@mutant
def nothing_is_clipped() -> Iterator[None]:
    def make(original: Any) -> Any:
        def clip(self: Executor, step: Any) -> None:
            original(self, step)
            self.scale = 1.0

        return clip

    with replaced(Executor, "_clip_norm", make):
        yield


@mutant
def each_unit_is_clipped_by_itself() -> Iterator[None]:
    def make(original: Any) -> Any:
        def update(self: Executor, step: Any) -> None:
            kept = self.scale
            norm = self.units[step.segment].grad_shard.norm().item()
            self.scale = min(1.0, self.optimizer.clip_norm / (norm + 1e-6))
            original(self, step)
            self.scale = kept

        return update

    with replaced(Executor, "_update", make):
        yield


@mutant
def updates_are_not_counted() -> Iterator[None]:
    def make(original: Any) -> Any:
        def update(self: ShardOptimizer, gradient: Any, lr: float, step: int, scale: float) -> None:
            original(self, gradient, lr, 0, scale)

        return update

    with replaced(ShardOptimizer, "update", make):
        yield


@mutant
def norms_are_decayed_too() -> Iterator[None]:
    with replaced(ShardOptimizer, "__init__", _all_decayed(True)):
        yield


@mutant
def nothing_is_decayed() -> Iterator[None]:
    with replaced(ShardOptimizer, "__init__", _all_decayed(False)):
        yield


def _all_decayed(decayed: bool) -> Any:
    def make(original: Any) -> Any:
        def init(self: ShardOptimizer, section: Any, master: Any, runs: Any, *rest: Any) -> None:
            original(self, section, master, [(start, end, decayed, rate) for start, end, _, rate in runs], *rest)

        return init

    return make


@mutant
def updated_parameters_are_not_gathered() -> Iterator[None]:
    def all_gather(self: Executor, step: Any) -> None:
        unit = self.units[step.segment or ""]
        group = self.groups[step.collectives[0].axes]
        self.start(step, group.all_gather(unit.params.clone(), unit.shard.clone()))

    with patch.object(Executor, "_all_gather_parameters", all_gather):
        yield


@mutant
def gathers_return_the_first_steps_parameters() -> Iterator[None]:
    first: dict[Any, Any] = {}

    def gather(self: Executor, step: Any) -> None:
        unit = self.units[step.segment or ""]
        set_storage(unit.params, live=True)
        shard = first.setdefault((id(self), step.segment), unit.shard.clone())
        self.start(step, self.groups[step.collectives[0].axes].all_gather(unit.params, shard))

    with patch.object(Executor, "_gather", gather):
        yield


@mutant
def bytes_are_counted_twice() -> Iterator[None]:
    """Right results, but one more all-reduce than the program declares."""

    def make(original: Any) -> Any:
        def count(self: Executor, step: Any) -> None:
            self.groups[step.collectives[0].axes].all_reduce(torch.zeros(())).wait()
            original(self, step)

        return count

    with replaced(Executor, "_count", make):
        yield


# The norm


@mutant
def copies_count_in_the_norm_on_every_rank() -> Iterator[None]:
    with patch.object(norm, "_counted_ranges", lambda unit, coordinates: [(0, unit.flat.shard_numel)]):
        yield


@mutant
def copied_heads_count_in_the_norm_on_every_rank() -> Iterator[None]:
    def make(original: Any) -> Any:
        return lambda self: [part for part in original(self) if part[0] != "tp_copy"]

    with replaced(FlatLayout, "copied_ranges", make):
        yield


@mutant
def a_tied_table_counts_on_both_stages() -> Iterator[None]:
    def make(original: Any) -> Any:
        return lambda view, unit, rank: unit == view.tied_unit or original(view, unit, rank)

    with replaced(norm, "is_counted", make):
        yield


@mutant
def every_replica_counts_in_the_norm() -> Iterator[None]:
    with patch.object(norm, "is_counted", lambda view, unit, rank: True):
        yield
