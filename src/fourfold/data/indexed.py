"""Tokens on disk in Megatron's indexed format: a flat `.bin` of ids and an `.idx` that says where each document lies.

The `.idx` is little-endian: 9 bytes "MMIDIDX" 0 0, u64 version 1, u8 dtype code, u64 number of sequences S, u64 number
of document boundaries D, int32 length in tokens [S], int64 byte offset [S], int64 document boundary [D]. The boundaries
count sequences: they begin with 0 and end with S, so that there are D - 1 documents. Multimodal writers add int8 mode [S].

A stream is a run of tokens that may skip parts of a file: some ranges of a memory-mapped array, read as if they were one.
"""

import mmap
import os
import struct
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from fourfold.config import RunFailure

_CHUNK_TOKENS = 1 << 22
MAGIC = b"MMIDIDX\x00\x00"
DTYPES = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 6: np.float64, 7: np.float32, 8: np.uint16}
UINT16_VOCAB = 65_500
"""Vocabularies below this size are stored as uint16, others as int32."""

_HEADER = struct.Struct("<9sQBQQ")
_MAX_SEQUENCE = 1 << 30


class JoinedTokens:
    """Several arrays of ids as one behind another, never built in memory: slices of it are arrays, int64."""

    def __init__(self, arrays: Sequence[np.ndarray]) -> None:
        self._arrays = [np.asarray(array) for array in arrays]
        self.starts = np.cumsum([0, *(len(array) for array in arrays)], dtype=np.int64)
        """The place at which each array begins, and the end of the last."""

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __getitem__(self, places: slice) -> np.ndarray:
        start, stop, _ = places.indices(len(self))
        first, last = self.array_of(start), self.array_of(stop - 1)
        pieces = [
            self._arrays[at][max(start - int(self.starts[at]), 0) : stop - int(self.starts[at])]
            for at in range(first, last + 1)
        ]
        return np.concatenate([np.empty(0, np.int64), *(piece.astype(np.int64) for piece in pieces)])

    def array_of(self, place: int) -> int:
        """The number of the array that holds a place."""
        return int(np.searchsorted(self.starts, place, side="right")) - 1


