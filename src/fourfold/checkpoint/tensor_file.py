"""Safetensors files: the header, a tensor's bytes in pieces without a second copy of it, and reading.

Format: 8 bytes little-endian header length N; N bytes of JSON, name -> {dtype, shape, data_offsets}; the tensors' bytes.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fourfold.config import RunFailure

PIECE_BYTES = 1 << 23
DTYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "U8": torch.uint8, "I16": torch.int16}
_CODES = {dtype: code for code, dtype in DTYPES.items()}
_FP = {"F64": "fp64", "F32": "fp32", "BF16": "bf16", "F16": "fp16", "I16": "int16"}


class DamagedCheckpoint(RunFailure):
    """A checkpoint that is not what was saved. `problem`: the message without its advice."""

    def __init__(self, problem: str, advice: str) -> None:
        super().__init__(f"{problem}; {advice}")
        self.problem = problem


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of a file: name, format, shape."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


def dtype_name(dtype: torch.dtype) -> str:
    """`torch.float32` -> `fp32`. Raises `ValueError` for a format that checkpoints do not hold."""
    if _CODES.get(dtype) not in _FP:
        raise ValueError(f"a checkpoint holds fp64, fp32, bf16 and int16 tensors, not {dtype}")
    return _FP[_CODES[dtype]]


def header(entries: Sequence[TensorEntry], metadata: Mapping[str, str] | None = None) -> tuple[bytes, dict[str, int]]:
    """The bytes before the tensors' own, and where in the file each tensor starts."""
    table: dict[str, Any] = {"__metadata__": {"format": "pt", **(metadata or {})}}
    starts, offset = {}, 0
    for entry in entries:
        end = offset + entry.size_bytes
        table[entry.name] = {"dtype": _CODES[entry.dtype], "shape": list(entry.shape), "data_offsets": [offset, end]}
        starts[entry.name] = offset
        offset = end
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the format asks that the tensors start at a multiple of 8
    prefix = len(text).to_bytes(8, "little") + text
    return prefix, {name: start + len(prefix) for name, start in starts.items()}


def emit(tensor: Tensor, write: Callable[[bytes | memoryview], Any]) -> None:
    """Passes a tensor's bytes to `write`, at most `PIECE_BYTES` at a time; a device's tensor is fetched in such pieces."""
    flat = tensor.detach().reshape(-1)
    step = PIECE_BYTES // flat.element_size()
    for start in range(0, flat.numel(), step):
        piece = flat[start : start + step].cpu().contiguous()
        write(piece.view(torch.uint8).numpy().data)


class TensorFile:
    """A safetensors file opened for reading; its header is checked here, its tensors are read when asked for.

    `metadata`: what the file says of itself. Raises `DamagedCheckpoint` when the file is missing, truncated or no safetensors
    file; `advice` ends that message.
    """

    def __init__(self, path: Path, advice: str) -> None:
        self.path = path
        self._advice = advice
        try:
            self._handle = safe_open(path, framework="pt", device="cpu")
        except FileNotFoundError:
            raise DamagedCheckpoint(f"{path} is missing", advice) from None
        except (OSError, SafetensorError) as error:
            raise DamagedCheckpoint(f"{path} is truncated or corrupt ({error})", advice) from None
        self.names: tuple[str, ...] = tuple(self._handle.keys())
        self.metadata: dict[str, str] = self._handle.metadata() or {}

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._handle.get_slice(name).get_shape())

    def dtype(self, name: str) -> str:
        """`fp32`, or the format's own code (`I8`) where this package has no name for it."""
        code = self._handle.get_slice(name).get_dtype()
        return _FP.get(code, code)

    def read(self, name: str) -> Tensor:
        """The full tensor."""
        return self._guard(name, lambda: self._handle.get_tensor(name))

    def read_range(self, name: str, start: int, end: int) -> Tensor:
        """Elements [start, end) of the tensor laid flat, [end - start]; only the rows that hold them are read."""
        shape = self.shape(name)
        if not 0 <= start <= end <= prod(shape):
            raise ValueError(f"{name} has {prod(shape)} elements; there is no range [{start}, {end})")
        if not shape or start == end:
            return self.read(name).reshape(-1)[start:end]
        row = prod(shape[1:])
        first, last = start // row, -(-end // row)
        rows = self._guard(name, lambda: self._handle.get_slice(name)[first:last])
        return rows.reshape(-1)[start - first * row : end - first * row]

    def _guard(self, name: str, read: Callable[[], Tensor]) -> Tensor:
        try:
            return read()
        except (OSError, SafetensorError) as error:
            raise DamagedCheckpoint(f"{self.path}: {name} cannot be read ({error})", self._advice) from None
