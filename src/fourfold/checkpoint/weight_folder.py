"""Reading a Hugging Face folder's weights: all of it is checked when it is opened, tensors are read when asked for."""

import json
import re
from collections.abc import Iterable
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from fourfold.checkpoint.boxes import Box, box_numel, box_shape
from fourfold.checkpoint.tensor_file import TensorFile
from fourfold.config import RunFailure, UserError
from fourfold.huggingface.tensors import Form, TensorSlice, balance_bias, is_ignored, present_forms
from fourfold.model.spec import Segment

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_\-][A-Za-z0-9_.\-]*\.safetensors")
_READABLE = ("fp64", "fp32", "bf16", "fp16")
_SHOWN = 4


class WeightFolder:
    """The tensors of a folder with `model.safetensors`, or with several files and `model.safetensors.index.json`.

    Opening it checks that every file is there and whole. Raises `UserError` for a folder without such weights and
    `RunFailure` for one whose files are missing, truncated or contradict the index.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._advice = f"download or export {folder} again"
        self._files: dict[str, TensorFile] = {}
        self._forms: dict[str, Form] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        if (folder / SINGLE).exists():
            file = TensorFile(folder / SINGLE, self._advice)
            self._files = dict.fromkeys(file.names, file)
        elif (folder / INDEX).exists():
            self._open_index()
        else:
            raise UserError(_no_weights(folder))

    def names(self) -> list[str]:
        """Every tensor's name on disk."""
        return list(self._files)

    def shape(self, name: str) -> tuple[int, ...]:
        """A parameter's shape, or that of a tensor on disk."""
        return self._shapes[name] if name in self._shapes else self._files[name].shape(name)

    def get(self, name: str) -> Tensor:
        """The full parameter (or tensor on disk), in the format that the file holds."""
        shape = self.shape(name)
        return self.range(name, 0, prod(shape)).view(shape)

    def range(self, name: str, start: int, end: int) -> Tensor:
        """Elements [start, end) of the parameter laid flat, [end - start]; only the tensors and rows that hold them are read."""
        if name not in self._forms:
            return self._files[name].read_range(name, start, end)
        pieces = [piece for piece in self._forms[name] if piece.start < end and start < piece.end]
        parts = [self._read(piece, max(start, piece.start), min(end, piece.end)) for piece in pieces]
        if not parts:
            return self._files[self._forms[name][0].name].read_range(self._forms[name][0].name, 0, 0)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def box(self, name: str, box: Box, start: int = 0, end: int | None = None) -> Tensor:
        """Elements [start, end) of a box of the parameter, laid flat, [end - start]; by default all of the box. Only the rows along
        dim 0 that hold them are read: of stacked experts, those experts."""
        shape = self.shape(name)
        inner, row_numel = prod(box_shape(box)[1:]), prod(shape[1:])
        end = box_numel(box) if end is None else end
        if start >= end:
            return self.range(name, 0, 0)
        first, last = start // inner, -(-end // inner)
        origin = box[0][0]
        rows = self.range(name, (origin + first) * row_numel, (origin + last) * row_numel).view(-1, *shape[1:])
        part = rows[(slice(None), *(slice(*interval) for interval in box[1:]))]
        return part.reshape(-1)[start - first * inner : end - first * inner]

    def _read(self, piece: TensorSlice, start: int, end: int) -> Tensor:
        """Elements [start, end) of the parameter, which this piece holds."""
        file = self._files[piece.name]
        first, last = start - piece.start, end - piece.start
        if piece.columns is None:
            return file.read_range(piece.name, piece.offset + first, piece.offset + last)
        rows = (piece.end - piece.start) // piece.shape[0]
        full = file.read(piece.name)[:, piece.columns : piece.columns + rows]
        return full.t().reshape(-1)[first:last]

    def balance_bias(self, layer: int) -> Tensor | None:
        """The balancing bias of a block's router, [experts], or None where the folder has none."""
        name = balance_bias(layer)
        return self.get(name) if name in self._files else None

    def check_against(self, segments: Iterable[Segment]) -> None:
        """Raises one `UserError` that names all tensors which a model of these segments misses or cannot take.

        From then on parameters are read by their names in memory, whichever form they have on disk. Ignored:
        `lm_head.weight` where the model ties its embeddings, buffers, MTP modules.
        """
        segments = tuple(segments)
        specs = [spec for segment in segments for spec in segment.parameters]
        self._shapes = {spec.name: spec.shape for spec in specs}
        self._forms = present_forms(self._shapes, self._files)
        wanted = {piece.name: piece.shape for form in self._forms.values() for piece in form}
        problems = []
        if missing := [name for name in wanted if name not in self._files]:
            problems.append(f"missing: {_some(missing)}")
        layers = sum(segment.kind == "block" and not segment.depth for segment in segments)
        spare = [name for name in self._files if name not in wanted]
        if unexpected := [name for name in spare if not is_ignored(name, layers, self._files, wanted)]:
            problems.append(f"unexpected: {_some(unexpected)}")
        present = [name for name in wanted if name in self._files]
        shapes = {name: self._files[name].shape(name) for name in present}
        if wrong := [f"{n} {list(shapes[n])} instead of {list(wanted[n])}" for n in present if shapes[n] != wanted[n]]:
            problems.append(f"wrong shape: {_some(wrong)}")
        formats = {name: self._files[name].dtype(name) for name in present}
        if unreadable := [f"{name} as {kind}" for name, kind in formats.items() if kind not in _READABLE]:
            problems.append(f"number format other than {', '.join(_READABLE)}: {_some(unreadable)}")
        if problems:
            fix = f'build the model from the same folder: model.hf = "{self.folder}"'
            if missing == ["lm_head.weight"]:
                fix = "these weights tie the embeddings: model.tie_embeddings = true"
            raise UserError(f"the weights in {self.folder} do not fit this model: {'; '.join(problems)}; {fix}")

    def _open_index(self) -> None:
        path = self.folder / INDEX
        try:
            document = json.loads(path.read_bytes())
            weight_map = document["weight_map"]
            pairs = [(str(name), file) for name, file in weight_map.items()]
        except OSError as error:
            raise RunFailure(f"{path} is unreadable ({error.strerror}); {self._advice}") from None
        except (ValueError, RecursionError) as error:
            raise RunFailure(f"{path} is not readable JSON ({error}); {self._advice}") from None
        except (KeyError, TypeError, AttributeError):
            raise RunFailure(f"{path} has no object weight_map (tensor name -> file name); {self._advice}") from None
        opened: dict[str, TensorFile] = {}
        for name, file in pairs:
            if not isinstance(file, str) or not _PLAIN_NAME.fullmatch(file):
                raise RunFailure(
                    f"{path}: weight_map[{name!r}] = {file!r} is not a plain file name such as "
                    f"'model-00001-of-00002.safetensors'; {self._advice}"
                )
            if file not in opened:
                opened[file] = TensorFile(self.folder / file, f"{INDEX} names it; {self._advice}")
            if name not in opened[file].names:
                raise RunFailure(f"{self.folder / file} lacks {name}, which {INDEX} says it holds; {self._advice}")
            self._files[name] = opened[file]


def _some(items: list[str]) -> str:
    shown = ", ".join(items[:_SHOWN])
    return shown if len(items) <= _SHOWN else f"{shown} and {len(items) - _SHOWN} more"


def _no_weights(folder: Path) -> str:
    if not folder.is_dir():
        return f"{folder} is not a folder; name one that holds {SINGLE} or {INDEX}"
    pickled = next((p.name for pattern in ("*.bin", "*.pt", "*.pth") for p in sorted(folder.glob(pattern))), None)
    if pickled is not None:
        return (
            f"{folder} holds {pickled}, a pickle, which is not read because it can run code; name a folder with {SINGLE}, "
            f"for example one that save_pretrained(..., safe_serialization=True) of transformers wrote"
        )
    return f"{folder} holds neither {SINGLE} nor {INDEX}; name a folder that holds one of them"
