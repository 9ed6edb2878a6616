"""Reading a Hugging Face folder's weights: all of it is checked when it is opened, tensors are read when asked for.

Where weights do not fit a model, advice names a change that makes them fit, by what is missing and what is there.

Training alone begins from one: `fill_from_folder` fills a rank's shard of its part of a unit.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fourfold.checkpoint.boxes import Box, box_numel, box_shape
from fourfold.checkpoint.quantized import BlockScales, quantization
from fourfold.checkpoint.spare_tensors import Reader, Spare, examine, is_known
from fourfold.checkpoint.tensor_file import TensorFile
from fourfold.config import ModelConfig, ModelSection, RunFailure, UserError
from fourfold.config.errors import shortened
from fourfold.huggingface import FAMILIES, resolve_model
from fourfold.huggingface.tensors import Form, TensorSlice, balance_biases, module_of, num_modules, present_forms
from fourfold.layout import FlatLayout
from fourfold.model.spec import build_segments

_BLOCK = re.compile(r"(?:model\.layers|(?:transformer\.)?h)\.(\d+)\.")
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_\-][A-Za-z0-9_.\-]*\.safetensors")
_READABLE = ("fp64", "fp32", "bf16", "fp16")
_SHOWN = 4


def advice(
    folder: Path,
    model: ModelConfig | None,
    present: Collection[str],
    missing: Sequence[str],
    unexpected: Sequence[str],
    unreadable: Sequence[str],
    quantization: Mapping[str, Any],
) -> str:
    """One sentence with a cure. `model`: the model that is built, None where it is not known; `present`: names of all tensors."""
    if unreadable or quantization:
        method = quantization.get("quant_method")
        stated = (
            f"config.json has quantization_config with quant_method = {shortened(method)}"
            if quantization
            else "they are quantized"
        )
        load = "AutoModelForCausalLM.from_pretrained(FOLDER).dequantize()"
        if method == "mxfp4":
            load = (
                "AutoModelForCausalLM.from_pretrained(FOLDER, quantization_config=Mxfp4Config(dequantize=True), "
                "dtype=torch.bfloat16)"
            )
        return (
            f"{stated}; read are fp64, fp32, bf16, fp16, and float8_e4m3 with NAME_scale_inv for each block: name a folder in "
            f"bf16, for example the copy that transformers' {load}.save_pretrained(NEW) makes"
        )
    if list(missing) == ["lm_head.weight"]:
        return "these weights tie the embeddings: model.tie_embeddings = true"
    if model is not None and (fix := _layers(model, present, missing, unexpected)):
        return fix
    if model is not None and _describes(folder, model):
        family = FAMILIES.get(model.family)
        return (
            f"the config.json beside them describes this model (model_type = {family.name if family else model.family!r}), so one "
            "of both is not what it was saved with: correct config.json, or download or export the folder again"
        )
    return f'build the model from the same folder: model.hf = "{folder}"'


def _layers(
    model: ModelConfig, present: Collection[str], missing: Sequence[str], unexpected: Sequence[str]
) -> str | None:
    """The cure where whole blocks or MTP modules are missing, or are too many."""
    modules = num_modules(present, model.num_layers)
    if missing and not unexpected and all(module_of(name, model.num_layers) is not None for name in missing):
        return (
            f"the folder has the tensors of {modules} MTP modules and the model has {model.mtp_layers} (num_nextn_predict_layers): "
            f"state model.mtp_layers = {modules}"
        )
    blocks = 1 + max((int(match[1]) for name in present if (match := _BLOCK.match(name))), default=-1) - modules
    where = [int(match[1]) for name in (*missing, *unexpected) if (match := _BLOCK.match(name))]
    if len(where) == len(missing) + len(unexpected) and where and min(where) >= min(blocks, model.num_layers) > 0:
        key = FAMILIES[model.family].their_name("num_layers") if model.family in FAMILIES else "num_hidden_layers"
        return (
            f"the folder has the tensors of {blocks} blocks and the model has {model.num_layers}: state model.num_layers = "
            f"{blocks}, or correct {key} in config.json"
        )
    return None


def _describes(folder: Path, model: ModelConfig) -> bool:
    try:
        own = resolve_model(ModelSection(hf=str(folder), mtp_layers=model.mtp_layers, dropout=0))
    except UserError:
        return False
    return own.family == model.family and all(
        getattr(own, key) == getattr(model, key) for key in ("num_layers", "hidden_size", "vocab_size", "ffn_size")
    )


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
        self._scales = BlockScales({}, (), {})
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
        first, last = start - piece.start, end - piece.start
        if piece.axes:
            full = self.range_on_disk(piece.name, piece.offset, piece.offset + prod(piece.part))
            full = full.view([piece.part[axis] for axis in piece.axes])
            order = sorted(range(len(piece.axes)), key=piece.axes.__getitem__)
            return full.permute(order).reshape(-1)[first:last]
        if piece.columns is None:
            return self.range_on_disk(piece.name, piece.offset + first, piece.offset + last)
        rows = (piece.end - piece.start) // piece.shape[0]
        full = self.range_on_disk(piece.name, 0, prod(piece.shape)).view(piece.shape)
        full = full[:, piece.columns : piece.columns + rows]
        return full.t().reshape(-1)[first:last]

    def balance_bias(self, layer: int) -> Tensor | None:
        """The balancing bias of a block's router, [experts], or None where the folder has none."""
        name = next((each for each in balance_biases(layer) if each in self._files), None)
        return None if name is None else self.get(name)

    def check_against(self, model: ModelConfig) -> tuple[str, ...]:
        """Raises one `UserError` that names all tensors which the model misses or cannot take. Returns what else there is to say.

        From then on parameters are read by their names in memory, whichever form they have on disk. A tensor that no parameter
        takes must be a copy of what is known (`checkpoint/spare_tensors.py`), or belong to an MTP module that the model has not.
        """
        specs = [spec for segment in build_segments(model) for spec in segment.parameters]
        self._shapes = {spec.name: spec.shape for spec in specs}
        on_disk = {name: tuple(file.shape(name)) for name, file in self._files.items()}
        self._forms = present_forms(self._shapes, on_disk, model.family)
        wanted = {piece.name: piece.shape for form in self._forms.values() for piece in form}
        problems = []
        if missing := [name for name in wanted if name not in self._files]:
            problems.append(f"missing: {_some(missing)}")
        present = [name for name in wanted if name in self._files]
        stated = quantization(self.folder)
        self._scales = BlockScales(self._files, present, stated)
        shapes = {name: self._files[name].shape(name) for name in present}
        if wrong := [f"{n} {list(shapes[n])} instead of {list(wanted[n])}" for n in present if shapes[n] != wanted[n]]:
            problems.append(f"wrong shape: {_some(wrong)}")
        formats = {name: self._files[name].dtype(name) for name in present}
        strange = {name: kind for name, kind in formats.items() if kind not in _READABLE and name not in self._scales}
        if unreadable := [f"{name} as {kind}" for name, kind in strange.items()]:
            problems.append(f"number format other than {', '.join(_READABLE)}: {_some(unreadable)}")
        if missing or wrong or unreadable:  # copies cannot be compared with what is not there
            spare = Spare(unexpected=[name for name in self._files if not self._belongs(name, wanted, model)])
        else:
            reader = Reader(self.shape_on_disk, self.range_on_disk, self.range, self._shapes)
            others = [name for name in self._files if name not in wanted]
            spare = examine(others, self._files, model, {name for name in present if name in self._scales}, reader)
        if spare.unexpected:
            problems.append(f"unexpected: {_some(spare.unexpected)}")
        if problems:
            quantized = stated if unreadable or (missing and stated) else {}
            fix = advice(self.folder, model, self._files, missing, spare.unexpected, unreadable, quantized)
            raise UserError(f"the weights in {self.folder} do not fit this model: {'; '.join(problems)}; {fix}")
        if spare.different:
            raise UserError(
                f"the weights in {self.folder} hold what this model would not use: {_some(spare.different)}; "
                f"{_cure(spare.different)}"
            )
        return self._notes(model, spare, stated)

    def _belongs(self, name: str, wanted: Mapping[str, object], model: ModelConfig) -> bool:
        """Whether a tensor is a parameter's, or a known kind of spare one."""
        module = module_of(name, model.num_layers)
        left_out = module is not None and model.mtp_layers <= module < num_modules(self._files, model.num_layers)
        return name in wanted or left_out or is_known(name, model)

    def _notes(self, model: ModelConfig, spare: Spare, stated: Mapping[str, Any]) -> tuple[str, ...]:
        notes = []
        if spare.left_out:
            modules = num_modules(self._files, model.num_layers)
            notes.append(
                f"{len(spare.left_out)} tensors of MTP modules in {self.folder} are not read ({_some(spare.left_out)}): the model "
                f"has model.mtp_layers = {model.mtp_layers}; model.mtp_layers = {modules} reads them"
            )
        read = {file.path.name for file in self._files.values()}
        if others := sorted(path.name for path in self.folder.glob("*.safetensors") if path.name not in read):
            notes.append(f"other files of {self.folder} are not read: {_some(others)}")
        if len(self._scales):
            method = f" (quantization_config: {shortened(stated['quant_method'])})" if "quant_method" in stated else ""
            notes.append(
                f"{len(self._scales)} matrices in fp8{method} are read as value x scale_inv, and saved without"
            )
        return tuple(notes)

    def shape_on_disk(self, name: str) -> tuple[int, ...]:
        return self._files[name].shape(name)

    def range_on_disk(self, name: str, start: int, end: int) -> Tensor:
        """Elements [start, end) of a tensor on disk laid flat, its scale applied where it has one."""
        if name in self._scales:
            return self._scales.read_range(name, start, end)
        return self._files[name].read_range(name, start, end)

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
        for each in opened.values():  # transformers loads what the index leaves out too
            self._files = {**dict.fromkeys(each.names, each), **self._files}


