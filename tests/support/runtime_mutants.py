"""Ways to break the runtime on purpose: each a context in which one handler or one collective does something wrong."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch

from fourfold.model import head, segments
from fourfold.runtime import executor as executor_module
from fourfold.runtime.collectives import Group, Handle
from fourfold.runtime.executor import Executor
from fourfold.runtime.optimizer import ShardOptimizer
from tests.support import parity
from tests.support.parity import run_rank

MUTANTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {}


def mutant(function: Callable[[], Iterator[None]]) -> Callable[[], AbstractContextManager[None]]:
    context = contextmanager(function)
    MUTANTS[function.__name__] = context
    return context


def _replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> Any:
    """The attribute replaced by `make(original)`."""
    return patch.object(owner, name, make(getattr(owner, name)))


# Sums that are none


@mutant
def others_gradients_are_not_added() -> Iterator[None]:
    def make(original: Any) -> Any:
        def scatter(self: Group, whole: Any, landing: Any, into: Any, first: bool) -> Any:
            yield from original(self, whole, landing, torch.empty_like(into), first=True)
            own, _ = self._parts(whole)
            into.copy_(own) if first else into.add_(0 if own.data_ptr() == into.data_ptr() else own)

        return scatter

    with _replaced(Group, "_reduce_scatter", make):
        yield


@mutant
def gradients_are_averaged_over_ranks() -> Iterator[None]:
    def make(original: Any) -> Any:
        def scatter(self: Group, whole: Any, landing: Any, into: Any, first: bool) -> Any:
            whole.div_(self.size)
            yield from original(self, whole, landing, into, first)

        return scatter

    with _replaced(Group, "_reduce_scatter", make):
        yield


@mutant
def shards_go_to_the_wrong_owner() -> Iterator[None]:
    def make(original: Any) -> Any:
        def exchange(self: Group, outgoing: Any, incoming: Any) -> Any:
            return original(self, list(outgoing)[::-1], incoming)

        return exchange

    with _replaced(Group, "_exchange", make):
        yield


@mutant
def only_the_first_phase_is_waited_for() -> Iterator[None]:
    def wait(self: Handle) -> None:
        for work in self._works or ():
            work.wait()
        self._works = None

    with patch.object(Handle, "wait", wait):
        yield


@mutant
def replicas_are_not_summed() -> Iterator[None]:
    def then(self: Group, whole: Any, landing: Any, into: Any, first: bool, outer: Group) -> Handle:
        return self.reduce_scatter(whole, landing, into, first)

    with patch.object(Group, "reduce_scatter_then", then):
        yield


@mutant
def whole_gradients_are_averaged() -> Iterator[None]:
    def make(original: Any) -> Any:
        def reduce(self: Group, whole: Any) -> Any:
            if whole.dim():
                whole.div_(self.size)
            yield from original(self, whole)

        return reduce

    with _replaced(Group, "_all_reduce", make):
        yield


@mutant
def each_microbatch_overwrites_the_shard() -> Iterator[None]:
    def make(original: Any) -> Any:
        def scatter(self: Group, whole: Any, landing: Any, into: Any, first: bool) -> Any:
            return original(self, whole, landing, into, first=True)

        return scatter

    with _replaced(Group, "_reduce_scatter", make):
        yield


# Gradients


@mutant
def each_microbatch_starts_from_zero() -> Iterator[None]:
    def make(original: Any) -> Any:
        def allocate(self: Executor, step: Any) -> None:
            original(self, step)
            for name in step.writes:
                if name.startswith("grad/") and step.segment == name.removeprefix("grad/"):
                    self.units[name.removeprefix("grad/")].grad.zero_()

        return allocate

    with _replaced(Executor, "_allocate_gradients", make):
        yield


@mutant
def the_heads_share_of_a_tied_table_is_lost() -> Iterator[None]:
    def make(original: Any) -> Any:
        def backward(x: Any, targets: Any, weights: Any, model: Any, count: Any) -> Any:
            table = weights.unembedding
            lost = type(table)(table.data, torch.zeros_like(table.grad))
            return original(x, targets, replace(weights, unembedding=lost), model, count)

        return backward

    with _replaced(executor_module, "head_loss_backward", make):
        yield


@mutant
def recompute_reads_another_microbatch() -> Iterator[None]:
    def make(original: Any) -> Any:
        def recompute(self: Executor, step: Any) -> None:
            name = f"hidden/{step.segment}/m{step.microbatch}"
            kept = self._live[name]
            self._live[name] = kept.roll(1, dims=1)
            original(self, step)
            self._live[name] = kept

        return recompute

    with _replaced(Executor, "_recompute", make):
        yield


@mutant
def documents_attend_to_each_other() -> Iterator[None]:
    def make(original: Any) -> Any:
        return lambda q, k, v, lengths: original(q, k, v, None)

    with _replaced(segments, "causal_attention", make):
        yield


@mutant
def every_position_counts_as_a_target() -> Iterator[None]:
    def make(original: Any) -> Any:
        def backward(x: Any, targets: Any, weights: Any, model: Any, count: Any) -> Any:
            return original(x, targets.clamp(min=0), weights, model, count)

        return backward

    with _replaced(executor_module, "head_loss_backward", make):
        yield


# The loss


@mutant
def the_divisor_is_each_ranks_own() -> Iterator[None]:
    def count(self: Executor, step: Any) -> None:
        self._start(step, self.groups[step.collectives[0].axes].all_reduce(self._num_targets.clone()))

    with patch.object(Executor, "_count", count):
        yield


@mutant
def the_divisor_is_each_microbatchs_own() -> Iterator[None]:
    def make(original: Any) -> Any:
        def backward(x: Any, targets: Any, weights: Any, model: Any, count: Any) -> Any:
            return original(x, targets, weights, model, (targets != -100).sum().clamp(min=1))

        return backward

    with _replaced(executor_module, "head_loss_backward", make):
        yield


@mutant
def the_loss_is_each_ranks_own() -> Iterator[None]:
    def sum_loss(self: Executor, step: Any) -> None:
        self._start(step, self.groups[step.collectives[0].axes].all_reduce(self._loss.clone()))

    with patch.object(Executor, "_sum_loss", sum_loss):
        yield


@mutant
def all_ranks_read_the_same_rows() -> Iterator[None]:
    def make(original: Any) -> Any:
        def init(self: Any, batch: Any, facts: Any, rank: int) -> None:
            original(self, batch, facts, 0)

        return init

    with _replaced(parity.RankData, "__init__", make):
        yield


# The update


@mutant
def the_norm_is_each_ranks_own() -> Iterator[None]:
    def make(original: Any) -> Any:
        def clip(self: Executor, step: Any) -> None:
            original(self, step)
            shards = [self.units[name.partition("/")[2]].grad_shard for name in step.reads]
            own = torch.stack([shard.norm().double().square() for shard in shards]).sum().sqrt().item()
            self._scale = min(1.0, self._optimizer.clip_norm / (own + 1e-6))

        return clip

    with _replaced(Executor, "_clip_norm", make):
        yield


@mutant
def nothing_is_clipped() -> Iterator[None]:
    def make(original: Any) -> Any:
        def clip(self: Executor, step: Any) -> None:
            original(self, step)
            self._scale = 1.0

        return clip

    with _replaced(Executor, "_clip_norm", make):
        yield


@mutant
def each_unit_is_clipped_by_itself() -> Iterator[None]:
    def make(original: Any) -> Any:
        def update(self: Executor, step: Any) -> None:
            kept = self._scale
            norm = self.units[step.segment].grad_shard.norm().item()
            self._scale = min(1.0, self._optimizer.clip_norm / (norm + 1e-6))
            original(self, step)
            self._scale = kept

        return update

    with _replaced(Executor, "_update", make):
        yield


@mutant
def updates_are_not_counted() -> Iterator[None]:
    def make(original: Any) -> Any:
        def update(self: ShardOptimizer, gradient: Any, lr: float, step: int, scale: float) -> None:
            original(self, gradient, lr, 0, scale)

        return update

    with _replaced(ShardOptimizer, "update", make):
        yield


@mutant
def norms_are_decayed_too() -> Iterator[None]:
    def make(original: Any) -> Any:
        def init(self: ShardOptimizer, section: Any, master: Any, decayed: int) -> None:
            original(self, section, master, master.numel())

        return init

    with _replaced(ShardOptimizer, "__init__", make):
        yield


@mutant
def nothing_is_decayed() -> Iterator[None]:
    def make(original: Any) -> Any:
        def init(self: ShardOptimizer, section: Any, master: Any, decayed: int) -> None:
            original(self, section, master, 0)

        return init

    with _replaced(ShardOptimizer, "__init__", make):
        yield


@mutant
def updates_are_not_published() -> Iterator[None]:
    def publish(self: Executor, step: Any) -> None:
        unit = self.units[step.segment or ""]
        group = self.groups[step.collectives[0].axes]
        self._start(step, group.all_gather(unit.params.clone(), unit.shard.clone()))

    with patch.object(Executor, "_publish_unit", publish):
        yield


@mutant
def gathers_bring_the_first_steps_parameters() -> Iterator[None]:
    first: dict[Any, Any] = {}

    def gather(self: Executor, step: Any) -> None:
        unit = self.units[step.segment or ""]
        executor_module.set_storage(unit.params, live=True)
        shard = first.setdefault((id(self), step.segment), unit.shard.clone())
        self._start(step, self.groups[step.collectives[0].axes].all_gather(unit.params, shard))

    with patch.object(Executor, "_gather", gather):
        yield


@mutant
def bytes_are_not_counted_once() -> Iterator[None]:
    """Right results, but one more all-reduce than the program declares."""

    def make(original: Any) -> Any:
        def count(self: Executor, step: Any) -> None:
            self.groups[step.collectives[0].axes].all_reduce(torch.zeros(())).wait()
            original(self, step)

        return count

    with _replaced(Executor, "_count", make):
        yield


def run_mutant(rank: int, mutant: str, **kwargs: Any) -> dict[str, Any]:
    """`run_rank` with the runtime broken in one way."""
    with MUTANTS[mutant]():
        return run_rank(rank, **kwargs)


assert head.head_loss_backward is executor_module.head_loss_backward  # what is patched there is what the runtime calls
