"""Code that a device would reject, or wait for, fails its rehearsal, and passes when it is whole (`test_layouts`)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch

from fourfold.program import buffers
from fourfold.program.offload.steps import OffloadOp
from fourfold.rehearse.journal import RehearsalFault
from fourfold.rehearse.rank import RankRehearsal
from fourfold.rehearse.run import rehearse
from fourfold.runtime import numbers, optimizer, routers
from fourfold.runtime.collectives import AxisGroup, Handle
from fourfold.runtime.executor import Executor
from fourfold.runtime.norm import GradientNorm
from fourfold.runtime.offload.copies import HostCopier
from fourfold.runtime.offload.host_link import HostLink
from fourfold.runtime.optimizer import ShardOptimizer
from fourfold.runtime.routers import Routers
from fourfold.runtime.units import set_storage
from fourfold.train import feed
from tests.rehearse.rehearsed import layout_spec


def _run(name: str) -> list[RankRehearsal]:
    return rehearse(*layout_spec(name))


@contextmanager
def _replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    with patch.object(owner, name, make(getattr(owner, name))):
        yield


def _norm_of_nothing(original: Any) -> Any:
    def sum_of_squares(self: GradientNorm) -> torch.Tensor:
        return original(self) if self._parts else torch.zeros((), dtype=torch.float64)

    return sum_of_squares


def _unjoined(original: Any) -> Any:
    return lambda self: None


def _strided(original: Any) -> Any:
    return lambda self, full, shard: original(self, full, torch.stack([shard, shard], -1)[..., 0])


def _wrong_format(original: Any) -> Any:
    return lambda self, full, shard: original(self, full, shard.double())


def _too_small(original: Any) -> Any:
    return lambda self, full, shard: original(self, full, shard[:-1])


def _freed_at_once(original: Any) -> Any:
    def reduce(self: Executor, step: Any) -> None:
        original(self, step)
        set_storage(self.units[step.segment].grad, live=False)

    return reduce


def _dropped_at_once(original: Any) -> Any:
    """Activations that a copy to the host reads are dropped once it is started."""

    def start(self: HostCopier, step: Any) -> Any:
        pending = original(self, step)
        if step.op is OffloadOp.OFFLOAD and step.microbatch is not None:
            del self._live[buffers.saved(step.segment, step.microbatch)]
        return pending

    return start


def _allocated_beside(original: Any) -> Any:
    """Activations return to memory that the copying stream allocates, and that nobody keeps until it has seen the last reader."""

    def fetch(self: HostLink, pairs: Any) -> Any:
        def copy() -> None:
            for target, source in pairs:
                fresh = torch.empty_like(target)
                fresh.copy_(source, non_blocking=True)
                target.set_(fresh)

        pairs = [(target, source) for target, source in pairs]
        return self._from_host(copy)

    return fetch


def _scratch_on_the_side(original: Any) -> Any:
    """A reduction on the side stream reads a copy made by the computing one, and lets it go."""

    def reduce(self: Executor, step: Any) -> None:
        scratch = self.units[step.segment].grad.clone()
        assert self._side is not None
        with self._side():
            scratch.sum()
        del scratch
        original(self, step)

    return reduce


def _host_table(original: Any) -> Any:
    def load(self: Any, microbatch: int) -> Any:
        batch = original(self, microbatch)
        on_host = {rope: tuple(torch.zeros(t.shape, dtype=t.dtype) for t in both) for rope, both in batch.rope.items()}
        return replace(batch, rope=on_host)

    return load


def _other_order(original: Any) -> Any:
    """The last pipeline rank sums the loss before the norm's groups, the others after."""

    def clip(self: Executor, step: Any) -> None:
        if self.view.pp_rank:
            self.groups["pp"].all_reduce(torch.zeros(3, device=self.device)).wait()
        original(self, step)
        if not self.view.pp_rank:
            self.groups["pp"].all_reduce(torch.zeros(3, device=self.device)).wait()

    return clip


def _other_size(original: Any) -> Any:
    def gather(self: Executor, step: Any) -> None:
        original(self, step)
        size = 2 if self.groups["dp_shard"].index else 1
        self.groups["dp_shard"].all_reduce(torch.zeros(size, device=self.device)).wait()

    return gather


def _unjoined_in_evaluation(original: Any) -> Any:
    def sum_loss(self: Executor, step: Any) -> None:
        original(self, step)
        if not any(unit.grad.untyped_storage().size() for unit in self.units.values()):
            self.handles[step.short].wait = lambda: None  # type: ignore[method-assign]

    return sum_loss


