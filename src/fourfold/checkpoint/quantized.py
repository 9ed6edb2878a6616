"""Matrices in fp8 with a scale for each block, as DeepSeek-V3, Kimi-K2 and Qwen3 are released: value x scale in fp32, to the bit as
transformers has it, computed for the rows that are asked for.

`NAME` [rows, columns] float8_e4m3 stands beside `NAME_scale_inv` [ceil(rows / b0), ceil(columns / b1)], b the `weight_block_size`
of `quantization_config` in config.json. Element (i, j) is value[i, j] * scale_inv[i // b0, j // b1] (DeepSeek-V3, section 3.3).
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fourfold.checkpoint.tensor_file import TensorFile
from fourfold.config.whole_file import bounded

SCALE = "_scale_inv"
FP8 = "F8_E4M3"
_BLOCK = (128, 128)
_SCALE_FORMATS = ("fp64", "fp32", "bf16", "fp16", "F8_E8M0")


def quantization(folder: Path) -> dict[str, Any]:
    """`quantization_config` of the folder's config.json; empty where there is none that can be read."""
    try:
        raw = json.loads(bounded(folder / "config.json"))
        stated = raw.get("quantization_config")
    except (OSError, ValueError, AttributeError, RecursionError):
        return {}
    return stated if isinstance(stated, dict) else {}


class BlockScales:
    """The scales of a folder's fp8 matrices, by the matrix' name."""

    def __init__(self, files: Mapping[str, TensorFile], names: Iterable[str], stated: Mapping[str, Any]) -> None:
        block = stated.get("weight_block_size") or _BLOCK
        good = isinstance(block, (list, tuple)) and len(block) == 2 and all(type(b) is int and b > 0 for b in block)
        self.block: tuple[int, int] = (block[0], block[1]) if good else _BLOCK
        self._files = files
        self._names = {name for name in names if self._fits(name)}

    def _fits(self, name: str) -> bool:
        file, scale = self._files.get(name), self._files.get(name + SCALE)
        if file is None or scale is None or file.dtype(name) != FP8 or scale.dtype(name + SCALE) not in _SCALE_FORMATS:
            return False
        shape = file.shape(name)
        blocks = tuple(-(-size // b) for size, b in zip(shape, self.block, strict=False))
        return len(shape) == 2 and scale.shape(name + SCALE) == blocks

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __len__(self) -> int:
        return len(self._names)

    def read_range(self, name: str, start: int, end: int) -> Tensor:
        """Elements [start, end) of the matrix laid flat, fp32 [end - start]."""
        file = self._files[name]
        columns = file.shape(name)[1]
        first, last = start // columns, -(-end // columns)
        values = file.read_range(name, first * columns, last * columns).view(-1, columns).float()
        scale = self._files[name + SCALE].read(name + SCALE).float()
        rows, blocks = self.block
        of_rows = scale[torch.arange(first, last) // rows]  # [rows that are read, blocks]
        values *= of_rows.repeat_interleave(blocks, dim=1)[:, :columns]
        return values.reshape(-1)[start - first * columns : end - first * columns]
