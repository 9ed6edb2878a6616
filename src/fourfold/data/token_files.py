"""Files of token ids, read where they lie: Megatron pairs, arrays of NumPy, and `.bin` files with llm.c's header or none.

All give one array, mapped into memory, and where each document begins. The header of a file is checked against its size before a
token is read; nothing is unpickled.
"""

import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from fourfold.config import RunFailure, UserError
from fourfold.config.errors import shortened
from fourfold.data.indexed import open_indexed

SUFFIXES = (".npy", ".bin")
_NPY = b"\x93NUMPY"
_LLMC = struct.Struct("<3i")
_LLMC_HEADER_BYTES = 1024
_LLMC_DTYPES = {(20240520, 1): "uint16", (20240801, 7): "uint32"}
"""By magic number and version: GPT-2's tokens, which modded-nanogpt has too, and Llama 3's."""
_CHUNK_TOKENS = 1 << 24


@dataclass(frozen=True)
class TokenFile:
    """A file of token ids. `path`: absolute; of a Megatron pair without its ends. `dtype`: of ids, as stated; "" where it was
    not."""

    path: str
    kind: Literal["pair", "array"]
    dtype: str = ""

    @property
    def paths(self) -> list[Path]:
        """The files on disk."""
        return [Path(self.path + suffix) for suffix in (".bin", ".idx")] if self.kind == "pair" else [Path(self.path)]

    @property
    def ids_path(self) -> Path:
        """The file that holds the ids."""
        return self.paths[0]

    def open(self) -> np.ndarray:
        """The ids, integers [num_tokens], mapped into memory. Raises `RunFailure` naming what is damaged, `UserError` for what
        needs a key."""
        return open_indexed(self.path).tokens if self.kind == "pair" else _open_array(self.path, self.dtype)

    def document_offsets(self, tokens: np.ndarray, eos: int) -> np.ndarray:
        """Where each document begins, and the end of the last, int64 [D + 1]: as a pair's index says; else behind every
        end-of-text, and the full array is one document where it holds none."""
        if self.kind == "pair":
            return open_indexed(self.path).document_offsets
        ends = [start + np.flatnonzero(chunk == eos) + 1 for start, chunk in chunks_of(tokens)]
        edges = np.concatenate([[0], *ends, [len(tokens)]]).astype(np.int64)
        return edges[:-1] if len(edges) > 2 and edges[-1] == edges[-2] else edges


def chunks_of(tokens: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """(place, tokens from there on) of an array, 16,777,216 at a time."""
    for start in range(0, len(tokens), _CHUNK_TOKENS):
        yield start, np.asarray(tokens[start : start + _CHUNK_TOKENS])


def find_beyond(files: Sequence[TokenFile], vocab_size: int) -> tuple[Path, int, int] | None:
    """(file, place of a token in it, id) of the first id outside of a vocabulary; None where there is none."""
    for file in files:
        for start, chunk in chunks_of(file.open()):
            wrong = np.flatnonzero((chunk < 0) | (chunk >= vocab_size))
            if len(wrong):
                return file.ids_path, start + int(wrong[0]), int(chunk[wrong[0]])
    return None


def _open_array(path: str, dtype: str) -> np.ndarray:
    try:
        size = os.path.getsize(path)
        with open(path, "rb") as stream:
            head = stream.read(_LLMC.size)
    except OSError as error:
        raise RunFailure(f"{path}: cannot be read: {error.strerror}") from None
    if not size:
        raise RunFailure(f"{path}: is empty; what works: leave it out of the corpus")
    if head.startswith(_NPY):
        return _open_npy(path, dtype, size)
    found = _LLMC_DTYPES.get(_LLMC.unpack(head)[:2], "") if len(head) == _LLMC.size else ""
    if found:
        num_tokens = _LLMC.unpack(head)[2]
        _require_stated(path, dtype, found)
        expected = _LLMC_HEADER_BYTES + num_tokens * np.dtype(found).itemsize
        if num_tokens < 1 or size != expected:
            raise RunFailure(
                f"{path}: holds {size} bytes, but its header ({num_tokens} tokens of {found}) asks for {expected}: it is cut short "
                "or damaged"
            )
        return _mapped(path, found, num_tokens, _LLMC_HEADER_BYTES)
    if not dtype:
        pair = (
            f", or {Path(path).with_suffix('.idx')} where it is half of a Megatron pair"
            if path.endswith(".bin")
            else ""
        )
        raise UserError(
            f"{path}: has no header that tells the format of its token ids; what works: data.token_dtype=uint16, as "
            f"nanoGPT and Dolma write them{pair}"
        )
    itemsize = np.dtype(dtype).itemsize
    if size % itemsize:
        raise RunFailure(
            f"{path}: holds {size} bytes, which is no whole number of {dtype} of {itemsize} bytes: it is cut short, or "
            "data.token_dtype is another"
        )
    return _mapped(path, dtype, size // itemsize, 0)


def _open_npy(path: str, dtype: str, size: int) -> np.ndarray:
    try:
        tokens = np.load(path, mmap_mode="r", allow_pickle=False)
        offset = int(tokens.offset)
    except Exception as error:  # a header that lies makes NumPy raise nearly anything
        raise RunFailure(
            f"{path}: is no array of NumPy that can be read ({shortened(str(error))[1:-1]}): damaged, or cut short"
        ) from None
    if tokens.ndim != 1 or not np.issubdtype(tokens.dtype, np.integer):
        raise UserError(
            f"{path}: is an array of shape {tokens.shape} of {tokens.dtype}; what works: one dimension of integers, as "
            "numpy.save(path, ids.reshape(-1)) writes it"
        )
    if size != offset + tokens.nbytes:
        raise RunFailure(
            f"{path}: holds {size} bytes, but its header ({len(tokens)} tokens of {tokens.dtype}) asks for "
            f"{offset + tokens.nbytes}: damaged"
        )
    _require_stated(path, dtype, tokens.dtype.name)
    return tokens


def _require_stated(path: str, stated: str, found: str) -> None:
    if stated and stated != found:
        raise UserError(
            f"{path}: its header says {found}, and data.token_dtype {stated}; what works: leave data.token_dtype out "
            "for files with a header"
        )


def _mapped(path: str, dtype: str, num_tokens: int, offset: int) -> np.ndarray:
    return np.memmap(path, np.dtype(dtype).newbyteorder("<"), "r", offset, shape=(num_tokens,))
