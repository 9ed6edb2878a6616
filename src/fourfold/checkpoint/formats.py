"""States that a checkpoint holds in other formats than a run: they are read as they were saved, and converted.

Master weights in halves are the same fp32 numbers; a state in bf16 becomes one in fp32, or is rounded to the nearest.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from fourfold.checkpoint.tensor_file import dtype_name
from fourfold.checkpoint.unit_shard import MASTER, UnitShard
from fourfold.model import halves
from fourfold.model.halves import REMAINDER, WEIGHTS
from fourfold.model.torch_operations import torch_dtype

HALVES = {WEIGHTS: "bf16", REMAINDER: "int16"}
"""The roles of master weights in halves, with their formats."""
NUMBERS = "fp32"
"""The format of the numbers that halves make up."""


def converts(saved: Mapping[str, str], role: str, dtype: str) -> bool:
    """Whether a role of a unit comes in this format from what was saved, formats by role, in whatever formats."""
    found = saved.get(role)
    if found == dtype:
        return True
    if role == MASTER:
        return dtype == NUMBERS and HALVES.items() <= saved.items()
    if role in HALVES:
        return saved.get(MASTER) == NUMBERS
    return found is not None and "bf16" in (found, dtype)


def as_saved(shard: UnitShard, saved: Mapping[str, str]) -> tuple[UnitShard, Callable[[], None]]:
    """The shard with tensors in the formats that were saved, and what brings their values into its own."""
    tensors, finish = dict[str, Tensor](), list[Callable[[], None]]()

    own = shard.tensors
    for role, tensor in own.items():
        if saved.get(role) == dtype_name(tensor.dtype):
            tensors[role] = tensor
        elif role == MASTER:
            tensors.update({half: torch.empty(tensor.numel(), dtype=torch_dtype(HALVES[half])) for half in HALVES})
            finish.append(partial(_join, tensor, tensors[WEIGHTS], tensors[REMAINDER]))
        elif role == WEIGHTS:
            tensors[MASTER] = torch.empty(tensor.numel(), dtype=torch.float32)
            finish.append(partial(_split, tensors[MASTER], tensor, own[REMAINDER]))
        elif role != REMAINDER:
            tensors[role] = torch.empty(tensor.numel(), dtype=torch_dtype(saved[role]))
            finish.append(partial(_copy, tensor, tensors[role]))

    def convert() -> None:
        for each in finish:
            each()

    return replace(shard, tensors=tensors), convert


def _copy(out: Tensor, values: Tensor) -> None:
    out.copy_(values)


def _join(out: Tensor, weights: Tensor, remainders: Tensor) -> None:
    out.copy_(halves.join_halves(weights, remainders))


def _split(numbers: Tensor, weights: Tensor, remainders: Tensor) -> None:
    halves.split_halves(numbers.to(weights.device), weights, remainders)
