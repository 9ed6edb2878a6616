"""Collectives on a mesh group, started now and joined later, with every byte that leaves this rank counted.

gloo: shards travel straight to their owners and back (an exchange), which moves the same bytes as gloo's own reduce-scatter
and all-gather in a fraction of their time; its all-reduce is as good as an exchange and is used as it is. NCCL: its native
collectives. A collective of several phases is a generator that yields what must complete before its next phase may start.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fourfold.layout import Layout
from fourfold.model.work import sent_bytes

Phases = Iterator[Sequence[Any]]
_TRANSFER_TAGS = 1 << 30


class Handle:
    """A started collective of one or more phases. `advance` joins all but its last phase; `wait` joins all phases."""

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


@dataclass
class Link:
    """A process group of these ranks; `sequence` numbers the exchanges on it, whatever axes they are along."""

    process_group: Any
    down: Any
    up: Any
    sequence: int = 0


Links = dict[tuple[int, ...], Link]


class AxisGroup:
    """The ranks along some axes, seen from one of them."""

    def __init__(self, axes: str, ranks: Sequence[int], rank: int, link: Link, native: bool) -> None:
        self.axes = axes
        self.ranks = tuple(ranks)
        self.index = self.ranks.index(rank)
        self.size = len(ranks)
        self.sent_bytes = 0
        self._link = link
        self._native = native
        self._transfers: Counter[tuple[int, bool]] = Counter()

    def all_gather(self, full: Tensor, shard: Tensor) -> Handle:
        """Fills `full` [size * n] with every rank's `shard` [n]; `shard` may be this rank's part of `full`."""
        return Handle(self._all_gather(full, shard))

    def reduce_scatter(self, full: Tensor, staging: Tensor | None, into: Tensor, first: bool) -> Handle:
        """Sums this rank's part of `full` [size * n] over the group into `into` [n]: assigned when `first`, else added.
        `into` may be that part of `full` itself (then it is the sum)."""
        return Handle(self.reduce_scatter_phases(full, staging, into, first))

    def all_reduce(self, full: Tensor) -> Handle:
        """Sums `full` over the group in place."""
        return Handle(self.all_reduce_phases(full))

    def send(self, tensor: Tensor, peer: int) -> Handle:
        """Sends to the rank at index `peer`."""
        return Handle(self._transfer(tensor, peer, sends=True))

    def receive(self, tensor: Tensor, peer: int) -> Handle:
        """Receives from the rank at index `peer`. Between two ranks, transfers pair up in the order in which each starts them."""
        return Handle(self._transfer(tensor, peer, sends=False))

    def sum_scatter(self, full: Tensor, into: Tensor) -> Handle:
        """`into` = this rank's part of the sum of every rank's `full`; `full` may be overwritten."""
        staging = None
        if not self._native:
            staging = torch.empty(into.numel() * (self.size - 1), dtype=into.dtype, device=into.device)
        return Handle(self.reduce_scatter_phases(full, staging, into.view(-1), first=True))

    def all_to_all(
        self,
        received: Tensor,
        sent: Tensor,
        received_rows: Sequence[int] | None = None,
        sent_rows: Sequence[int] | None = None,
    ) -> Handle:
        """Part i of `sent` goes to rank i, part i of `received` comes from it; parts by rows of dim 0, or equal."""
        return Handle(self._all_to_all(received, sent, received_rows, sent_rows))

    def shift(self, received: Sequence[Tensor], sent: Sequence[Tensor]) -> Handle:
        """Sends `sent` to the next rank of the group and receives `received` from the one before."""
        return Handle(self._shift(received, sent))

    def _count(self, kind: str, full: Tensor) -> None:
        self.sent_bytes += sent_bytes(kind, full.numel() * full.element_size(), self.size)

    def _exchange(self, outgoing: Sequence[Tensor], incoming: Sequence[Tensor]) -> list[Any]:
        """Sends outgoing[i] to the i-th other rank and receives incoming[i] from it."""
        self._link.sequence += 1
        others = [rank for rank in self.ranks if rank != self.ranks[self.index]]
        works = []
        for other, buffer in zip(others, incoming, strict=True):
            works.append(dist.irecv(buffer, other, group=self._link.process_group, tag=self._link.sequence))
        for other, buffer in zip(others, outgoing, strict=True):
            self.sent_bytes += buffer.numel() * buffer.element_size()
            works.append(dist.isend(buffer, other, group=self._link.process_group, tag=self._link.sequence))
        return works

    def _parts(self, full: Tensor) -> tuple[Tensor, list[Tensor]]:
        """This rank's part and the others', in group order."""
        parts = list(full.view(self.size, -1).unbind(0))
        return parts.pop(self.index), parts

    def _all_gather(self, full: Tensor, shard: Tensor) -> Phases:
        own, others = self._parts(full)
        if self._native:
            self._count("all_gather", full)
            yield [_all_gather_single(full, shard, self._link.process_group)]
        else:
            flat = shard.view(-1)
            works = self._exchange([flat] * (self.size - 1), others)
            if own.data_ptr() != shard.data_ptr():
                own.copy_(flat)
            yield works

    def reduce_scatter_phases(self, full: Tensor, staging: Tensor | None, into: Tensor, first: bool) -> Phases:
        """`reduce_scatter`, as a part of a collective of several phases."""
        own, others = self._parts(full)
        in_place = own.data_ptr() == into.data_ptr()
        if self._native:
            self._count("reduce_scatter", full)
            target = into if in_place or first else staging
            yield [_reduce_scatter_single(target, full, self._link.process_group)]
            if target is not None and target is not into:
                into.add_(target)
            return
        assert staging is not None
        received = list(staging[: own.numel() * (self.size - 1)].view(self.size - 1, -1).unbind(0))
        yield self._exchange(others, received)
        if not in_place:
            received.insert(0, own)
            if first:
                torch.add(received.pop(0), received.pop(0), out=into)
        for part in received:
            into.add_(part)

    def all_reduce_phases(self, full: Tensor) -> Phases:
        """`all_reduce`, as a part of a collective of several phases."""
        self._count("all_reduce", full)
        yield [dist.all_reduce(full, group=self._link.process_group, async_op=True)]

    def _all_to_all(
        self, received: Tensor, sent: Tensor, received_rows: Sequence[int] | None, sent_rows: Sequence[int] | None
    ) -> Phases:
        """Counts the bytes sent to other ranks, as if the rank's own part were an even share."""
        self._count("all_to_all", sent)
        rows_in = list(received_rows) if received_rows is not None else None
        rows_out = list(sent_rows) if sent_rows is not None else None
        yield [dist.all_to_all_single(received, sent, rows_in, rows_out, group=self._link.process_group, async_op=True)]

    def _transfer(self, tensor: Tensor, peer: int, sends: bool) -> Phases:
        """Each direction has its own process group, because NCCL runs the transfers of one group between two ranks in order."""
        self._transfers[peer, sends] += 1
        tag = _TRANSFER_TAGS + self._transfers[peer, sends]
        upwards = (peer > self.index) == sends
        group, function = self._link.up if upwards else self._link.down, dist.isend if sends else dist.irecv
        if sends:
            self.sent_bytes += tensor.numel() * tensor.element_size()
        yield [function(tensor, self.ranks[peer], group=group, tag=tag)]

    def _shift(self, received: Sequence[Tensor], sent: Sequence[Tensor]) -> Phases:
        following, before = self.ranks[(self.index + 1) % self.size], self.ranks[self.index - 1]
        self.sent_bytes += sum(tensor.numel() * tensor.element_size() for tensor in sent)
        if self._native:
            operations = [dist.P2POp(dist.isend, tensor, following, self._link.process_group) for tensor in sent]
            operations += [dist.P2POp(dist.irecv, tensor, before, self._link.process_group) for tensor in received]
            yield dist.batch_isend_irecv(operations)
            return
        self._link.sequence += 1
        base = self._link.sequence << 8
        works = [
            dist.irecv(tensor, before, group=self._link.process_group, tag=base + i)
            for i, tensor in enumerate(received)
        ]
        works += [
            dist.isend(tensor, following, group=self._link.process_group, tag=base + i) for i, tensor in enumerate(sent)
        ]
        yield works


