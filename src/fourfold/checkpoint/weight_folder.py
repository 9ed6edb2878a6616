"""Reading a Hugging Face folder's weights: all of it is checked when it is opened, tensors are read when asked for."""

import json
import re
from collections.abc import Iterable
from pathlib import Path

from torch import Tensor

from fourfold.checkpoint.tensor_file import TensorFile
from fourfold.config import RunFailure, UserError
from fourfold.model.spec import Segment

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_\-][A-Za-z0-9_.\-]*\.safetensors")
_READABLE = ("fp64", "fp32", "bf16", "fp16")
_IGNORED = re.compile(r".*\.rotary_emb\.inv_freq")
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
        if (folder / SINGLE).exists():
            file = TensorFile(folder / SINGLE, self._advice)
            self._files = dict.fromkeys(file.names, file)
        elif (folder / INDEX).exists():
            self._open_index()
        else:
            raise UserError(_no_weights(folder))

    def names(self) -> list[str]:
        """Every tensor's Hugging Face name."""
        return list(self._files)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._files[name].shape(name)

    def get(self, name: str) -> Tensor:
        """The whole tensor, in the format that the file holds."""
        return self._files[name].read(name)

    def range(self, name: str, start: int, end: int) -> Tensor:
        """Elements [start, end) of the tensor laid flat, [end - start]; only the rows that hold them are read."""
        return self._files[name].read_range(name, start, end)

    def check_against(self, segments: Iterable[Segment]) -> None:
        """Raises one `UserError` that names all tensors which a model of these segments misses or cannot take.

        `lm_head.weight` is ignored where the model ties its embeddings, and so are the `inv_freq` buffers of old exports.
        """
        wanted = {spec.name: spec.shape for segment in segments for spec in segment.parameters}
        problems = []
        if missing := [name for name in wanted if name not in self._files]:
            problems.append(f"missing: {_some(missing)}")
        ignored = {"lm_head.weight"} - wanted.keys()
        if unexpected := [n for n in self._files if n not in wanted and n not in ignored and not _IGNORED.fullmatch(n)]:
            problems.append(f"unexpected: {_some(unexpected)}")
        present = [name for name in wanted if name in self._files]
        shapes = {name: self.shape(name) for name in present}
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
