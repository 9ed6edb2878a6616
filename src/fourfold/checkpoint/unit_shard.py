"""One rank's part of one unit: what a checkpoint saves and fills."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from fourfold.layout.flat import FlatLayout

MASTER = "master"


@dataclass(frozen=True)
class UnitShard:
    """Shard `index` of a unit's flat buffer.

    `tensors`: by role (`master`, `exp_avg`, `exp_avg_sq`), each [flat.shard_numel], on any device.
    """

    flat: FlatLayout
    index: int
    tensors: Mapping[str, Tensor]


def tensor_name(unit: str, role: str) -> str:
    """The tensor's name in a rank's file: `b0.exp_avg`."""
    return f"{unit}.{role}"
