"""A rank's file of a checkpoint: safetensors whose last tensor holds a digest of every 256 KiB before it, so that any range of the
file can be checked without reading the rest."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from fourfold.checkpoint.file_bytes import (
    CHUNK_BYTES,
    DIGEST_BYTES,
    ByteSource,
    ChunkDigests,
    FileDigest,
    bytes_of,
    default_hash,
    hasher,
    num_chunks,
    source_of,
)
from fourfold.checkpoint.tensor_file import DTYPES, DamagedCheckpoint, TensorEntry, emit, header
from fourfold.config.remote_path import is_remote

CHUNKS = "chunk_digests"


def write_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str] | None = None,
    chunk_hash: str | None = None,
    advance: Callable[[], None] = lambda: None,
) -> FileDigest:
    """Writes a rank's file, with `metadata` in its header, waits until it is on disk, and returns its length and digest. `advance`
    is called after each piece. Raises `OSError`."""

    def write(data: bytes | memoryview) -> None:
        _write_all(file, data)
        advance()

    with path.open("wb", buffering=0) as file:
        result = emit_file(write, tensors, metadata, chunk_hash)
        if not is_remote(path):
            os.fsync(file.fileno())
        return result


def emit_file(
    write: Callable[[bytes | memoryview], None],
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str] | None = None,
    chunk_hash: str | None = None,
) -> FileDigest:
    """Passes the bytes of a rank's file to `write`, in order; returns their length and digest."""
    entries = [TensorEntry(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()]
    chunk_hash = chunk_hash or default_hash()
    digests, size = ChunkDigests(chunk_hash), 0
    with ThreadPoolExecutor(1) as beside:

        def pass_on(data: bytes | memoryview) -> None:
            nonlocal size
            hashed = beside.submit(digests.update, data)
            write(data)
            size += len(data)
            hashed.result()

        pass_on(_header(entries, metadata))
        for tensor in tensors.values():
            emit(tensor, pass_on)
    tail = digests.finish()
    write(tail)
    return FileDigest(size + len(tail), sha256(tail).hexdigest(), chunk_hash)


def file_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> int:
    """The length of the file of these tensors."""
    entries = [TensorEntry(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()]
    body = len(_header(entries, metadata)) + sum(entry.size_bytes for entry in entries)
    return body + DIGEST_BYTES * num_chunks(body)


def _header(entries: list[TensorEntry], metadata: Mapping[str, str] | None) -> bytes:
    """The file's header. It says how many digests follow, which depends on its own length."""
    body = sum(entry.size_bytes for entry in entries)
    count, prefix = -1, b""
    while count != num_chunks(len(prefix) + body):
        count = num_chunks(len(prefix) + body)
        prefix, _ = header([*entries, TensorEntry(CHUNKS, torch.uint8, (count * DIGEST_BYTES,))], metadata)
    return prefix


def _write_all(file: IO[bytes], data: bytes | memoryview) -> None:
    rest = memoryview(data).cast("B")
    while len(rest):
        rest = rest[file.write(rest) :]


@dataclass(frozen=True)
class SavedTensor:
    """Where a tensor lies in its file: bytes [start, end)."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    end: int


@contextmanager
def _named(path: Path, advice: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise DamagedCheckpoint(f"{path} is missing or unreadable ({reason})", advice) from None


def check_length(path: Path, source: ByteSource, record: FileDigest, advice: str) -> None:
    """Raises `DamagedCheckpoint` where a file is not as long as it was saved."""
    with _named(path, advice):
        size_bytes = source.size_bytes()
    if size_bytes != record.size_bytes:
        raise DamagedCheckpoint(f"{path} has {size_bytes} bytes, not the {record.size_bytes} saved", advice)


class CheckedFile:
    """A rank's file, whose length, digests and header are checked here; `verify` checks ranges of it, `read_into` reads them.

    `metadata`: the notes in its header. Nothing stays open, so that a rank may read from any number of files. Raises
    `DamagedCheckpoint` that ends with `advice`.
    """

    def __init__(self, path: Path, record: FileDigest, advice: str, source: ByteSource | None = None) -> None:
        """`source`: of its bytes, where that is not the file `path`."""
        self.path, self._record, self._advice = path, record, advice
        self._body = record.size_bytes - DIGEST_BYTES * -(-record.size_bytes // (CHUNK_BYTES + DIGEST_BYTES))
        self._source = source or source_of(path)
        check_length(path, self._source, record, advice)
        self._digests = bytearray(max(0, record.size_bytes - self._body))
        self.read_into(memoryview(self._digests), self._body)
        if sha256(self._digests).hexdigest() != record.sha256:
            raise self._corrupt("the digests at its end are not those saved")
        self.verify([0])
        length = int.from_bytes(self._read_bytes(0, 8), "little")
        if not 0 < length <= self._body - 8:
            raise self._corrupt("its header is longer than the file")
        self.verify(range(num_chunks(8 + length)))
        self.tensors = self._parse(self._read_bytes(8, 8 + length))

    def _parse(self, text: bytes) -> dict[str, SavedTensor]:
        try:
            table = json.loads(text)
            self.metadata: dict[str, str] = table.pop("__metadata__", {})
            tensors = {}
            for name, entry in table.items():
                first, last = (int(offset) + 8 + len(text) for offset in entry["data_offsets"])
                dtype, shape = DTYPES[entry["dtype"]], tuple(int(size) for size in entry["shape"])
                if not 8 + len(text) <= first <= last <= self._record.size_bytes:
                    raise ValueError(f"{name} leaves the file")
                if TensorEntry(name, dtype, shape).size_bytes != last - first:
                    raise ValueError(f"{name} has another size than its shape")
                tensors[name] = SavedTensor(dtype, shape, first, last)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise self._corrupt(f"its header is not that of a safetensors file ({error})") from None
        return tensors

    def chunks_of(self, start: int, end: int) -> range:
        """The chunks that hold bytes [start, end)."""
        return range(start // CHUNK_BYTES, num_chunks(end)) if start < end else range(0)

    @property
    def all_chunks(self) -> range:
        return range(num_chunks(self._body))

    def verify(self, chunks: Iterable[int], keep: bool = False) -> None:
        """Checks chunks against their digests. `keep`: they are read next.

        Raises `DamagedCheckpoint` naming the first bytes that are not those saved."""
        new = hasher(self._record.chunk_hash)
        buffer = memoryview(bytearray(CHUNK_BYTES))
        chunks = list(chunks)
        with _named(self.path, self._advice), self._source.opened(chunks, keep) as read:
            for chunk in chunks:
                start = chunk * CHUNK_BYTES
                part = buffer[: max(0, min(CHUNK_BYTES, self._body - start))]
                read(part, start)
                place = chunk * DIGEST_BYTES
                if new(part).digest()[:DIGEST_BYTES] != self._digests[place : place + DIGEST_BYTES]:
                    raise self._corrupt(f"bytes {start} to {start + len(part)} are not those saved")

    def read_into(self, out: memoryview, start: int) -> None:
        """Fills `out` with the bytes from `start` on, which were verified before."""
        with _named(self.path, self._advice), self._source.opened() as read:
            read(out, start)

    def forget(self) -> None:
        """Frees the chunks of a remote file that were kept when they were verified."""
        self._source.forget()

    def _read_bytes(self, start: int, end: int) -> bytes:
        out = bytearray(end - start)
        self.read_into(memoryview(out), start)
        return bytes(out)

    def read_checked(self, name: str) -> Tensor:
        """A full tensor, in memory of its own. Raises `DamagedCheckpoint` where it is not as it was saved."""
        saved = self.tensors[name]
        self.verify(self.chunks_of(saved.start, saved.end))
        result = torch.empty(saved.shape, dtype=saved.dtype)
        self.read_into(bytes_of(result), saved.start)
        return result

    def _corrupt(self, what: str) -> DamagedCheckpoint:
        return DamagedCheckpoint(f"{self.path} is corrupt: {what}", self._advice)
