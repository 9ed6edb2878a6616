"""Digests of checkpoint files: one for every 256 KiB of a file, and one over those, which the manifest holds."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from fourfold.config import UserError

CHUNK_BYTES = 1 << 18
DIGEST_BYTES = 16
SHA256, XXH3 = "sha256", "xxh3_128"
CHUNK_HASHES = (XXH3, SHA256)
"""Hashes of chunks. XXH3 takes a tenth of SHA-256's time; without the package `xxhash` files get SHA-256, cut to 16 bytes."""


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
