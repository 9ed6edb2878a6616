"""Ranges of a file's bytes, of a disk or of a remote store, read into memory that is there.

Digests of checkpoint files: one for every 256 KiB of a file, and one over those, which the manifest holds.
"""

import errno
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from fourfold.config import UserError
from fourfold.config.remote_path import RemotePath, is_remote

CHUNK_BYTES = 1 << 18
DIGEST_BYTES = 16
SHA256, XXH3 = "sha256", "xxh3_128"
CHUNK_HASHES = (XXH3, SHA256)
"""Hashes of chunks. XXH3 takes a tenth of SHA-256's time; without the package `xxhash` files get SHA-256, cut to 16 bytes."""
_READ_BYTES = 1 << 23
Read = Callable[[memoryview, int], None]
"""(out, start): fills `out` with the bytes from `start` on. Raises `OSError`, also where the file ends before."""


@dataclass(frozen=True)
class FileDigest:
    """A file's length, the hash of its chunks, and the SHA-256 of all chunks' digests, lower-case hex."""

    size_bytes: int
    sha256: str
    chunk_hash: str = SHA256


def default_hash() -> str:
    """The fastest hash that is installed."""
    return XXH3 if find_spec("xxhash") else SHA256


def hasher(name: str) -> Callable[..., Any]:
    """The function that starts a digest. Raises `UserError` where its package is missing."""
    if name == SHA256:
        return hashlib.sha256
    if find_spec("xxhash") is None:
        raise UserError(
            "this checkpoint was saved with the package xxhash, which is not installed; what works: pip install xxhash"
        )
    return import_module("xxhash").xxh3_128


class ChunkDigests:
    """Takes a file's bytes in order, and has a digest of every chunk."""

    def __init__(self, name: str) -> None:
        self._new = hasher(name)
        self._current = self._new()
        self._room = CHUNK_BYTES
        self._done = bytearray()

    def update(self, data: bytes | memoryview) -> None:
        view = memoryview(data).cast("B")
        while len(view):
            part, view = view[: self._room], view[self._room :]
            self._current.update(part)
            self._room -= len(part)
            if not self._room:
                self._close()

    def _close(self) -> None:
        self._done += self._current.digest()[:DIGEST_BYTES]
        self._current = self._new()
        self._room = CHUNK_BYTES

    def finish(self) -> bytes:
        """All digests, one after another; the last chunk may be short."""
        if self._room < CHUNK_BYTES:
            self._close()
        return bytes(self._done)


def num_chunks(size_bytes: int) -> int:
    """Chunks of so many bytes."""
    return -(-size_bytes // CHUNK_BYTES)


class ByteSource(Protocol):
    """Where the bytes of a file come from."""

    def opened(self, chunks: Sequence[int] = (), keep: bool = False) -> AbstractContextManager[Read]:
        """The file, to be read. `chunks`: rising, those that are read now to be verified; `keep`: and again soon."""
        ...

    def forget(self) -> None:
        """Frees chunks that are kept."""
        ...

    def size_bytes(self) -> int:
        """The length of the file. Raises `OSError`."""
        ...


def source_of(path: Path) -> ByteSource:
    """The bytes of a file."""
    return RemoteBytes(path) if isinstance(path, RemotePath) else LocalBytes(path)


class LocalBytes:
    """A file of a disk, open only while it is read: a rank may need thousands."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @contextmanager
    def opened(self, chunks: Sequence[int] = (), keep: bool = False) -> Iterator[Read]:
        descriptor = os.open(self._path, os.O_RDONLY)
        try:
            yield lambda out, start: _read(descriptor, out, start)
        finally:
            os.close(descriptor)

    def forget(self) -> None:
        """Nothing is kept: the system has its cache."""

    def size_bytes(self) -> int:
        return self._path.stat().st_size


class DescriptorBytes:
    """A file that lies within an open one: `size` bytes from `start` on."""

    def __init__(self, descriptor: int, start: int, size: int) -> None:
        self._descriptor, self._start, self._size = descriptor, start, size

    @contextmanager
    def opened(self, chunks: Sequence[int] = (), keep: bool = False) -> Iterator[Read]:
        yield lambda out, start: _read(self._descriptor, out, self._start + start)

    def forget(self) -> None:
        """Nothing is kept: it is memory."""

    def size_bytes(self) -> int:
        return self._size


class RemoteBytes:
    """An object of a remote store. Chunks that follow one another come in one request and are kept until they are read again."""

    def __init__(self, path: RemotePath) -> None:
        self._path = path
        self._kept: dict[int, memoryview] = {}

    @contextmanager
    def opened(self, chunks: Sequence[int] = (), keep: bool = False) -> Iterator[Read]:
        at_hand = dict(self._kept)
        for run in _runs(chunk for chunk in chunks if chunk not in at_hand):
            data = memoryview(self._path.read_range(run[0] * CHUNK_BYTES, (run[-1] + 1) * CHUNK_BYTES))
            for index, chunk in enumerate(run):
                at_hand[chunk] = data[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES]
        if keep:
            self._kept.update((chunk, at_hand[chunk]) for chunk in chunks)
        yield lambda out, start: self._read(at_hand, out, start)

    def _read(self, at_hand: Mapping[int, memoryview], out: memoryview, start: int) -> None:
        end = start + len(out)
        for chunk in range(start // CHUNK_BYTES, -(-end // CHUNK_BYTES)):
            base = chunk * CHUNK_BYTES
            first, last = max(start, base), min(end, base + CHUNK_BYTES)
            if chunk in at_hand:
                part = at_hand[chunk][first - base : last - base]
            else:
                last, part = end, memoryview(self._path.read_range(first, end))
            if len(part) != last - first:
                raise OSError(errno.EIO, "it ends too early")
            out[first - start : last - start] = part
            if last == end:
                return

    def forget(self) -> None:
        self._kept.clear()

    def size_bytes(self) -> int:
        return self._path.stat().st_size


def _runs(chunks: Iterable[int]) -> list[list[int]]:
    """Rising numbers, cut where one is left out."""
    runs: list[list[int]] = []
    for chunk in chunks:
        if not runs or chunk != runs[-1][-1] + 1:
            runs.append([])
        runs[-1].append(chunk)
    return runs


def _read(descriptor: int, out: memoryview, start: int) -> None:
    while len(out):
        count = os.preadv(descriptor, [out[:_READ_BYTES]], start)
        if count == 0:
            raise OSError(errno.EIO, "it ends too early")
        out, start = out[count:], start + count


def drop_from_cache(path: Path) -> None:
    """Makes the next read of a file that was synced come from the disk, where the system takes such advice."""
    if hasattr(os, "posix_fadvise") and not is_remote(path):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a contiguous tensor on the CPU."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data