def _half_sent(original: Any) -> Any:
    return lambda self, tensor, peer: original(self, tensor[: len(tensor) // 2], peer)


FAULTS = [
    (
        "a norm on the CPU",
        "experts, first blocks dense",
        GradientNorm,
        "sum_of_squares",
        _norm_of_nothing,
        "on the CPU",
    ),
    ("nothing is joined", "zero 3", Handle, "wait", _unjoined, "has not joined"),
    ("strides", "zero 3", AxisGroup, "_all_gather", _strided, "not contiguous"),
    ("formats", "zero 3", AxisGroup, "_all_gather", _wrong_format, "another is"),
    ("sizes", "zero 3", AxisGroup, "_all_gather", _too_small, "parts of"),
    ("a gradient freed in flight", "zero 2", Executor, "_reduce", _freed_at_once, "freed"),
    (
        "activations dropped in flight",
        "offloaded",
        HostCopier,
        "start",
        _dropped_at_once,
        "is dropped before stream compute",
    ),
    (
        "memory of another stream",
        "offloaded",
        HostLink,
        "fetch",
        _allocated_beside,
        "is dropped before stream from host",
    ),
    (
        "a copy for the side stream",
        "hsdp, zero 2",
        Executor,
        "_reduce",
        _scratch_on_the_side,
        "on stream side is dropped",
    ),
    ("a table on the CPU", "one rank", feed.RowFeed, "load", _host_table, "on the CPU beside one on the device"),
    ("an order of groups", "pipeline", Executor, "_clip_norm", _other_order, "differ at call"),
    ("a size that differs", "zero 3", Executor, "_gather", _other_size, "differ at call"),
    ("an evaluation", "zero 2", Executor, "_sum_loss", _unjoined_in_evaluation, "not joined"),
    ("half a transfer", "pipeline", AxisGroup, "send", _half_sent, "transfers"),
]


@pytest.mark.parametrize(
    ("what", "layout", "owner", "attribute", "make", "message"), FAULTS, ids=[fault[0] for fault in FAULTS]
)
def test_a_fault_is_found(what: str, layout: str, owner: Any, attribute: str, make: Any, message: str) -> None:
    with _replaced(owner, attribute, make), pytest.raises(RehearsalFault, match=message):
        _run(layout)


def _pageable(original: Any) -> Any:
    return lambda tensor, device: tensor.to(device)


def _number_from_host(original: Any) -> Any:
    def update(self: ShardOptimizer, gradient: Any, lr: float, step: int, scale: Any) -> None:
        number = torch.tensor(step + 1.0, device=gradient.device)
        original(self, gradient, lr, step, replace(scale, step=number))

    return update


def _read_norm(original: Any) -> Any:
    def clip(self: Executor, step: Any) -> None:
        original(self, step)
        self._total.sqrt().item()

    return clip


def _read_imbalance(original: Any) -> Any:
    def balance(self: Routers, groups: Any) -> None:
        original(self, groups)
        float(self.imbalance)  # type: ignore[arg-type]

    return balance


def _by_mask(original: Any) -> Any:
    def update(self: ShardOptimizer, gradient: Any, lr: float, step: int, scale: Any) -> None:
        gradient[gradient.isnan()] = 0.0
        original(self, gradient, lr, step, scale)

    return update


WAITS = [
    ("batches from pageable memory", "one rank", feed, "to_device", _pageable, "L m0"),
    ("counts from pageable memory", "one rank", numbers, "to_device", _pageable, None),
    ("the update's number", "one rank", optimizer.ShardOptimizer, "update", _number_from_host, "U b0"),
    ("the norm", "one rank", Executor, "_clip_norm", _read_norm, "C"),
    ("a router's balance", "experts", routers.Routers, "balance", _read_imbalance, "E"),
    ("a mask", "one rank", optimizer.ShardOptimizer, "update", _by_mask, "U b0"),
]


@pytest.mark.parametrize(
    ("what", "layout", "owner", "attribute", "make", "where"), WAITS, ids=[wait[0] for wait in WAITS]
)
def test_a_wait_is_counted(what: str, layout: str, owner: Any, attribute: str, make: Any, where: str | None) -> None:
    with _replaced(owner, attribute, make):
        waits = [wait for result in _run(layout) for wait in result.waits]
    found = [wait for wait in waits if wait.instruction != "end" and "dispatch.py" not in wait.line]
    assert found
    assert where is None or where in {wait.instruction for wait in found}


def test_a_phase_joined_by_the_computing_stream_is_counted() -> None:
    def without_side(original: Any) -> Any:
        def init(self: Executor, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            self._side = None

        return init

    with _replaced(Executor, "__init__", without_side):
        joins = [short for result in _run("hsdp, zero 2") for short in result.joins]
    assert [short for short in joins if short.startswith("R ")]
