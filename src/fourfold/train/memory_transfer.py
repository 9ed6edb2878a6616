"""Bytes between ranks beside training: texts that rank 0 decides on, and copies that move to another machine's memory."""

import os
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fourfold.checkpoint.file_bytes import bytes_of
from fourfold.config.errors import require_group_files
from fourfold.runtime.links import TorchLink
from fourfold.runtime.memory_file import MemoryFile
from fourfold.train.session import RankContext

_PIECE_BYTES = 1 << 23
_GATHERED_BYTES = 1 << 26
"""Bytes of all ranks together that are gathered at once: a rank's device holds so many."""
Region = tuple[int, int]
"""(rank, version)"""


class MemoryTransfer:
    """A rank's end of what moves copies. All ranks call the same methods in order.

    Facts that all ranks know travel on the group of all ranks, between steps. A copy travels beside training, on a group of the two
    ranks that it moves between, and `meet` is a counter in the store: no rank has connections for all others.
    """

    def __init__(self, memory: MemoryFile, context: RankContext, timeout_seconds: float) -> None:
        self._memory = memory
        self._timeout = timedelta(seconds=timeout_seconds)
        self._rank, self._world_size, self._device = context.rank, context.world_size, context.device
        self._pairs: dict[int, Any] = {}
        self.meet = context.barrier("memory").meet
        """Returns once every rank is here."""

    def connect(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Makes the groups of this rank among those of all `pairs`, which all ranks give in one order, so that none waits for
        another in a circle."""
        for pair in pairs:
            if self._rank in pair and (other := sum(pair) - self._rank) not in self._pairs:
                require_group_files(2)
                self._pairs[other] = dist.new_group(
                    sorted(pair), timeout=self._timeout, backend="gloo", use_local_synchronization=True
                )

    def gather(self, text: str) -> list[str]:
        """The texts of all ranks, on rank 0; elsewhere empty."""
        data = text.encode()
        longest = torch.tensor(len(data), device=self._device)
        dist.all_reduce(longest, dist.ReduceOp.MAX)
        world = TorchLink(dist.group.WORLD, native=False)
        piece = max(1, min(int(longest), _GATHERED_BYTES // self._world_size))
        found: list[Tensor] = []
        for begin in range(0, int(longest), piece):
            everywhere = torch.empty(self._world_size * piece, dtype=torch.uint8, device=self._device)
            world.all_gather(everywhere, self._tensor(data[begin : begin + piece], piece)).wait()
            if self._rank == 0:
                found.append(everywhere.view(self._world_size, piece).cpu())
        texts = torch.cat(found, 1) if found else torch.empty(self._world_size if self._rank == 0 else 0, 0)
        return [each.numpy().tobytes().rstrip(b"\0").decode() for each in texts]

    def tell(self, text: str) -> str:
        """The text of rank 0, on every rank."""
        data = text.encode() if self._rank == 0 else b""
        size = torch.tensor(len(data), device=self._device)
        dist.broadcast(size, 0)
        buffer = self._tensor(data, int(size) + 1)
        dist.broadcast(buffer, 0)
        return bytes(bytes_of(buffer.cpu())[:-1]).decode()

    def sizes(self, own: int) -> list[int]:
        """The number of every rank."""
        numbers = torch.zeros(self._world_size, dtype=torch.int64, device=self._device)
        numbers[self._rank] = own
        dist.all_reduce(numbers)
        return [int(number) for number in numbers.tolist()]

    def _tensor(self, data: bytes, length: int) -> Tensor:
        """The bytes and zeros behind them, on the device."""
        return torch.frombuffer(bytearray(data.ljust(length, b"\0")), dtype=torch.uint8).to(self._device)

    def exchange(
        self,
        to: int | None,
        own: tuple[Region, int] | None,
        sources: Sequence[int],
        regions: Sequence[Region],
    ) -> None:
        """Sends a region, whose data have so many bytes, to rank `to`, and receives one from each of `sources` into `regions`
        meanwhile. All are ranks that this one is connected with.

        In round i everybody sends and receives piece i, so that no two wait for each other. The head comes last: what arrived half
        is no copy. Raises `RuntimeError` where another rank is gone.
        """
        heads = self._swap_heads(to, own, sources)
        theirs = [(region, size) for region, (size, _) in zip(regions, heads, strict=True)]
        pieces = max([_pieces(size) for _, size in (*theirs, *((own,) if own is not None else ()))], default=0)
        for region, _ in theirs:
            self._memory.begin(*region)
        for piece in range(pieces):
            works: list[dist.Work | None] = []
            if to is not None and own is not None and piece < _pieces(own[1]):
                works.append(dist.isend(self._read(*own, piece), to, group=self._pairs[to]))
            arriving = [
                (region, torch.empty(_length(size, piece), dtype=torch.uint8), source)
                for source, (region, size) in zip(sources, theirs, strict=True)
                if piece < _pieces(size)
            ]
            works += [dist.irecv(buffer, source, group=self._pairs[source]) for _, buffer, source in arriving]
            for work in works:
                if work is not None:
                    work.wait()
            for region, buffer, _ in arriving:
                self._memory.write(bytes_of(buffer), self._memory.data_start(*region) + piece * _PIECE_BYTES)
        for region, (_, head) in zip(regions, heads, strict=True):
            self._memory.commit(*region, head)

    def _swap_heads(
        self, to: int | None, own: tuple[Region, int] | None, sources: Sequence[int]
    ) -> list[tuple[int, str]]:
        """The data's bytes and the head of the region of each source."""
        works: list[dist.Work | None] = []
        if to is not None and own is not None:
            data = (self._memory.head(*own[0]) or "").encode()
            works.append(dist.isend(torch.tensor([own[1], len(data)]), to, group=self._pairs[to]))
            works.append(dist.isend(torch.frombuffer(bytearray(data), dtype=torch.uint8), to, group=self._pairs[to]))
        heads = []
        for source in sources:
            sizes = torch.zeros(2, dtype=torch.int64)
            dist.recv(sizes, source, group=self._pairs[source])
            buffer = torch.empty(int(sizes[1]), dtype=torch.uint8)
            dist.recv(buffer, source, group=self._pairs[source])
            heads.append((int(sizes[0]), bytes(bytes_of(buffer)).decode()))
        for work in works:
            if work is not None:
                work.wait()
        return heads

    def _read(self, region: Region, size: int, piece: int) -> Tensor:
        start = self._memory.data_start(*region) + piece * _PIECE_BYTES
        data = os.pread(self._memory.descriptor, _length(size, piece), start)
        return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _pieces(size: int) -> int:
    return -(-size // _PIECE_BYTES)


def _length(size: int, piece: int) -> int:
    return min(_PIECE_BYTES, size - piece * _PIECE_BYTES)
