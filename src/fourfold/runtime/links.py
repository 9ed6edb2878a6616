"""Process groups, made before the first step: what carries the collectives of some ranks, and transfers between two of them."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from fourfold.config.errors import require_group_files
from fourfold.layout import Layout
from fourfold.model.parallel import Pending


class Link(Protocol):
    """The calls by which some ranks communicate. Every method starts something and returns at once. `native`: NCCL's own
    collectives and no tags. The ranks that are named are those of the world."""

    native: bool

    def all_gather(self, full: Tensor, shard: Tensor) -> Pending: ...
    def reduce_scatter(self, shard: Tensor, full: Tensor) -> Pending: ...
    def all_reduce(self, full: Tensor, largest: bool = False) -> Pending: ...
    def all_to_all(
        self, received: Tensor, sent: Tensor, rows_in: list[int] | None, rows_out: list[int] | None
    ) -> Pending: ...

    def exchange(self, sent: Sequence[tuple[Tensor, int]], received: Sequence[tuple[Tensor, int]]) -> Sequence[Pending]:
        """Sends to and receives from several ranks at once, each rank with the same numbers of calls before."""
        ...

    def send(self, tensor: Tensor, rank: int, upwards: bool, number: int) -> Pending:
        """The transfer of that number to a rank of a higher index (`upwards`), or of a lower."""
        ...

    def receive(self, tensor: Tensor, rank: int, upwards: bool, number: int) -> Pending:
        """`upwards`: from a rank of a lower index."""
        ...


WaitFor = Callable[[str, tuple[int, ...], int, Callable[[], Any]], Any]
"""Runs something that some ranks wait for each other in: its words, the ranks, its number among all such, and what to run."""
Channels = Mapping[tuple[int, bool], Any]
"""By a neighbour's rank and the direction, the process group of that neighbour and this rank."""

_EXCHANGES, _PARTS = 1 << 22, 1 << 8
_TRANSFERS = 1 << 30
"""Tags begin again after so many exchanges, with so many tensors for one rank in each, and after so many transfers, whose tags are
above those of exchanges: gloo takes tags below 2**31, and no two calls under way are as far from each other."""


@dataclass
class TorchLink:
    """Process groups of torch.distributed. `channels`: groups of two, so that no transfer waits behind one with another rank;
    without them transfers travel on the group, by tags. `_sequence` numbers the exchanges, whatever axes they are along."""

    process_group: Any
    native: bool
    channels: Channels = field(default_factory=dict)
    _sequence: int = 0

    def all_gather(self, full: Tensor, shard: Tensor) -> Any:
        function = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        return function(full, shard, group=self.process_group, async_op=True)

    def reduce_scatter(self, shard: Tensor, full: Tensor) -> Any:
        function = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        return function(shard, full, group=self.process_group, async_op=True)

    def all_reduce(self, full: Tensor, largest: bool = False) -> Any:
        how = dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM
        return dist.all_reduce(full, how, group=self.process_group, async_op=True)

    def all_to_all(self, received: Tensor, sent: Tensor, rows_in: list[int] | None, rows_out: list[int] | None) -> Any:
        return dist.all_to_all_single(received, sent, rows_in, rows_out, group=self.process_group, async_op=True)

    def exchange(self, sent: Sequence[tuple[Tensor, int]], received: Sequence[tuple[Tensor, int]]) -> Any:
        group = self.process_group
        if self.native:
            operations = [dist.P2POp(dist.isend, tensor, rank, group) for tensor, rank in sent]
            operations += [dist.P2POp(dist.irecv, tensor, rank, group) for tensor, rank in received]
            return dist.batch_isend_irecv(operations)
        self._sequence += 1
        base = self._sequence % _EXCHANGES * _PARTS
        works = [dist.irecv(x, rank, group=group, tag=base + i) for x, rank, i in _numbered(received)]
        return works + [dist.isend(x, rank, group=group, tag=base + i) for x, rank, i in _numbered(sent)]

    def send(self, tensor: Tensor, rank: int, upwards: bool, number: int) -> Any:
        group = self.channels.get((rank, upwards), self.process_group)
        return dist.isend(tensor, rank, group=group, tag=_TRANSFERS + number % _TRANSFERS)

    def receive(self, tensor: Tensor, rank: int, upwards: bool, number: int) -> Any:
        group = self.channels.get((rank, upwards), self.process_group)
        return dist.irecv(tensor, rank, group=group, tag=_TRANSFERS + number % _TRANSFERS)