class TokenStream:
    """The concatenation of ranges of an array, never built in memory."""

    def __init__(self, tokens: np.ndarray | JoinedTokens, ranges: np.ndarray) -> None:
        """tokens: ids, [N]. ranges: (start, stop) of each range, int64 [R, 2], rising, disjoint, none empty."""
        self._tokens = tokens
        self._ranges = ranges
        self._ends = np.cumsum(ranges[:, 1] - ranges[:, 0], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def read(self, start: int, count: int) -> np.ndarray:
        """Tokens `start` to `start + count` of the stream, int64 [count]; fewer where the stream ends."""
        pieces = [self._tokens[begin:end] for begin, end in self.places(start, count)]
        return np.concatenate([np.empty(0, np.int64), *pieces]).astype(np.int64, copy=False)

    def places(self, start: int, count: int) -> list[tuple[int, int]]:
        """(start, stop) in the array of each piece of tokens `start` to `start + count` of the stream."""
        stop = min(start + count, len(self))
        pieces = []
        at = int(np.searchsorted(self._ends, start, side="right"))
        while start < stop:
            range_stop = int(self._ranges[at, 1])
            begin = range_stop - (int(self._ends[at]) - start)
            end = min(range_stop, begin + stop - start)
            pieces.append((begin, end))
            start += end - begin
            at += 1
        return pieces

    def chunks(self) -> Iterator[np.ndarray]:
        """The full stream in order, int64 [at most 4,194,304] at a time."""
        for start in range(0, len(self), _CHUNK_TOKENS):
            yield self.read(start, _CHUNK_TOKENS)


def all_tokens(tokens: np.ndarray) -> TokenStream:
    """The stream of all tokens of an array."""
    return TokenStream(tokens, complement(np.empty((0, 2), np.int64), len(tokens)))


def complement(ranges: np.ndarray, length: int) -> np.ndarray:
    """The ranges of [0, length) outside rising, disjoint `ranges` [R, 2]: int64 [R', 2], without empty ranges."""
    edges = np.concatenate([[0], ranges.reshape(-1), [length]]).astype(np.int64).reshape(-1, 2)
    return edges[edges[:, 0] < edges[:, 1]]


@dataclass(frozen=True, eq=False)
class IndexedTokens:
    """An opened pair. Nothing but the header and the index is read until tokens are.

    tokens: memory-mapped ids, [num_tokens], read-only. sizes: tokens of each sequence, int32 [S].
    document_offsets: where each document begins in `tokens`, and the end of the last, int64 [num_documents + 1].
    """

    prefix: str
    tokens: np.ndarray
    sizes: np.ndarray
    document_offsets: np.ndarray

    @property
    def num_documents(self) -> int:
        return len(self.document_offsets) - 1

    def document(self, index: int) -> np.ndarray:
        """The ids of one document, a view of the mapped file."""
        return self.tokens[self.document_offsets[index] : self.document_offsets[index + 1]]


def open_indexed(prefix: Path | str) -> IndexedTokens:
    """Opens `prefix.bin` and `prefix.idx` once they are seen to agree. Raises `RunFailure` naming the file at fault."""
    idx, binary = f"{prefix}.idx", f"{prefix}.bin"
    try:
        idx_bytes, bin_bytes = os.path.getsize(idx), os.path.getsize(binary)
        with open(idx, "rb") as stream:
            header = stream.read(_HEADER.size)
    except OSError as error:
        raise RunFailure(f"{error.filename}: cannot be read: {error.strerror}") from None
    if len(header) < _HEADER.size:
        raise RunFailure(f"{idx}: holds {len(header)} bytes, fewer than the {_HEADER.size} of an index's header")
    magic, version, code, num_sequences, num_boundaries = _HEADER.unpack(header)
    if magic != MAGIC:
        raise RunFailure(f"{idx}: is not a Megatron index: it begins with {magic!r}, not {MAGIC!r}")
    if version != 1:
        raise RunFailure(f"{idx}: has version {version}; only version 1 can be read")
    if code not in DTYPES or not np.issubdtype(DTYPES[code], np.integer):
        raise RunFailure(f"{idx}: has dtype code {code}; token ids have one of 1, 2, 3, 4, 5, 8 (8 is uint16)")
    # Python's integers do not overflow, so a header that lies cannot pass for a small one.
    expected = _HEADER.size + 12 * num_sequences + 8 * num_boundaries
    if idx_bytes not in (expected, expected + num_sequences):
        raise RunFailure(
            f"{idx}: holds {idx_bytes} bytes, but its header ({num_sequences} sequences, {num_boundaries} document "
            f"boundaries) asks for {expected}: it is cut short or damaged"
        )
    with open(idx, "rb") as stream:
        index = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    sizes = np.frombuffer(index, "<i4", num_sequences, _HEADER.size)
    pointers = np.frombuffer(index, "<i8", num_sequences, _HEADER.size + 4 * num_sequences)
    boundaries = np.frombuffer(index, "<i8", num_boundaries, _HEADER.size + 12 * num_sequences)
    dtype = np.dtype(DTYPES[code]).newbyteorder("<")
    offsets = _check_index(idx, sizes, pointers, boundaries, dtype.itemsize)
    num_tokens = int(offsets[-1])
    if bin_bytes != num_tokens * dtype.itemsize:
        raise RunFailure(
            f"{binary}: holds {bin_bytes} bytes, but {idx} describes {num_tokens} tokens of {dtype.itemsize} bytes "
            f"({num_tokens * dtype.itemsize} bytes): one of the two is cut short or damaged"
        )
    tokens = np.memmap(binary, dtype, "r", shape=(num_tokens,)) if num_tokens else np.empty(0, dtype)
    return IndexedTokens(str(prefix), tokens, sizes, offsets[boundaries])


def _check_index(
    idx: str, sizes: np.ndarray, pointers: np.ndarray, boundaries: np.ndarray, itemsize: int
) -> np.ndarray:
    """Token offset of every sequence and of the end, int64 [S + 1]."""
    if len(sizes) and int(sizes.min()) < 0:
        raise RunFailure(f"{idx}: sequence {int(sizes.argmin())} has the negative length {int(sizes.min())}: damaged")
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, dtype=np.int64, out=offsets[1:])
    wrong = np.flatnonzero(pointers != offsets[:-1] * itemsize)
    if len(wrong):
        at = int(wrong[0])
        raise RunFailure(
            f"{idx}: sequence {at} points to byte {int(pointers[at])}, but the sequences before it end at "
            f"{int(offsets[at]) * itemsize}: damaged, or written with gaps, which cannot be read"
        )
    if not len(boundaries) or boundaries[0] != 0 or boundaries[-1] != len(sizes) or np.any(np.diff(boundaries) < 0):
        raise RunFailure(f"{idx}: the document boundaries do not rise from 0 to {len(sizes)} sequences: damaged")
    return offsets