def _all_gather_single(full: Tensor, shard: Tensor, group: Any) -> Any:
    function = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    return function(full, shard, group=group, async_op=True)


def _reduce_scatter_single(shard: Tensor | None, full: Tensor, group: Any) -> Any:
    function = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    return function(shard, full, group=group, async_op=True)


def make_groups(
    layout: Layout, rank: int, axes_names: Iterable[str], timeout_seconds: float, links: Links | None = None
) -> dict[str, AxisGroup]:
    """Binds every group of axes that a program names to a process group; axes with the same ranks share one. All ranks call it
    with the same names. A rank that is in no group of some name (`tied`) makes one of itself alone, because torch names a group by
    its ranks and by the number of groups before it. `links`: process groups that exist already."""
    native = dist.get_backend() == "nccl"
    timeout = timedelta(seconds=timeout_seconds)
    links = links if links is not None else {}
    result = {}
    for name in sorted(axes_names):
        axes = tuple(name.split("+"))
        ranks = layout.group_of(rank, axes)
        if ranks not in links:
            members = ranks if rank in ranks else (rank,)
            links[ranks] = _link(members, timeout, directed=native and name == "pp")
        if rank in ranks:
            result[name] = AxisGroup(name, ranks, rank, links[ranks], native)
    return result


def _link(ranks: Sequence[int], timeout: timedelta, directed: bool) -> Link:
    def new() -> Any:
        return dist.new_group(list(ranks), timeout=timeout, use_local_synchronization=True)

    group = dist.group.WORLD if len(ranks) == dist.get_world_size() else new()
    return Link(group, new(), new()) if directed else Link(group, group, group)
