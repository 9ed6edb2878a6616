"""One rank's shard of its part of a unit: what a checkpoint saves and fills."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from fourfold.checkpoint.boxes import Box
from fourfold.layout import FlatLayout, Layout

MASTER = "master"


@dataclass(frozen=True)
class UnitShard:
    """Shard `index` of the flat buffer of this rank's part of a unit.

    `tensors`: by role (`master`, and the names of the optimizer states), each [flat.shard_numel], on any device. `without`: by
    role, how many of the unit's first parameters have no such elements; the tensor lacks those of them in the shard. `coordinates`:
    the rank's, by axis (`Layout.coordinates`); they say which part of a split parameter it has. `copy`: (which, of how many) of the
    data-parallel ranks that hold the same shard; each writes an equal piece of it. `is_writer` False: another rank holds the same
    piece of the same part and writes it.
    """

    flat: FlatLayout
    index: int
    tensors: Mapping[str, Tensor]
    coordinates: Mapping[str, int] = field(default_factory=dict)
    is_writer: bool = True
    copy: tuple[int, int] = (0, 1)
    without: Mapping[str, int] = field(default_factory=dict)

    def first(self, role: str) -> int:
        """The first element of the unit's part that has this role."""
        return sum(parameter.numel for parameter in self.flat.parameters[: self.without.get(role, 0)])

    def held(self, role: str, start: int, end: int) -> Tensor:
        """The tensor's elements [start, end) of the unit's part, without those that have not this role."""
        begin = max(self.first(role), self.flat.shard_range(self.index)[0])
        return self.tensors[role][max(0, start - begin) : max(0, end - begin)]

    @property
    def num_pieces(self) -> int:
        """Pieces of the part's flat buffer, each written by one rank."""
        return self.flat.num_shards * self.copy[1]

    @property
    def piece(self) -> int:
        """Which of them this rank writes."""
        return self.index * self.copy[1] + self.copy[0]

    def pieces(self) -> dict[str, Tensor]:
        """The piece of each role that this rank writes, [padded_numel / num_pieces] or what of it has this role. Raises
        `ValueError` for a tensor of another size."""
        start, end = self.flat.shard_range(self.index)
        for role, tensor in self.tensors.items():
            wanted = max(0, end - max(start, self.first(role)))
            if tuple(tensor.shape) != (wanted,):
                raise ValueError(f"{self.flat.unit}.{role} has shape {tuple(tensor.shape)}, not ({wanted},)")
        size = self.flat.shard_numel // self.copy[1]
        start += self.copy[0] * size
        return {role: self.held(role, start, start + size) for role in self.tensors}

    @property
    def part(self) -> str:
        return part_name(self.flat, self.coordinates)

    @property
    def boxes(self) -> tuple[Box, ...]:
        """This rank's part of every parameter of the unit, in their order in the flat buffer."""
        return tuple(parameter.box(self.coordinates) for parameter in self.flat.parameters)


def part_axes(flat: FlatLayout) -> tuple[str, ...]:
    """The axes along which ranks hold different parts of a unit: of `tp`, or of `ep` and `etp`."""
    split = {axis for parameter in flat.parameters for _, axis, _ in parameter.splits}
    if "tp_head" in split:  # fewer key and value heads than ranks: a rank's other parameters differ all the same
        split.add("tp")
    return tuple(axis for axis in ("tp", "ep", "etp") if axis in split)


def part_name(flat: FlatLayout, coordinates: Mapping[str, int]) -> str:
    """`tp1`, `ep0.etp1`, or the empty text where a unit is not split."""
    return ".".join(f"{axis}{coordinates[axis]}" for axis in part_axes(flat))


def data_copy(flat: FlatLayout, layout: Layout, rank: int) -> tuple[int, int]:
    """(which, of how many) of the data-parallel ranks that hold the same shard of the same part of a unit."""
    own, which, count = layout.coordinates(rank), 0, 1
    unsharded = ("dp_shard", "cp") if flat.domain == "dense" else ("edp",)
    for axis in ("dp_replicate", *(unsharded if flat.num_shards == 1 else ())):
        which, count = which * layout.degree(axis) + own[axis], count * layout.degree(axis)
    return which, count


def is_writer(flat: FlatLayout, layout: Layout, rank: int) -> bool:
    """Whether `rank` is the first of the model-parallel ranks that hold the same part of a unit.

    The first stage writes a tied embedding, although the last stage holds a replica.
    """
    own = layout.coordinates(rank)
    copies = [axis for axis in (("tp",) if flat.domain == "dense" else ("ep", "etp")) if axis not in part_axes(flat)]
    replica = flat.unit == "embed" and own["pp"] != layout.tied_ranks[0]
    return not replica and not any(own[axis] for axis in copies)


def is_first_of_stage(layout: Layout, rank: int) -> bool:
    """Whether `rank` writes the extra tensors of its pipeline coordinate, which all its ranks hold alike."""
    own = layout.coordinates(rank)
    return not any(own[axis] for axis in ("dp_replicate", "dp_shard", "cp", "tp"))


def unit_shard(
    flat: FlatLayout,
    index: int,
    tensors: Mapping[str, Tensor],
    layout: Layout,
    rank: int,
    without: Mapping[str, int] | None = None,
) -> UnitShard:
    """The part of a unit that `rank` holds: it saves its piece of this part, and fills all of it on loading."""
    coordinates, copy = layout.coordinates(rank), data_copy(flat, layout, rank)
    return UnitShard(flat, index, tensors, coordinates, is_writer(flat, layout, rank), copy, without or {})


def tensor_name(unit: str, role: str) -> str:
    """The tensor's name in a rank's file: `b0.exp_avg`."""
    return f"{unit}.{role}"


def file_metadata(step: int, held: Mapping[str, tuple[str, int]]) -> dict[str, str]:
    """The note inside a rank's file on its own place: its step, and the (part, index) of each unit's shard in it."""
    return {"step": str(step), "shards": json.dumps(held, sort_keys=True)}


def places(shards: Mapping[str, UnitShard]) -> dict[str, tuple[str, int]]:
    """(part, index) of each unit's shard."""
    return {unit: (shard.part, shard.piece) for unit, shard in shards.items()}


def extra_name(name: str) -> str:
    """An extra tensor's name in a rank's file: `extra/b3.balance_bias`."""
    return f"extra/{name}"


def balance_bias_extra(layer: int) -> str:
    """The name of a router's balancing bias among the extra tensors."""
    return f"b{layer}.balance_bias"
