"""A unit's parameters as one flat buffer whose shards are contiguous ranges."""

from dataclasses import dataclass

from fourfold.layout.mesh import Layout
from fourfold.model.spec import ParameterSpec, Segment

ALIGNMENT_ELEMENTS = 16


@dataclass(frozen=True)
class FlatLayout:
    """Where each parameter of a unit lies in its flat buffer, in elements. The tail up to `padded_numel` is zero.

    Decayed parameters come first: elements below `decayed_numel` are decayed, the rest are not.
    """

    unit: str
    parameters: tuple[ParameterSpec, ...]
    padded_numel: int
    num_shards: int

    @property
    def numel(self) -> int:
        return sum(p.numel for p in self.parameters)

    @property
    def shard_numel(self) -> int:
        return self.padded_numel // self.num_shards

    @property
    def decayed_numel(self) -> int:
        return sum(p.numel for p in self.parameters if p.weight_decay)

    def shard_range(self, index: int) -> tuple[int, int]:
        """Elements [start, end) of the flat buffer that shard `index` holds."""
        return index * self.shard_numel, (index + 1) * self.shard_numel

    def ranges(self) -> list[tuple[ParameterSpec, int, int]]:
        """(parameter, start, end) for every parameter, in elements of the flat buffer."""
        result, offset = [], 0
        for spec in self.parameters:
            result.append((spec, offset, offset + spec.numel))
            offset += spec.numel
        return result


def flat_layouts(segments: tuple[Segment, ...], layout: Layout) -> dict[str, FlatLayout]:
    """Every unit's flat buffer, padded so that the shards of any data-parallel group are whole and aligned."""
    multiple = ALIGNMENT_ELEMENTS * layout.data_degree
    result = {}
    for segment in segments:
        padded = -(-segment.numel // multiple) * multiple
        result[segment.name] = FlatLayout(segment.name, segment.parameters, padded, layout.shard_degree)
    return result
