"""The mesh of ranks, a box with axes `pp, dp_replicate, dp_shard, cp, tp` (tp innermost), and the layout on it."""

from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Literal

AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
DATA_AXES = ("dp_replicate", "dp_shard")
Recompute = Literal["none", "selective", "full"]


@dataclass(frozen=True)
class Layout:
    """Degrees of every axis and how a rank's step is arranged, complete and checked (`resolve_layout` makes it).

    `recompute`: one policy a segment, in forward order. `global_sequences` = num_microbatches x microbatch_sequences x
    dp_replicate x dp_shard.
    """

    pp: int
    dp_replicate: int
    dp_shard: int
    cp: int
    tp: int
    zero: int
    schedule: str
    microbatch_sequences: int
    num_microbatches: int
    sequence_length: int
    recompute: tuple[Recompute, ...]
    prefetch: int

    @property
    def world_size(self) -> int:
        return prod(self.degree(axis) for axis in AXES)

    @property
    def data_degree(self) -> int:
        """Ranks that read different rows of the global batch."""
        return self.dp_replicate * self.dp_shard

    @property
    def shard_degree(self) -> int:
        """Ranks over which optimizer state is split: 1 for plain data parallelism."""
        return self.dp_shard if self.zero > 0 else 1

    def degree(self, axis: str) -> int:
        return int(getattr(self, axis))

    def group_size(self, axes: tuple[str, ...]) -> int:
        return prod(self.degree(axis) for axis in axes)

    def active(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        """Those of the axes along which there is more than one rank."""
        return tuple(axis for axis in axes if self.degree(axis) > 1)

    def coordinates(self, rank: int) -> dict[str, int]:
        """Position of a rank on every axis."""
        result = {}
        for axis in reversed(AXES):
            rank, result[axis] = divmod(rank, self.degree(axis))
        return {axis: result[axis] for axis in AXES}

    def rank_of(self, coordinates: dict[str, int]) -> int:
        rank = 0
        for axis in AXES:
            rank = rank * self.degree(axis) + coordinates[axis]
        return rank

    def group_of(self, rank: int, axes: tuple[str, ...]) -> tuple[int, ...]:
        """The ranks that differ from `rank` on these axes alone, in mesh order."""
        own = self.coordinates(rank)
        choices = [range(self.degree(axis)) if axis in axes else (own[axis],) for axis in AXES]
        return tuple(self.rank_of(dict(zip(AXES, point, strict=True))) for point in product(*choices))

    def groups(self, axes: tuple[str, ...]) -> list[tuple[int, ...]]:
        """All groups along these axes; together they hold every rank once."""
        return sorted({self.group_of(rank, axes) for rank in range(self.world_size)})

    def data_rank(self, rank: int) -> int:
        own = self.coordinates(rank)
        return own["dp_replicate"] * self.dp_shard + own["dp_shard"]

    def rows(self, rank: int, microbatch: int) -> range:
        """Rows of the global batch that this rank reads as its `microbatch`."""
        start = (self.data_rank(rank) * self.num_microbatches + microbatch) * self.microbatch_sequences
        return range(start, start + self.microbatch_sequences)


def axes_name(axes: tuple[str, ...]) -> str:
    """`("dp_replicate", "dp_shard")` -> `dp_replicate+dp_shard`, the name of a group in programs and ledgers."""
    return "+".join(axes)