TRANSFERS = -1
"""Stands behind the ranks of a pipeline where `Links` holds what carries its transfers."""
Links = dict[tuple[int, ...], Link | None]
"""Links by their ranks; None for a group that others made."""


class LinkMaker(Protocol):
    """Makes the links of one rank. `native`: as of its links. `names_all`: whether every rank has to name all groups, those of
    others too, in one order."""

    native: bool
    names_all: bool

    def link(self, axes: str, ranks: Sequence[int], rank: int) -> Link | None:
        """The link of some ranks; None where `rank`, which asks, is none of them."""
        ...

    def pipeline(self, layout: Layout, rank: int, link: Link | None) -> Link:
        """The link of the transfers between neighbours of a pipeline. `link`: of its ranks, where their collectives have one."""
        ...


class TorchLinks:
    """Links over process groups of torch.distributed.

    A group of all ranks is the default one, which is there already. With NCCL every other communicator is made here, on this rank's
    device and by its members alone (`device_id` of the default group would make all ranks split it, group after group); `connect`
    then calls each once. Left to the first call, a communicator is connected within the step, where both ends block until the other
    comes: an order that the proof about transfers does not know.
    """

    def __init__(self, timeout_seconds: float, wait_for: WaitFor = lambda what, ranks, order, run: run()) -> None:
        """`wait_for`: runs what these ranks wait for each other in. `order`: its number, the same on all."""
        self._wait_for, self._made = wait_for, 0
        self._timeout = timedelta(seconds=timeout_seconds)
        self.native = dist.get_backend() == "nccl"
        self._device = torch.device("cuda", torch.cuda.current_device()) if self.native else None

    names_all = True

    def link(self, axes: str, ranks: Sequence[int], rank: int) -> TorchLink | None:
        everybody = len(ranks) == dist.get_world_size()
        group = dist.group.WORLD if everybody else self._group(ranks, rank)
        return TorchLink(group, self.native) if rank in ranks else None

    def pipeline(self, layout: Layout, rank: int, link: Link | None) -> TorchLink:
        """Channels for each neighbour and direction over NCCL, which lets transfers of two ranks wait for each other; over
        gloo the pipeline's own group, with tags."""
        assert link is None or isinstance(link, TorchLink)
        group = link.process_group if link is not None else None
        if not self.native:
            return TorchLink(group, False)
        channels = {}
        for pair in [pair for ranks in layout.groups(("pp",)) for pair in neighbours(layout, ranks)]:
            for upwards in (False, True):
                channel = self._group(pair, rank)
                if rank in pair:
                    channels[pair[1 - pair.index(rank)], upwards] = channel
        return TorchLink(group, True, channels)

    def _group(self, ranks: Sequence[int], rank: int) -> Any:
        """The process group of these ranks. Torch names groups by number: a rank that is in none counts it, and no more."""
        self._made += 1
        make = partial(dist.new_group, list(ranks), timeout=self._timeout, device_id=self._device)
        if rank not in ranks:
            return make()
        if not self.native:
            require_group_files(len(ranks))
        return self._wait_for(f"the connection of ranks {', '.join(map(str, ranks))}", tuple(ranks), self._made, make)


def _numbered(items: Sequence[tuple[Tensor, int]]) -> Iterator[tuple[Tensor, int, int]]:
    """(tensor, rank, how many before it are for the same rank)."""
    seen: Counter[int] = Counter()
    for tensor, rank in items:
        yield tensor, rank, seen[rank]
        seen[rank] += 1


def neighbours(layout: Layout, ranks: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Pairs of a pipeline's `ranks` that hold consecutive stages, in one order for all of them: so all can connect one by one."""
    places = zip(layout.stage_ranks, layout.stage_ranks[1:], strict=False)
    pairs = {(min(a, b), max(a, b)) for a, b in places if a != b}
    return ((ranks[low], ranks[high]) for low, high in sorted(pairs))
