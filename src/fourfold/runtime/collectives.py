"""Collectives on a mesh group, started now and joined later, with every byte that leaves this rank counted.

gloo: shards travel straight to their owners and back (an exchange), which moves the same bytes as gloo's own reduce-scatter
and all-gather in a fraction of their time; its all-reduce is as good as an exchange and is used as it is. NCCL: its native
collectives. A collective of several phases is a generator that yields what must complete before its next phase may start.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from fourfold.layout import Layout
from fourfold.model.parallel import Pending
from fourfold.model.work import sent_bytes
from fourfold.runtime.links import TRANSFERS, Link, LinkMaker, Links, TorchLinks, WaitFor

Phases = Iterator[Sequence[Pending]]


class Handle:
    """A started collective of one or more phases. `advance` joins all but its last phase; `wait` joins all phases."""

    def __init__(self, phases: Phases, num_phases: int = 1) -> None:
        self._phases_left = num_phases
        self._phases = phases
        self._works: Sequence[Pending] | None = next(phases, None)

    def advance(self) -> bool:
        """Joins the current phase and starts the next, unless the current one is the last: then it returns False."""
        if self._phases_left > 1:
            self._join_phase()
            return True
        return False

    def wait(self) -> None:
        while self._works is not None:
            self._join_phase()

    def _join_phase(self) -> None:
        assert self._works is not None
        for work in self._works:
            work.wait()
        self._works = next(self._phases, None)
        self._phases_left -= 1


class AxisGroup:
    """The ranks along some axes, seen from one of them."""

    def __init__(self, axes: str, ranks: Sequence[int], rank: int, link: Link) -> None:
        self.axes = axes
        self.ranks = tuple(ranks)
        self.index = self.ranks.index(rank)
        self.size = len(ranks)
        self.sent_bytes = 0
        self.surplus_bytes = 0
        """How many of `sent_bytes` are beyond those of all-to-alls of equal parts, which programs declare: negative where a rank
        keeps more than an even share of its rows."""
        self.link = link
        self._native = link.native
        self._transfers: Counter[tuple[int, bool]] = Counter()

    def all_gather(self, full: Tensor, shard: Tensor) -> Handle:
        """Fills `full` [size * n] with every rank's `shard` [n]; `shard` may be this rank's part of `full`."""
        return Handle(self._all_gather(full, shard))

    def reduce_scatter(self, full: Tensor, staging: Tensor | None, into: Tensor, first: bool) -> Handle:
        """Sums this rank's part of `full` [size * n] over the group into `into` [n]: assigned when `first`, else added.
        `into` may be that part of `full` itself (then it is the sum)."""
        return Handle(self.reduce_scatter_phases(full, staging, into, first))

    def all_reduce(self, full: Tensor, largest: bool = False) -> Handle:
        """Sums `full` over the group in place, or takes the largest."""
        return Handle(self.all_reduce_phases(full, largest))

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
        return Handle(self.all_to_all_phases(received, sent, received_rows, sent_rows))

    def shift(self, received: Sequence[Tensor], sent: Sequence[Tensor], back: bool = False) -> Handle:
        """Sends `sent` to the next rank of the group and receives `received` from the one before; `back`: the other way."""
        return Handle(self._shift(received, sent, back))

    def _count(self, kind: str, full: Tensor) -> None:
        self.sent_bytes += sent_bytes(kind, full.numel() * full.element_size(), self.size)

    def _exchange(self, outgoing: Sequence[Tensor], incoming: Sequence[Tensor]) -> Sequence[Pending]:
        """Sends outgoing[i] to the i-th other rank and receives incoming[i] from it."""
        others = [rank for rank in self.ranks if rank != self.ranks[self.index]]
        self.sent_bytes += sum(buffer.numel() * buffer.element_size() for buffer in outgoing)
        sent, received = zip(outgoing, others, strict=True), zip(incoming, others, strict=True)
        return self.link.exchange(list(sent), list(received))

    def _parts(self, full: Tensor) -> tuple[Tensor, list[Tensor]]:
        """This rank's part and the others', in group order."""
        parts = list(full.view(self.size, -1).unbind(0))
        return parts.pop(self.index), parts

    def _all_gather(self, full: Tensor, shard: Tensor) -> Phases:
        if self._native:
            self._count("all_gather", full)
            yield [self.link.all_gather(full, shard)]
        else:
            own, others = self._parts(full)
            flat = shard.view(-1)
            works = self._exchange([flat] * (self.size - 1), others)
            if own.data_ptr() != shard.data_ptr():
                own.copy_(flat)
            yield works

    def reduce_scatter_phases(self, full: Tensor, staging: Tensor | None, into: Tensor, first: bool) -> Phases:
        """`reduce_scatter`, as a part of a collective of several phases."""
        in_place = into.data_ptr() == full.data_ptr() + self.index * into.numel() * into.element_size()
        if self._native:
            self._count("reduce_scatter", full)
            target = into if in_place or first else staging
            assert target is not None
            yield [self.link.reduce_scatter(target, full)]
            if target is not into:
                into.add_(target)
            return
        assert staging is not None
        own, others = self._parts(full)
        received = list(staging[: own.numel() * (self.size - 1)].view(self.size - 1, -1).unbind(0))
        yield self._exchange(others, received)
        if not in_place:
            received.insert(0, own)
            if first:
                torch.add(received.pop(0), received.pop(0), out=into)
        for part in received:
            into.add_(part)

    def all_reduce_phases(self, full: Tensor, largest: bool = False) -> Phases:
        """`all_reduce`, as a part of a collective of several phases."""
        self._count("all_reduce", full)
        yield [self.link.all_reduce(full, largest)]

    def all_to_all_phases(
        self,
        received: Tensor,
        sent: Tensor,
        received_rows: Sequence[int] | None = None,
        sent_rows: Sequence[int] | None = None,
    ) -> Phases:
        """`all_to_all`, as a part of a collective of several phases."""
        self._count("all_to_all", sent)
        if sent_rows is not None:
            rows = sum(sent_rows) - sent_rows[self.index]
            equal = sent_bytes("all_to_all", sent.numel() * sent.element_size(), self.size)
            surplus = rows * sent[:1].numel() * sent.element_size() - equal
            self.sent_bytes += surplus
            self.surplus_bytes += surplus
        rows_in = list(received_rows) if received_rows is not None else None
        rows_out = list(sent_rows) if sent_rows is not None else None
        yield [self.link.all_to_all(received, sent, rows_in, rows_out)]

    def _transfer(self, tensor: Tensor, peer: int, sends: bool) -> Phases:
        self._transfers[peer, sends] += 1
        number, upwards = self._transfers[peer, sends], (peer > self.index) == sends
        if sends:
            self.sent_bytes += tensor.numel() * tensor.element_size()
        start = self.link.send if sends else self.link.receive
        yield [start(tensor, self.ranks[peer], upwards, number)]

    def _shift(self, received: Sequence[Tensor], sent: Sequence[Tensor], back: bool) -> Phases:
        following, before = self.ranks[(self.index + 1) % self.size], self.ranks[self.index - 1]
        if back:
            following, before = before, following
        self.sent_bytes += sum(tensor.numel() * tensor.element_size() for tensor in sent)
        yield self.link.exchange([(x, following) for x in sent], [(x, before) for x in received])


def make_groups(
    layout: Layout,
    rank: int,
    axes_names: Iterable[str],
    timeout_seconds: float,
    links: Links | None = None,
    wait_for: WaitFor = lambda what, ranks, order, run: run(),
) -> dict[str, AxisGroup]:
    """Binds every group of axes that a program names to process groups, and the transfers of a pipeline. All ranks call it with the
    same names. `links`: those that exist already, which this call adds to. `wait_for`: as in `TorchLinks`."""
    return bind_groups(layout, rank, axes_names, TorchLinks(timeout_seconds, wait_for), {} if links is None else links)


def bind_groups(
    layout: Layout, rank: int, axes_names: Iterable[str], make: LinkMaker, links: Links
) -> dict[str, AxisGroup]:
    """`make_groups` over links of another maker. Axes with the same ranks share a link."""
    result, stages = {}, layout.group_of(rank, ("pp",))
    tagged = {"pp"} if layout.pp > 1 and not make.native else set()
    for name in sorted({*axes_names} | tagged):
        axes = tuple(name.split("+"))
        own = layout.group_of(rank, axes)
        for ranks in layout.groups(axes) if make.names_all else [own]:
            if len(ranks) > 1 and ranks not in links:
                links[ranks] = make.link(name, ranks, rank)
        link = links.get(own)
        if link is not None:
            result[name] = AxisGroup(name, own, rank, link)
    if layout.pp > 1:
        place = (*stages, TRANSFERS)
        transfers = links.get(place) or make.pipeline(layout, rank, links.get(stages))
        links[place] = transfers
        result["pp"] = AxisGroup("pp", stages, rank, transfers)
    return result