def _cure(different: list[str]) -> str:
    if different[0].startswith("lm_head.weight"):
        return "state model.tie_embeddings = false, or correct tie_word_embeddings in config.json"
    if "embed_tokens" in different[0] or "shared_head" in different[0]:
        return "a module with an embedding or a head of its own is not supported; model.mtp_layers = 0 leaves it out"
    return "correct config.json (rope_theta, rope_scaling), or save the folder without these tensors"


def _some(items: list[str]) -> str:
    shown = ", ".join(item if item.isprintable() else ascii(item) for item in items[:_SHOWN])
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


def fill_from_folder(
    folder: WeightFolder,
    flat: FlatLayout,
    index: int,
    coordinates: Mapping[str, int],
    out: Tensor,
    advance: Callable[[], None] = lambda: None,
) -> None:
    """Fills `out` [flat.shard_numel] with shard `index` of the part of the rank at `coordinates`; the padding is 0.

    `folder` was checked against the model (`WeightFolder.check_against`). Only the tensors and rows that hold the shard are read.
    `advance` is called after each parameter.
    """
    out.zero_()
    shard_start, shard_end = flat.shard_range(index)
    for parameter, start, _ in flat.ranges():
        box = parameter.box(coordinates)
        low, high = max(start, shard_start), min(start + box_numel(box), shard_end)
        if low < high:
            values = folder.box(parameter.name, box, low - start, high - start)
            out[low - shard_start : high - shard_start] = values.to(out)
            advance()
