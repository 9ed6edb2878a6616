"""Writing a Hugging Face folder: configuration, weights and tokenizer, as transformers loads them.

Every parameter goes to its places on disk as it comes.
"""

import json
import os
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from fourfold.checkpoint import folders
from fourfold.checkpoint.origin import TOKENIZER, Origin, tokens_by_id
from fourfold.checkpoint.tensor_file import TensorEntry, emit, header
from fourfold.checkpoint.weight_folder import INDEX, SINGLE
from fourfold.config import DTYPE_BYTES, ModelConfig, RunFailure, UserError
from fourfold.huggingface import to_config
from fourfold.huggingface.carried import carried_config
from fourfold.huggingface.tensors import (
    Form,
    TensorSlice,
    balance_bias,
    has_balance_bias,
    written_balance_bias,
    written_forms,
)
from fourfold.model.spec import build_segments
from fourfold.model.torch_operations import torch_dtype

IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
_DTYPE_NAMES = {"fp64": "float64", "fp32": "float32", "bf16": "bfloat16"}


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
        if piece.axes:
            assert first == piece.start  # parameters come in pieces along dim 0, of which this is one or several
            values = values.view(piece.part).permute(piece.axes).contiguous()
            self.stream.seek(self.start + piece.offset * size)
            emit(values.view(-1), self.stream.write)
            return
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
        for layer in range(model.num_layers + model.mtp_layers) if has_balance_bias(model.family) else ():
            if model.is_moe(layer):
                self._biases.add(name := balance_bias(layer))
                shape, theirs = (model.num_experts,), written_balance_bias(layer, model.family)
                self._forms[name] = (shape, [TensorSlice(theirs, shape, 0, model.num_experts)])
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


def write_huggingface(
    folder: Path,
    model: ModelConfig,
    tensors: Iterable[tuple[str, Tensor]],
    *,
    dtype: str,
    tokenizer_file: Path | None,
    eos: int | None,
    origin: Origin | None = None,
    max_shard_bytes: float = 5e9,
) -> None:
    """Writes `folder`, which must be new or empty, so that transformers loads it.

    `tensors`: (name, tensor) of every parameter of the model once, in any order; one is held at a time. A parameter may come in
    several pieces along dim 0, in order. They are written in the form in which the family is released (`huggingface/tensors.py`).
    Balancing biases of DeepSeek-V3 (`balance_bias`) may be left out: then they are 0.
    `dtype`: the format written, `fp32`, `bf16` or `fp64`. `eos`: the id of the end-of-text token. `tokenizer_file`: a
    tokenizer.json. `origin`: the folder that the run's weights came from. Where it has the same tokens, its ids, chat template and
    generation_config.json are carried over, and the files of its tokenizer as they are. A file holds at most `max_shard_bytes`, or
    one tensor. The folder appears when it is complete. Raises `UserError` for what cannot be asked for, `RunFailure` when the disk
    does not take it.
    """
    if dtype not in DTYPE_BYTES:
        raise UserError(f"dtype = {dtype!r} is unknown; allowed: {', '.join(DTYPE_BYTES)}")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; name a new folder")
    if folder.is_dir() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty and is not overwritten; name a new folder, or delete this one first")
    tokens = _tokens(tokenizer_file, eos) if tokenizer_file is not None else None
    same = tokens is not None and origin is not None and origin.has_tokens(tokens)
    files = _plan(model, torch_dtype(dtype), max_shard_bytes)
    texts = _config_texts(model, dtype, eos, files, origin, same)
    if same and origin is not None:
        contents = origin.files
    else:
        contents = {}
        texts |= (
            _tokenizer_texts(tokenizer_file, tokens, eos, model)
            if tokenizer_file is not None and tokens is not None
            else {}
        )
    needed_bytes = sum(entry.size_bytes for file in files for entry in file.entries)
    aside = folders.aside(folder.absolute())
    try:
        aside.parent.mkdir(parents=True, exist_ok=True)
        folders.remove_tree(aside)
        folders.require_space(aside.parent, needed_bytes)
        aside.mkdir()
        write_weights(aside, model, files, tensors)
        for name, text in texts.items():
            folders.write_text(aside / name, text)
        for name, content in contents.items():
            (aside / name).parent.mkdir(exist_ok=True)
            folders.write_bytes(aside / name, content)
        folders.sync_folder(aside)
        os.rename(aside, folder.absolute())  # onto nothing, or onto the empty folder
        folders.sync_folder(aside.parent)
    except OSError as error:
        _remove(aside)
        free = folders.format_bytes(folders.free_bytes(aside.parent))
        raise RunFailure(
            f"{folder} was not written: {error}. It needs {folders.format_bytes(needed_bytes)}, and {free} are free in "
            f"{aside.parent}; name a folder on a disk with room that you can write"
        ) from error
    except BaseException:
        _remove(aside)
        raise


