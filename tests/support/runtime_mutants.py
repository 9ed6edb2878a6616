"""Ways to break the runtime on purpose: each a context in which one handler or one collective does something wrong."""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch

from fourfold.runtime.collectives import Group, Handle
from fourfold.runtime.compute import Compute
from fourfold.runtime.executor import Executor
from fourfold.runtime.optimizer import ShardOptimizer
from fourfold.runtime.units import set_storage
from tests.support.parity_runs import RankData

MUTANTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {}


def mutant(function: Callable[[], Iterator[None]]) -> Callable[[], AbstractContextManager[None]]:
    context = contextmanager(function)
    MUTANTS[function.__name__] = context
    return context


def replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> Any:
    """The attribute replaced by `make(original)`."""
    return patch.object(owner, name, make(getattr(owner, name)))


@contextmanager
def everywhere(name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """A function of fourfold replaced by `make(original)` wherever it was imported."""
    modules = [
        module
        for path, module in sys.modules.items()
        if path.startswith("fourfold.") and hasattr(module, name) and hasattr(module, "Tensor")  # not what declares it
    ]
    (original,) = {vars(module)[name] for module in modules}
    with ExitStack() as stack:
        for module in modules:
            stack.enter_context(patch.object(module, name, make(original)))
        yield


def reductions_without(lost: Callable[[Any, str], bool]) -> Any:
    """Reductions of gradients without the collectives over axes for which `lost(flat layout, axes)`."""

    def make(original: Any) -> Any:
        def reduction(self: Executor, step: Any, unit: Any, landing: Any, first: bool) -> Any:
            flat = unit.flat
            sums = tuple(part for part in flat.sums if not lost(flat, part[0]))
            kept = tuple(c for c in step.collectives[len(flat.sums) :] if not lost(flat, c.axes))
            collectives = (*step.collectives[: len(sums)], *kept)
            unit = replace(unit, flat=replace(flat, sums=sums))
            yield from [()] * (len(step.collectives) - len(collectives))
            yield from original(self, step._replace(collectives=collectives), unit, landing, first)

        return reduction

    return replaced(Executor, "_reduction", make)


# Sums that are none


@mutant
def others_gradients_are_not_added() -> Iterator[None]:
    def make(original: Any) -> Any:
        def scatter(self: Group, whole: Any, landing: Any, into: Any, first: bool) -> Any:
            yield from original(self, whole, landing, torch.empty_like(into), first=True)
            own, _ = self._parts(whole)
            into.copy_(own) if first else into.add_(0 if own.data_ptr() == into.data_ptr() else own)

        return scatter

    with replaced(Group, "reduce_scatter_phases", make):
        yield


@mutant
def gradients_are_averaged_over_ranks() -> Iterator[None]:
    def make(original: Any) -> Any:
        def scatter(self: Group, whole: Any, landing: Any, into: Any, first: bool) -> Any:
            whole.div_(self.size)
            yield from original(self, whole, landing, into, first)

        return scatter

    with replaced(Group, "reduce_scatter_phases", make):
        yield


@mutant
def shards_go_to_the_wrong_owner() -> Iterator[None]:
    def make(original: Any) -> Any:
        def exchange(self: Group, outgoing: Any, incoming: Any) -> Any:
            return original(self, list(outgoing)[::-1], incoming)

        return exchange

    with replaced(Group, "_exchange", make):
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
    with reductions_without(lambda flat, axes: axes == "dp_replicate"):
        yield


@mutant
def whole_gradients_are_averaged() -> Iterator[None]:
    def make(original: Any) -> Any:
        def reduce(self: Group, whole: Any) -> Any:
            if whole.is_floating_point() and whole.dim():
                whole.div_(self.size)
            yield from original(self, whole)

        return reduce

    with replaced(Group, "all_reduce_phases", make):
        yield


@mutant
def each_microbatch_overwrites_the_shard() -> Iterator[None]:
    def make(original: Any) -> Any:
        def scatter(self: Group, whole: Any, landing: Any, into: Any, first: bool) -> Any:
            return original(self, whole, landing, into, first=True)

        return scatter

    with replaced(Group, "reduce_scatter_phases", make):
        yield


# Gradients


@mutant
def each_microbatch_starts_from_zero() -> Iterator[None]:
    def make(original: Any) -> Any:
        def allocate(self: Compute, step: Any) -> None:
            original(self, step)
            for name in step.writes:
                if name.startswith("grad/") and step.segment == name.removeprefix("grad/"):
                    self._units[name.removeprefix("grad/")].grad.zero_()

        return allocate

    with replaced(Compute, "_allocate_gradients", make):
        yield


@mutant
def the_heads_share_of_a_tied_table_is_lost() -> Iterator[None]:
    def make(original: Any) -> Any:
        def backward(x: Any, targets: Any, weights: Any, *rest: Any, **more: Any) -> Any:
            table = weights.unembedding
            lost = type(table)(table.data, torch.zeros_like(table.grad))
            return original(x, targets, replace(weights, unembedding=lost), *rest, **more)

        return backward

    with everywhere("head_loss_backward", make):
        yield


@mutant
def recompute_reads_another_microbatch() -> Iterator[None]:
    def make(original: Any) -> Any:
        def recompute(self: Compute, step: Any) -> None:
            name = f"hidden/{step.segment}/m{step.microbatch}"
            kept = self._live[name]
            self._live[name] = kept.roll(1, dims=1)
            original(self, step)
            self._live[name] = kept

        return recompute

    with replaced(Compute, "recompute", make):
        yield


@mutant
def documents_attend_to_each_other() -> Iterator[None]:
    def make(original: Any) -> Any:
        return lambda q, k, v, lengths: original(q, k, v, None)

    with everywhere("causal_attention", make):
        yield


@mutant
def every_position_counts_as_a_target() -> Iterator[None]:
    def make(original: Any) -> Any:
        def backward(x: Any, targets: Any, *rest: Any, **more: Any) -> Any:
            return original(x, targets.clamp(min=0), *rest, **more)

        return backward

    with everywhere("head_loss_backward", make):
        yield


# The loss


@mutant
def the_divisor_is_each_ranks_own() -> Iterator[None]:
    def count(self: Executor, step: Any) -> None:
        self._start(step, self.groups[step.collectives[0].axes].all_reduce(self._compute.num_targets.clone()))

    with patch.object(Executor, "_count", count):
        yield


@mutant
def the_divisor_is_each_microbatchs_own() -> Iterator[None]:
    def make(original: Any) -> Any:
        def backward(x: Any, targets: Any, weights: Any, model: Any, count: Any, *rest: Any, **more: Any) -> Any:
            return original(x, targets, weights, model, (targets != -100).sum().clamp(min=1), *rest, **more)

        return backward

    with everywhere("head_loss_backward", make):
        yield


@mutant
def the_loss_is_each_ranks_own() -> Iterator[None]:
    def sum_loss(self: Executor, step: Any) -> None:
        self._start(step, self.groups[step.collectives[0].axes].all_reduce(self._compute.loss.clone()))

    with patch.object(Executor, "_sum_loss", sum_loss):
        yield


@mutant
def all_ranks_read_the_same_rows() -> Iterator[None]:
    def make(original: Any) -> Any:
        def init(self: Any, batch: Any, facts: Any, rank: int) -> None:
            original(self, batch, facts, 0)

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
            self._scale = min(1.0, self._optimizer.clip_norm / (own + 1e-6))

        return clip

    with replaced(Executor, "_clip_norm", make):
        yield


@mutant
def nothing_is_clipped() -> Iterator[None]:
    def make(original: Any) -> Any:
        def clip(self: Executor, step: Any) -> None:
            original(self, step)
            self._scale = 1.0

        return clip

    with replaced(Executor, "_clip_norm", make):
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
    def make(original: Any) -> Any:
        def init(self: ShardOptimizer, section: Any, master: Any, decayed: int) -> None:
            original(self, section, master, master.numel())

        return init

    with replaced(ShardOptimizer, "__init__", make):
        yield


@mutant
def nothing_is_decayed() -> Iterator[None]:
    def make(original: Any) -> Any:
        def init(self: ShardOptimizer, section: Any, master: Any, decayed: int) -> None:
            original(self, section, master, 0)

        return init

    with replaced(ShardOptimizer, "__init__", make):
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
        set_storage(unit.params, live=True)
        shard = first.setdefault((id(self), step.segment), unit.shard.clone())
        self._start(step, self.groups[step.collectives[0].axes].all_gather(unit.params, shard))

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
