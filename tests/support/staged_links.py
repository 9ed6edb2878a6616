"""Links that take NCCL's calls, carried by gloo over copies in the host's memory: several ranks on one device, or on none.

NCCL refuses two ranks on one device. Over these links each rank runs what it would run over NCCL (native collectives, transfers
without tags, phases on the side stream), with real numbers of other processes. NCCL itself stays untested: its communicators,
how they connect, and that a collective and a kernel share the device.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fourfold.layout import Layout
from fourfold.runtime.links import Link

_TRANSFERS = 1 << 20


@dataclass
class StagedCall:
    """Calls of gloo under way, and where their results go: (tensor of the device, copy in the host's memory)."""

    works: Sequence[Any]
    results: Sequence[tuple[Tensor, Tensor]] = ()

    def wait(self) -> None:
        """Copies results on the current stream."""
        for work in self.works:
            work.wait()
        for tensor, copy in self.results:
            tensor.copy_(copy)
        self.works = self.results = ()


@dataclass
class StagedLink:
    """A gloo group of `ranks`. Every call first copies what it sends; that waits for the current stream."""

    group: Any
    size: int
    native: bool = True
    _exchanges: int = 0

    def all_gather(self, full: Tensor, shard: Tensor) -> StagedCall:
        copy = _empty(full)
        parts = list(copy.view(-1).chunk(self.size))
        return StagedCall([dist.all_gather(parts, _copy(shard).view(-1), self.group, async_op=True)], [(full, copy)])

    def reduce_scatter(self, shard: Tensor, full: Tensor) -> "_Summed":
        sent = _copy(full).view(self.size, -1)
        received = torch.empty_like(sent)
        work = dist.all_to_all_single(received, sent, group=self.group, async_op=True)
        return _Summed(work, shard, received)

    def all_reduce(self, full: Tensor, largest: bool = False) -> StagedCall:
        copy, how = _copy(full), dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM
        return StagedCall([dist.all_reduce(copy, how, group=self.group, async_op=True)], [(full, copy)])

    def all_to_all(
        self, received: Tensor, sent: Tensor, rows_in: list[int] | None, rows_out: list[int] | None
    ) -> StagedCall:
        copy = _empty(received)
        work = dist.all_to_all_single(copy, _copy(sent), rows_in, rows_out, group=self.group, async_op=True)
        return StagedCall([work], [(received, copy)])

    def exchange(self, sent: Sequence[tuple[Tensor, int]], received: Sequence[tuple[Tensor, int]]) -> list[StagedCall]:
        self._exchanges += 1
        tag = self._exchanges % 1024 * 256
        calls = [self._receive(tensor, rank, tag + i) for i, (tensor, rank) in enumerate(received)]
        return calls + [self._send(tensor, rank, tag + i) for i, (tensor, rank) in enumerate(sent)]

    def send(self, tensor: Tensor, rank: int, upwards: bool, number: int) -> StagedCall:
        return self._send(tensor, rank, _TRANSFERS * (1 + upwards) + number)

    def receive(self, tensor: Tensor, rank: int, upwards: bool, number: int) -> StagedCall:
        return self._receive(tensor, rank, _TRANSFERS * (1 + upwards) + number)

    def _send(self, tensor: Tensor, rank: int, tag: int) -> StagedCall:
        return StagedCall([dist.isend(_copy(tensor), rank, group=self.group, tag=tag)])

    def _receive(self, tensor: Tensor, rank: int, tag: int) -> StagedCall:
        copy = _empty(tensor)
        return StagedCall([dist.irecv(copy, rank, group=self.group, tag=tag)], [(tensor, copy)])


@dataclass
class _Summed:
    """A reduce-scatter: the parts of all ranks, [ranks, n], which are summed when they have come."""

    work: Any
    shard: Tensor
    parts: Tensor

    def wait(self) -> None:
        self.work.wait()
        self.shard.copy_(self.parts.sum(0).view(self.shard.shape))


class StagedLinks:
    """Makes them, over gloo groups of the processes that have joined the default one. Torch numbers groups, so that every rank
    names those of others too."""

    native, names_all = True, True

    def link(self, axes: str, ranks: Sequence[int], rank: int) -> StagedLink | None:
        group = dist.new_group(list(ranks), timedelta(seconds=60), "gloo")
        return StagedLink(group, len(ranks)) if rank in ranks else None

    def pipeline(self, layout: Layout, rank: int, link: Link | None) -> Link:
        """The pipeline's own link; where its ranks sum nothing, one that is made for it."""
        if link is not None:
            return link
        (own,) = filter(None, [self.link("pp", ranks, rank) for ranks in layout.groups(("pp",))])
        return own


def _copy(tensor: Tensor) -> Tensor:
    """A copy of a tensor's values in the host's memory, apart from what happens to it now."""
    return tensor.detach().to("cpu", copy=True).contiguous()


def _empty(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype)