class IndexedWriter:
    """Appends documents to a pair that is being written aside; see `write_indexed`."""

    def __init__(self, stream: BinaryIO, vocab_size: int) -> None:
        self._stream = stream
        self._code = 8 if vocab_size < UINT16_VOCAB else 4
        self._vocab_size = vocab_size
        self._dtype = np.dtype(DTYPES[self._code]).newbyteorder("<")
        self._sizes = array("i")
        self._boundaries = array("q", [0])
        self.num_tokens = 0

    @property
    def num_documents(self) -> int:
        return len(self._boundaries) - 1

    def append(self, ids: np.ndarray) -> None:
        """Adds a document, integers [length], each from 0 to `vocab_size` - 1."""
        if len(ids) and (ids.min() < 0 or ids.max() >= self._vocab_size):
            raise ValueError(f"token ids from {ids.min()} to {ids.max()} in a vocabulary of {self._vocab_size}")
        self._stream.write(ids.astype(self._dtype).tobytes())
        # A length is an int32, so a longer document becomes several sequences of one document.
        for start in range(0, max(len(ids), 1), _MAX_SEQUENCE):
            self._sizes.append(min(len(ids) - start, _MAX_SEQUENCE))
        self._boundaries.append(len(self._sizes))
        self.num_tokens += len(ids)

    def index(self) -> bytes:
        """The content of the `.idx` file."""
        sizes = np.array(self._sizes, "<i4")
        pointers = np.zeros(len(sizes), "<i8")
        pointers[1:] = np.cumsum(sizes[:-1], dtype=np.int64) * self._dtype.itemsize
        header = _HEADER.pack(MAGIC, 1, self._code, len(sizes), len(self._boundaries))
        return header + sizes.tobytes() + pointers.tobytes() + np.array(self._boundaries, "<i8").tobytes()


@contextmanager
def write_indexed(prefix: Path | str, vocab_size: int) -> Iterator[IndexedWriter]:
    """Writes a pair aside and renames it into place when the block ends; after an exception nothing is left.

    The `.idx` is renamed last: where it stands, the `.bin` is complete.
    """
    partial = {suffix: f"{prefix}.{suffix}.partial" for suffix in ("bin", "idx")}
    try:
        with open(partial["bin"], "wb") as stream:
            writer = IndexedWriter(stream, vocab_size)
            yield writer
            stream.flush()
            os.fsync(stream.fileno())
        with open(partial["idx"], "wb") as stream:
            stream.write(writer.index())
            stream.flush()
            os.fsync(stream.fileno())
        for suffix, path in partial.items():
            os.replace(path, f"{prefix}.{suffix}")
    finally:
        for path in partial.values():
            if os.path.exists(path):
                os.unlink(path)
