"""Writing a Hugging Face folder's weight files: every parameter goes to its places on disk as it comes."""

import os
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO

from torch import Tensor

from fourfold.checkpoint.tensor_file import TensorEntry, emit, header
from fourfold.config import ModelConfig
from fourfold.huggingface.tensors import Form, TensorSlice, balance_bias, has_balance_bias, written_forms
from fourfold.model.spec import build_segments


@dataclass(frozen=True)
class WeightFile:
    """One safetensors file and its tensors, in order."""

    name: str
    entries: tuple[TensorEntry, ...]


@dataclass(frozen=True)
class _Place:
    """Where a tensor's bytes stand."""

    stream: IO[bytes]
    start: int
    entry: TensorEntry

    def write(self, piece: TensorSlice, tensor: Tensor, first: int) -> None:
        """Writes elements of the parameter from `first` on that lie in `piece`. tensor [elements]."""
        size, values = self.entry.dtype.itemsize, tensor.to(self.entry.dtype)
        if piece.columns is None:
            self.stream.seek(self.start + (piece.offset + first - piece.start) * size)
            emit(values, self.stream.write)
            return
        inputs, width = piece.shape  # the parameter's rows are columns here
        rows = values.view(-1, inputs).t().contiguous()  # [inputs, outputs that came]
        column = piece.columns + (first - piece.start) // inputs
        for index, row in enumerate(rows):
            self.stream.seek(self.start + (index * width + column) * size)
            emit(row, self.stream.write)


def write_weights(
    folder: Path, model: ModelConfig, files: Iterable[WeightFile], tensors: Iterable[tuple[str, Tensor]]
) -> None:
    """Writes the files. Raises `ValueError` for a parameter that is none, comes twice, or not at all."""
    with ExitStack() as open_files:
        places: dict[str, _Place] = {}
        streams: list[IO[bytes]] = []
        for file in files:
            streams.append(open_files.enter_context(open(folder / file.name, "wb")))
            prefix, starts = header(file.entries)
            streams[-1].write(prefix)
            streams[-1].truncate(len(prefix) + sum(entry.size_bytes for entry in file.entries))
            places.update({entry.name: _Place(streams[-1], starts[entry.name], entry) for entry in file.entries})
        expected = _Expected(model)
        for name, tensor in tensors:
            pieces, first, last = expected.take(name, tensor)
            flat = tensor.reshape(-1)
            for piece in pieces:
                low, high = max(first, piece.start), min(last, piece.end)
                if low < high:
                    places[piece.name].write(piece, flat[low - first : high - first], low)
        expected.require_all()
        for stream in streams:
            stream.flush()
            os.fsync(stream.fileno())


class _Expected:
    """Checks that every parameter of the model comes once."""

    def __init__(self, model: ModelConfig) -> None:
        self._forms: dict[str, tuple[tuple[int, ...], Form]] = {}
        shapes = {spec.name: spec.shape for segment in build_segments(model) for spec in segment.parameters}
        for name, form in written_forms(shapes, model.family).items():
            self._forms[name] = (shapes[name], form)
        self._biases = set()
        if has_balance_bias(model.family):
            self._biases = {
                balance_bias(layer) for layer in range(model.num_layers + model.mtp_layers) if model.is_moe(layer)
            }
        for name in self._biases:
            self._forms[name] = ((model.num_experts,), [TensorSlice(name, (model.num_experts,), 0, model.num_experts)])
        self._came = dict.fromkeys(self._forms, 0)

    def take(self, name: str, tensor: Tensor) -> tuple[Form, int, int]:
        """Where a parameter or its next rows go: (places, first element, last)."""
        if name not in self._came:
            raise ValueError(f"{name} is given twice or is no parameter of the model")
        shape, form = self._forms[name]
        first = self._came[name]
        last = first + tensor.numel()
        if tuple(tensor.shape[1:]) != shape[1:] or last > prod(shape):
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}, the model says {shape}")
        self._came[name] = last
        if last == prod(shape):
            del self._came[name]
        return form, first, last

    def require_all(self) -> None:
        """Raises `ValueError` unless every parameter came whole; balancing biases may be missing."""
        if left := self._came.keys() - self._biases:
            raise ValueError(f"{min(left)} and {len(left) - 1} other parameters of the model are not given")
