"""Collectives on a mesh group, started now and joined later, with every byte that leaves this rank counted.

gloo: shards travel straight to their owners and back (an exchange), which moves the same bytes as gloo's own reduce-scatter
and all-gather in a fraction of their time; its all-reduce is as good as an exchange and is used as it is. NCCL: its native
collectives. A collective of several phases is a generator that yields what must complete before its next phase may start.
"""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fourfold.layout import Layout
from fourfold.program.instruction import sent_bytes

Phases = Iterator[Sequence[Any]]


class Handle:
    """A started collective of one or more phases. `advance` joins all but its last phase; `wait` joins all of it."""

    def __init__(self, phases: Phases, num_phases: int = 1) -> None:
        self._phases_left = num_phases
        self._phases = phases
        self._works: Sequence[Any] | None = next(phases, None)

    def advance(self) -> None:
        """Joins the current phase and starts the next, unless the current one is the last."""
        if self._phases_left > 1:
            self._join_phase()

    def wait(self) -> None:
        while self._works is not None:
            self._join_phase()

    def _join_phase(self) -> None:
        assert self._works is not None
        for work in self._works:
            work.wait()
        self._works = next(self._phases, None)
        self._phases_left -= 1


class Group:
    """The ranks along some axes, seen from one of them."""

    def __init__(self, axes: str, ranks: Sequence[int], rank: int, process_group: Any, native: bool) -> None:
        self.axes = axes
        self.ranks = tuple(ranks)
        self.index = self.ranks.index(rank)
        self.size = len(ranks)
        self.sent_bytes = 0
        self._process_group = process_group
        self._native = native
        self._sequence = 0

    def all_gather(self, whole: Tensor, shard: Tensor) -> Handle:
        """Fills `whole` [size * n] with every rank's `shard` [n]; `shard` may be this rank's part of `whole`."""
        return Handle(self._all_gather(whole, shard))

    def reduce_scatter(self, whole: Tensor, landing: Tensor | None, into: Tensor, first: bool) -> Handle:
        """Sums this rank's part of `whole` [size * n] over the group into `into` [n]: assigned when `first`, else added.
        `into` may be that part of `whole` itself (then it is the sum)."""
        return Handle(self._reduce_scatter(whole, landing, into, first))

    def all_reduce(self, whole: Tensor) -> Handle:
        """Sums `whole` over the group in place."""
        return Handle(self._all_reduce(whole))

    def reduce_scatter_then(
        self, whole: Tensor, landing: Tensor | None, into: Tensor, first: bool, outer: "Group"
    ) -> Handle:
        """HSDP: reduce-scatter in this group, then all-reduce of the shard over `outer`."""

        def phases() -> Phases:
            yield from self._reduce_scatter(whole, landing, into, first)
            yield from outer._all_reduce(into)

        return Handle(phases(), num_phases=2)

    def _count(self, kind: str, whole: Tensor) -> None:
        self.sent_bytes += sent_bytes(kind, whole.numel() * whole.element_size(), self.size)

    def _exchange(self, outgoing: Sequence[Tensor], incoming: Sequence[Tensor]) -> list[Any]:
        """Sends outgoing[i] to the i-th other rank and receives incoming[i] from it."""
        self._sequence += 1
        others = [rank for rank in self.ranks if rank != self.ranks[self.index]]
        works = []
        for other, buffer in zip(others, incoming, strict=True):
            works.append(dist.irecv(buffer, other, group=self._process_group, tag=self._sequence))
        for other, buffer in zip(others, outgoing, strict=True):
            self.sent_bytes += buffer.numel() * buffer.element_size()
            works.append(dist.isend(buffer, other, group=self._process_group, tag=self._sequence))
        return works

    def _parts(self, whole: Tensor) -> tuple[Tensor, list[Tensor]]:
        """This rank's part and the others', in group order."""
        parts = list(whole.view(self.size, -1).unbind(0))
        return parts.pop(self.index), parts

    def _all_gather(self, whole: Tensor, shard: Tensor) -> Phases:
        own, others = self._parts(whole)
        if self._native:
            self._count("all_gather", whole)
            yield [_all_gather_single(whole, shard, self._process_group)]
        else:
            works = self._exchange([shard] * (self.size - 1), others)
            if own.data_ptr() != shard.data_ptr():
                own.copy_(shard)
            yield works

    def _reduce_scatter(self, whole: Tensor, landing: Tensor | None, into: Tensor, first: bool) -> Phases:
        own, others = self._parts(whole)
        in_place = own.data_ptr() == into.data_ptr()
        if self._native:
            self._count("reduce_scatter", whole)
            target = into if in_place else landing
            yield [_reduce_scatter_single(target, whole, self._process_group)]
            received = [] if in_place or target is None else [target]
        else:
            assert landing is not None
            received = list(landing[: own.numel() * (self.size - 1)].view(self.size - 1, -1).unbind(0))
            yield self._exchange(others, received)
            if not in_place:
                received.insert(0, own)
        if first and not in_place and len(received) > 1:
            torch.add(received[0], received[1], out=into)
            received = received[2:]
        elif first and not in_place:
            into.zero_()
        for part in received:
            into.add_(part)

    def _all_reduce(self, whole: Tensor) -> Phases:
        self._count("all_reduce", whole)
        yield [dist.all_reduce(whole, group=self._process_group, async_op=True)]


def _all_gather_single(whole: Tensor, shard: Tensor, group: Any) -> Any:
    function = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    return function(whole, shard, group=group, async_op=True)


def _reduce_scatter_single(shard: Tensor | None, whole: Tensor, group: Any) -> Any:
    function = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    return function(shard, whole, group=group, async_op=True)


def make_groups(layout: Layout, rank: int, axes_names: Sequence[str], timeout_seconds: float) -> dict[str, Group]:
    """Binds every group of axes that a program names to a process group. All ranks call it with the same names."""
    native = dist.get_backend() == "nccl"
    result = {}
    for name in axes_names:
        ranks = layout.group_of(rank, tuple(name.split("+")))
        if len(ranks) == dist.get_world_size():
            process_group = dist.group.WORLD
        else:
            process_group = dist.new_group(
                list(ranks), timeout=timedelta(seconds=timeout_seconds), use_local_synchronization=True
            )
        result[name] = Group(name, ranks, rank, process_group, native)
    return result