def _remove(path: Path) -> None:
    with suppress(OSError):
        folders.remove_tree(path)


def _plan(model: ModelConfig, dtype: torch.dtype, max_shard_bytes: float) -> list[WeightFile]:
    """Which tensor goes into which file: in the order of the model, each file filled up to `max_shard_bytes`."""
    groups: list[list[TensorEntry]] = [[]]
    size = 0
    for entry in _entries(model, dtype).values():
        if groups[-1] and size + entry.size_bytes > max_shard_bytes:
            groups.append([])
            size = 0
        groups[-1].append(entry)
        size += entry.size_bytes
    if len(groups) == 1:
        return [WeightFile(SINGLE, tuple(groups[0]))]
    count = len(groups)
    return [WeightFile(f"model-{i:05d}-of-{count:05d}.safetensors", tuple(g)) for i, g in enumerate(groups, 1)]


def _entries(model: ModelConfig, dtype: torch.dtype) -> dict[str, TensorEntry]:
    """Every tensor on disk, in the order of the model."""
    entries: dict[str, TensorEntry] = {}
    segments = build_segments(model)
    forms = written_forms({spec.name: spec.shape for s in segments for spec in s.parameters}, model.family)
    for segment in segments:
        for spec in segment.parameters:
            for piece in forms[spec.name]:
                entries[piece.name] = TensorEntry(piece.name, dtype, piece.shape)
        if segment.moe and segment.layer is not None and has_balance_bias(model.family):
            name = written_balance_bias(segment.layer, model.family)
            entries[name] = TensorEntry(name, torch.float32, (model.num_experts,))
    return entries


def _config_texts(
    model: ModelConfig, dtype: str, eos: int | None, files: list[WeightFile], origin: Origin | None, same: bool
) -> dict[str, str]:
    """The JSON files beside the weights. An id that is not known is null, or transformers would assume one. `same`: the tokens are
    those of `origin`."""
    if origin is None:
        config = to_config(model, _DTYPE_NAMES[dtype], eos)
    else:
        config = carried_config(origin.folder, model, _DTYPE_NAMES[dtype], eos, same)
    for key in ("bos_token_id", "eos_token_id"):
        config.setdefault(key, None)
    own = {key: value for key in IDS if (value := config.get(key)) is not None}
    kept = origin.generation_with(config["eos_token_id"]) if origin is not None and same else None
    documents: dict[str, Any] = {"config.json": config}
    if len(files) > 1:
        documents[INDEX] = {
            "metadata": {"total_size": sum(entry.size_bytes for file in files for entry in file.entries)},
            "weight_map": {entry.name: file.name for file in files for entry in file.entries},
        }
    texts = {name: _json(document) for name, document in documents.items()}
    return {**texts, "generation_config.json": _json(own) if kept is None else kept}


def _tokens(path: Path, eos: int | None) -> dict[int, str]:
    """Every token of a tokenizer.json by its id. Raises `UserError` where it is none, or has no token `eos`."""
    try:
        tokens = tokens_by_id(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); name a tokenizer.json") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UserError(f"{path} is not a tokenizer.json; name one that the tokenizers library wrote") from None
    if eos is not None and eos not in tokens:
        raise UserError(f"eos = {eos} is no token of {path}; give the id of its end-of-text token, or none")
    return tokens


def _tokenizer_texts(path: Path, tokens: dict[int, str], eos: int | None, model: ModelConfig) -> dict[str, str]:
    """tokenizer.json as it is, and the tokenizer_config.json that makes transformers load it."""
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": model.max_position,
        "clean_up_tokenization_spaces": False,
    }
    if eos is not None:
        config["bos_token"] = config["eos_token"] = tokens[eos]
    return {TOKENIZER: path.read_text(encoding="utf-8"), "tokenizer_config.json": _json(config)}


def _json(document: Any) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
