"""A file of a corpus: where it lies, its hash, and its bytes as they are stored."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, BinaryIO

from fourfold.config import UserError

_HASH_CHUNK_BYTES = 1 << 20


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
