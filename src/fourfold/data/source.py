"""A file of a corpus: where it lies, its hash, and its bytes as they are stored.

Its content is decompressed, as UTF-8, whatever marks its encoding.
"""

import bz2
import codecs
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain
from typing import Any, BinaryIO, cast

from fourfold.config import UserError

_HASH_CHUNK_BYTES = 1 << 20
_CHUNK_BYTES = 1 << 16
_INPUT_BYTES = 1 << 12
"""A decoder gives out in one piece what so much decompresses to: 128 MiB of Zstandard at most, 180 MiB of bzip2."""
_XZ_MEMORY_BYTES = 1 << 30
MAX_DOCUMENT_BYTES = 1 << 30
"""The most that one document in a compressed file has."""
_MAX_RATIO, _FREE_BYTES = 2000, 1 << 26
"""A compressed file may grow by this factor, above so many bytes. Text shrinks to a tenth or so; gzip can do 1,032."""
COMPRESSIONS = (".gz", ".zst", ".bz2", ".xz")
_ENCODINGS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
    (codecs.BOM_UTF8, "utf-8-sig"),
)
"""Byte-order marks; that of UTF-32 begins with that of UTF-16."""


@dataclass(frozen=True)
class Source:
    """A file of a corpus: `path` relative to the corpus's root, `location` in its (fsspec) file system."""

    path: str
    location: str
    filesystem: Any

    def size_bytes(self) -> int:
        """The stored size; 0 where the file system does not tell."""
        with suppress(Exception):  # each kind of file system raises its own
            return int(self.filesystem.size(self.location) or 0)
        return 0


@dataclass(frozen=True)
class UnreadFile:
    """A file of a corpus that is not read: `path` below the corpus's root, why, and its stored size."""

    path: str
    reason: str
    size_bytes: int

    def __str__(self) -> str:
        path = self.path if self.path.isprintable() else repr(self.path)
        return f"{path} ({self.reason})"


class UnreadError(UserError):
    """A file that cannot be read as text. A scan counts it with `reason`."""

    def __init__(self, source: Source, reason: str) -> None:
        super().__init__(f"{source.location}: cannot be read: {reason}")
        self.reason = reason


def fingerprint(source: Source) -> tuple[int, str]:
    """Size in bytes and SHA-256 (hexadecimal) of the stored file. Raises `UnreadError` if it cannot be read."""
    digest, size = sha256(), 0
    with open_stored(source) as stream:
        while chunk := stream.read(_HASH_CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
    return size, digest.hexdigest()


@contextmanager
def open_stored(source: Source) -> Iterator[BinaryIO]:
    """The bytes as they are stored. Raises `UnreadError` naming the file if it cannot be opened or read."""
    try:
        with source.filesystem.open(source.location, "rb") as stream:
            yield stream
    except OSError as error:
        raise UnreadError(source, str(error.strerror or error)) from None


@contextmanager
def open_content(source: Source, compression: str) -> Iterator[BinaryIO]:
    """The bytes after decompression (one of `COMPRESSIONS`, or "") as UTF-8 without a byte-order mark.

    Damage inside is a `UserError` that names the file; text that is not what its byte-order mark says is an `UnreadError`.
    """
    damage: tuple[type[Exception], ...] = (gzip.BadGzipFile, EOFError, zlib.error, lzma.LZMAError)
    if compression == ".zst":
        damage = (*damage, _zstandard(source).ZstdError)
    with open_stored(source) as stored:
        try:
            yield _as_utf8(_decompressed(stored, source, compression), source)
        except damage as error:
            raise UserError(f"{source.location}: cannot be decompressed to its end: {error}") from None
        except OSError as error:
            if compression != ".bz2" or error.errno is not None:
                raise
            raise UserError(f"{source.location}: cannot be decompressed to its end: {error}") from None


def _decompressed(stored: BinaryIO, source: Source, compression: str) -> Iterator[bytes]:
    if not compression:
        return iter(lambda: stored.read(_CHUNK_BYTES), b"")
    if compression == ".gz":
        unzipped = gzip.GzipFile(fileobj=stored)
        return _bounded(iter(lambda: unzipped.read(_CHUNK_BYTES), b""), source, stored)
    decoders: dict[str, Callable[[], Any]] = {
        ".zst": lambda: _zstandard(source).ZstdDecompressor().decompressobj(),
        ".bz2": bz2.BZ2Decompressor,
        ".xz": lambda: lzma.LZMADecompressor(memlimit=_XZ_MEMORY_BYTES),
    }
    padding = b"\0" if compression == ".xz" else b""
    return _bounded(_frames(stored, decoders[compression], padding), source, stored)


def _bounded(chunks: Iterator[bytes], source: Source, stored: BinaryIO) -> Iterator[bytes]:
    """A compressed file's content. Reading it raises `UserError` where that is out of all proportion to the file."""
    total = 0
    for chunk in chunks:
        total += len(chunk)
        if total > _FREE_BYTES + _MAX_RATIO * stored.tell():
            raise UserError(
                f"{source.location}: decompresses to more than {_MAX_RATIO} times its size; what works: decompress it first"
            )
        yield chunk


def _zstandard(source: Source) -> Any:
    try:
        import zstandard
    except ImportError:
        raise UserError(
            f"{source.location}: .zst needs zstandard, which is not installed: pip install 'fourfold[train]'"
        ) from None
    return zstandard


def _frames(stored: BinaryIO, make_decoder: Callable[[], Any], padding: bytes) -> Iterator[bytes]:
    """One frame after another, with `padding` between them. A library's own stream reader may take a file that is cut short for one
    that ends."""
    decoder, begun = None, False
    while piece := stored.read(_CHUNK_BYTES):
        for start in range(0, len(piece), _INPUT_BYTES):
            chunk = piece[start : start + _INPUT_BYTES]
            while chunk:
                if decoder is None:
                    chunk = chunk.lstrip(padding) if begun and padding else chunk
                    if not chunk:
                        break
                    decoder, begun = make_decoder(), True
                yield decoder.decompress(chunk)
                chunk = b""
                if decoder.eof:
                    chunk, decoder = decoder.unused_data, None
    if decoder is not None:
        raise EOFError("it ends in the middle of a frame")


def _as_utf8(chunks: Iterator[bytes], source: Source) -> BinaryIO:
    """A stream of the chunks, decoded by their byte-order mark where they begin with one of another encoding."""
    head = b""
    while len(head) < 4 and (chunk := next(chunks, b"")):
        head += chunk
    encoding = next((name for mark, name in _ENCODINGS if head.startswith(mark)), None)
    content = chain([head], chunks)
    if encoding == "utf-8-sig":
        content = chain([head[len(codecs.BOM_UTF8) :]], chunks)
    elif encoding is not None:
        content = chain(_recoded(content, encoding, source))
    return cast(BinaryIO, io.BufferedReader(_ChunkStream(content), _CHUNK_BYTES))


def _recoded(chunks: Iterator[bytes], encoding: str, source: Source) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(encoding)()
    try:
        for chunk in chunks:
            yield decoder.decode(chunk).encode("utf-8")
        yield decoder.decode(b"", final=True).encode("utf-8")
    except UnicodeError as error:
        raise UnreadError(source, f"not the {encoding.upper()} that its first bytes say ({error.reason})") from None  # type: ignore[attr-defined]


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
