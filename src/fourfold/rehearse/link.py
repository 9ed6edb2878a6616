"""Communicators of ranks that are not there: each call is checked as NCCL would, written down, and in flight until it is joined."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fourfold.layout import Layout
from fourfold.rehearse.journal import GroupCall, Journal
from fourfold.rehearse.streams import COMPUTE, Clock, Streams
from fourfold.runtime.links import Link
from fourfold.runtime.offload.host_link import Copying, HostLink

_NCCL_FORMATS = {torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8}


class StartedCall:
    """A call in flight. It keeps its tensors until it is joined, as torch's work does."""

    def __init__(self, journal: Journal, streams: Streams, end: Clock, tensors: Sequence[Tensor]) -> None:
        self._journal, self._streams, self._end, self._tensors = journal, streams, end, list(tensors)

    def wait(self) -> None:
        """The current stream waits, the host goes on."""
        if self._streams.current == COMPUTE:
            self._journal.joins[self._journal.instruction] += 1
        self._streams.join(self._end)
        self._tensors.clear()


class RehearsedLink:
    """A communicator of `ranks`, and one for each neighbour and direction, each with its own stream."""

    native = True

    def __init__(self, axes: str, ranks: Sequence[int], journal: Journal, streams: Streams) -> None:
        self.axes, self.ranks = axes, tuple(ranks)
        self._journal, self._streams = journal, streams

    def all_gather(self, full: Tensor, shard: Tensor) -> StartedCall:
        self._equal_parts("all_gather", full, shard)
        return self._start("all_gather", [shard], [full])

    def reduce_scatter(self, shard: Tensor, full: Tensor) -> StartedCall:
        self._equal_parts("reduce_scatter", full, shard)
        return self._start("reduce_scatter", [full], [shard])

    def all_reduce(self, full: Tensor, largest: bool = False) -> StartedCall:
        return self._start("all_reduce", [], [full])

    def all_to_all(
        self, received: Tensor, sent: Tensor, rows_in: list[int] | None, rows_out: list[int] | None
    ) -> StartedCall:
        for tensor, rows, way in ((received, rows_in, "received"), (sent, rows_out, "sent")):
            fits = tensor.shape[0] % len(self.ranks) == 0 if rows is None else sum(rows) == tensor.shape[0]
            if not fits or (rows is not None and len(rows) != len(self.ranks)):
                raise self._journal.fault(
                    f"all_to_all over {self.axes}: {tensor.shape[0]} rows {way}, parts {rows} for {len(self.ranks)} ranks"
                )
        return self._start("all_to_all", [sent], [received])

    def exchange(
        self, sent: Sequence[tuple[Tensor, int]], received: Sequence[tuple[Tensor, int]]
    ) -> Sequence[StartedCall]:
        for (out, _), (into, _) in zip(sent, received, strict=True):
            if out.numel() != into.numel():
                raise self._journal.fault(
                    f"exchange over {self.axes}: {out.numel()} elements sent, {into.numel()} received"
                )
        return [self._start("exchange", [x for x, _ in sent], [x for x, _ in received])]

    def send(self, tensor: Tensor, rank: int, upwards: bool, number: int) -> StartedCall:
        return self._start("send", [tensor], [], rank, upwards)

    def receive(self, tensor: Tensor, rank: int, upwards: bool, number: int) -> StartedCall:
        return self._start("receive", [], [tensor], rank, upwards)

    def _equal_parts(self, kind: str, full: Tensor, shard: Tensor) -> None:
        if full.numel() != shard.numel() * len(self.ranks):
            raise self._journal.fault(
                f"{kind} over {self.axes}: {full.numel()} elements are not {len(self.ranks)} parts of {shard.numel()}"
            )

    def _start(
        self, kind: str, reads: list[Tensor], writes: list[Tensor], peer: int = -1, upwards: bool = False
    ) -> StartedCall:
        tensors = [*reads, *writes]
        for tensor in tensors:
            self._check(kind, tensor, tensors[0].dtype)
        race = self._streams.race(reads, writes)
        if race is not None:
            raise self._journal.fault(race)
        largest = max(tensors, key=torch.Tensor.numel)
        numel = sum(x.numel() for x in reads) if kind == "exchange" else largest.numel()
        self._journal.calls.append(GroupCall(self.axes, kind, str(largest.dtype), numel, peer, upwards))
        stream = self.axes if peer < 0 else f"{self.axes} {'up' if upwards else 'down'} {peer}"
        end = self._streams.launch(stream, f"{self._journal.instruction}: {kind} over {stream}", reads, writes)
        return StartedCall(self._journal, self._streams, end, tensors)

    def _check(self, kind: str, tensor: Tensor, dtype: torch.dtype) -> None:
        problem = None
        if not tensor.is_meta:
            problem = "lies on the CPU"
        elif not tensor.is_contiguous():
            problem = f"is not contiguous: strides {tensor.stride()}"
        elif tensor.dtype != dtype:
            problem = f"is {tensor.dtype}, another is {dtype}"
        elif tensor.dtype not in _NCCL_FORMATS:
            problem = f"is {tensor.dtype}, which NCCL does not take"
        elif tensor.numel() and tensor.untyped_storage().size() == 0:
            problem = "has no memory"
        if problem is not None:
            raise self._journal.fault(f"{kind} over {self.axes}: a tensor {list(tensor.shape)} {problem}")


class RehearsedLinks:
    """Makes them."""

    def __init__(self, journal: Journal, streams: Streams) -> None:
        self._journal, self._streams = journal, streams

    native, names_all = True, False

    def link(self, axes: str, ranks: Sequence[int], rank: int) -> RehearsedLink | None:
        return RehearsedLink(axes, ranks, self._journal, self._streams) if rank in ranks else None

    def pipeline(self, layout: Layout, rank: int, link: Link | None) -> RehearsedLink:
        return RehearsedLink("pp", layout.group_of(rank, ("pp",)), self._journal, self._streams)


def rehearsed_host_link(journal: Journal, streams: Streams, device: torch.device) -> HostLink:
    """A link in both directions. `DeviceKernels` checks each copy, and whether its memory is pinned."""
    return HostLink(device, _stream(journal, streams, "to host"), _stream(journal, streams, "from host"))


def _stream(journal: Journal, streams: Streams, name: str) -> Copying:
    def start(copies: Callable[[], None]) -> StartedCall:
        with streams.on(name) as clock:
            copies()
            return StartedCall(journal, streams, dict(clock), [])

    return start
