"""A file of a corpus: where it lies, its hash, and its bytes as stored or decompressed."""

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, BinaryIO, cast

from fourfold.config import UserError

_HASH_CHUNK_BYTES = 1 << 20
_CHUNK_BYTES = 1 << 16
_ZSTD_INPUT_BYTES = 1 << 12
"""The library gives out in one piece what so much decompresses to, 128 MiB at most."""
MAX_DOCUMENT_BYTES = 1 << 30
"""The most that one document in a compressed file has."""
_MAX_RATIO, _FREE_BYTES = 2000, 1 << 26
"""A compressed file may grow by this factor, above so many bytes. Text shrinks to a tenth or so; gzip can do 1,032."""


@dataclass(frozen=True)
class Source:
    """A file of a corpus: `path` relative to the corpus's root, `location` in its (fsspec) file system."""

    path: str
    location: str
    filesystem: Any


def fingerprint(source: Source) -> tuple[int, str]:
    """Size in bytes and SHA-256 (hexadecimal) of the stored file. Raises `UserError` if it cannot be read."""
    digest, size = sha256(), 0
    with open_stored(source) as stream:
        while chunk := stream.read(_HASH_CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
    return size, digest.hexdigest()


@contextmanager
def open_stored(source: Source) -> Iterator[BinaryIO]:
    """The bytes as they are stored. Raises `UserError` naming the file if it cannot be opened or read."""
    try:
        with source.filesystem.open(source.location, "rb") as stream:
            yield stream
    except OSError as error:
        raise UserError(f"{source.location}: cannot be read: {error.strerror or error}") from None


@contextmanager
def open_decompressed(source: Source, compression: str) -> Iterator[BinaryIO]:
    """The bytes after decompression (".gz", ".zst" or ""). Damage inside is a `UserError` that names the file."""
    damage: tuple[type[Exception], ...] = (gzip.BadGzipFile, EOFError, zlib.error)
    if compression == ".zst":
        damage = (*damage, _zstandard(source).ZstdError)
    with open_stored(source) as stored:
        try:
            if compression == ".gz":
                with gzip.GzipFile(fileobj=stored) as unzipped:
                    yield _bounded_stream(iter(lambda: unzipped.read(_CHUNK_BYTES), b""), source, stored)
            elif compression == ".zst":
                yield _bounded_stream(_decompress_zstd(stored, _zstandard(source)), source, stored)
            else:
                yield stored
        except damage as error:
            raise UserError(f"{source.location}: cannot be decompressed to its end: {error}") from None


def _bounded_stream(chunks: Iterator[bytes], source: Source, stored: BinaryIO) -> BinaryIO:
    """A compressed file's content as a stream. Reading it raises `UserError` where that is out of all proportion to the file."""

    def bounded() -> Iterator[bytes]:
        total = 0
        for chunk in chunks:
            total += len(chunk)
            if total > _FREE_BYTES + _MAX_RATIO * stored.tell():
                raise UserError(
                    f"{source.location}: decompresses to more than {_MAX_RATIO} times its size; what works: decompress it first"
                )
            yield chunk

    return cast(BinaryIO, io.BufferedReader(_ChunkStream(bounded()), _CHUNK_BYTES))


def _zstandard(source: Source) -> Any:
    try:
        import zstandard
    except ImportError:
        raise UserError(
            f"{source.location}: .zst needs zstandard, which is not installed: pip install 'fourfold[train]'"
        ) from None
    return zstandard


def _decompress_zstd(stored: BinaryIO, zstandard: Any) -> Iterator[bytes]:
    """One frame after another. The library's own stream reader takes a file that is cut short for one that ends."""
    decoder = None
    while piece := stored.read(_CHUNK_BYTES):
        for start in range(0, len(piece), _ZSTD_INPUT_BYTES):
            chunk = piece[start : start + _ZSTD_INPUT_BYTES]
            while chunk:
                decoder = decoder or zstandard.ZstdDecompressor().decompressobj()
                yield decoder.decompress(chunk)
                chunk = b""
                if decoder.eof:
                    chunk, decoder = decoder.unused_data, None
    if decoder is not None:
        raise EOFError("it ends in the middle of a frame")


class _ChunkStream(io.RawIOBase):
    """An iterator of byte strings as a stream."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._left:
            try:
                self._left = memoryview(next(self._chunks))
            except StopIteration:
                return 0
        size = min(len(buffer), len(self._left))
        buffer[:size] = self._left[:size]
        self._left = self._left[size:]
        return size
