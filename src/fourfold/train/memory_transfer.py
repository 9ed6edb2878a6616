"""Bytes between ranks beside training: texts that rank 0 decides on, and copies that move to another machine's memory."""

import os
from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from fourfold.checkpoint.file_bytes import bytes_of
from fourfold.config.errors import require_group_files
from fourfold.runtime.memory_file import MemoryFile

_PIECE_BYTES = 1 << 23
Region = tuple[int, int]
"""(rank, version)"""


class MemoryTransfer:
    """A rank's end of a process group of its own, for bytes in host memory. All ranks call the same methods in order."""

    def __init__(self, memory: MemoryFile, timeout_seconds: float) -> None:
        self._memory = memory
        require_group_files(dist.get_world_size())
        self._group = dist.new_group(timeout=timedelta(seconds=timeout_seconds), backend="gloo")
        self._rank, self._world_size = dist.get_rank(), dist.get_world_size()

    def gather(self, text: str) -> list[str]:
        """The texts of all ranks, on rank 0; elsewhere empty."""
        data = text.encode()
        longest = torch.tensor(len(data))
        dist.all_reduce(longest, dist.ReduceOp.MAX, group=self._group)
        own = torch.zeros(int(longest) + 1, dtype=torch.uint8)
        own[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else 0
        all_texts = [torch.empty_like(own) for _ in range(self._world_size)] if self._rank == 0 else None
        dist.gather(own, all_texts, dst=0, group=self._group)
        return [bytes(bytes_of(each)).rstrip(b"\0").decode() for each in all_texts or ()]

    def tell(self, text: str) -> str:
        """The text of rank 0, on every rank."""
        data = text.encode() if self._rank == 0 else b""
        size = torch.tensor(len(data))
        dist.broadcast(size, 0, group=self._group)
        buffer = torch.zeros(int(size) + 1, dtype=torch.uint8)
        if data:
            buffer[:-1] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        dist.broadcast(buffer, 0, group=self._group)
        return bytes(bytes_of(buffer)[:-1]).decode()

    def sizes(self, own: int) -> list[int]:
        """The number of every rank."""
        numbers = torch.zeros(self._world_size, dtype=torch.int64)
        numbers[self._rank] = own
        dist.all_reduce(numbers, group=self._group)
        return [int(number) for number in numbers]

    def meet(self) -> None:
        dist.barrier(group=self._group)

    def exchange(
        self,
        to: int | None,
        own: tuple[Region, int] | None,
        sources: Sequence[int],
        theirs: Sequence[tuple[Region, int]],
    ) -> None:
        """Sends a region, whose data have so many bytes, to rank `to`, and receives one from each of `sources` meanwhile.

        In round i everybody sends and receives piece i, so that no two wait for each other. The head comes last: what arrived half
        is no copy. Raises `RuntimeError` where another rank is gone.
        """
        heads = self._swap_heads(to, own, sources)
        pieces = max([_pieces(size) for _, size in (*theirs, *((own,) if own is not None else ()))], default=0)
        for region, _ in theirs:
            self._memory.begin(*region)
        for piece in range(pieces):
            works: list[dist.Work | None] = []
            if to is not None and own is not None and piece < _pieces(own[1]):
                works.append(dist.isend(self._read(*own, piece), to, group=self._group))
            arriving = [
                (region, torch.empty(_length(size, piece), dtype=torch.uint8), source)
                for source, (region, size) in zip(sources, theirs, strict=True)
                if piece < _pieces(size)
            ]
            works += [dist.irecv(buffer, source, group=self._group) for _, buffer, source in arriving]
            for work in works:
                if work is not None:
                    work.wait()
            for region, buffer, _ in arriving:
                self._memory.write(bytes_of(buffer), self._memory.data_start(*region) + piece * _PIECE_BYTES)
        for (region, _), head in zip(theirs, heads, strict=True):
            self._memory.commit(*region, head)

    def _swap_heads(self, to: int | None, own: tuple[Region, int] | None, sources: Sequence[int]) -> list[str]:
        works: list[dist.Work | None] = []
        if to is not None and own is not None:
            data = (self._memory.head(*own[0]) or "").encode()
            works.append(dist.isend(torch.tensor(len(data)), to, group=self._group))
            works.append(dist.isend(torch.frombuffer(bytearray(data), dtype=torch.uint8), to, group=self._group))
        heads = []
        for source in sources:
            size = torch.tensor(0)
            dist.recv(size, source, group=self._group)
            buffer = torch.empty(int(size), dtype=torch.uint8)
            dist.recv(buffer, source, group=self._group)
            heads.append(bytes(bytes_of(buffer)).decode())
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
