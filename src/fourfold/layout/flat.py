"""A unit's parameters as one flat buffer whose shards are contiguous ranges, of the part that one model-parallel rank holds."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from fourfold.layout.mesh import Layout
from fourfold.model.local_parameter import LocalParameter, local_parameter
from fourfold.model.spec import Domain, Segment, UnitSpec

ALIGNMENT_ELEMENTS = 16


@dataclass(frozen=True)
class FlatLayout:
    """Where each parameter of a unit lies in its flat buffer, in elements. The tail up to `padded_numel` is zero.

    Decayed parameters come first: elements below `decayed_numel` are decayed, the rest are not. The first `num_matrices`
    parameters, `matrix_numel` elements, are hidden matrices or batches of them. `zero`: the ZeRO stage that has an
    effect on the unit, 0 where no active axis shards it. `shard_axes`, `gradient_axes`: the active axes over which ZeRO shards it,
    and over which its gradient is summed. `sums`: (axis, start, end) of the elements whose gradients every rank along the axis has
    a partial sum of.
    """

    unit: str
    domain: Domain
    parameters: tuple[LocalParameter, ...]
    num_matrices: int
    padded_numel: int
    num_shards: int
    zero: int
    shard_axes: tuple[str, ...]
    gradient_axes: tuple[str, ...]
    sums: tuple[tuple[str, int, int], ...] = ()

    @property
    def numel(self) -> int:
        return sum(p.numel for p in self.parameters)

    @property
    def shard_numel(self) -> int:
        return self.padded_numel // self.num_shards

    @property
    def decayed_numel(self) -> int:
        return sum(p.numel for p in self.parameters if p.weight_decay)

    @property
    def matrix_numel(self) -> int:
        return sum(p.numel for p in self.parameters[: self.num_matrices])

    def shard_range(self, index: int) -> tuple[int, int]:
        """Elements [start, end) of the flat buffer that shard `index` holds."""
        return index * self.shard_numel, (index + 1) * self.shard_numel

    def ranges(self) -> list[tuple[LocalParameter, int, int]]:
        """(parameter, start, end) for every parameter, in elements of the flat buffer."""
        result, offset = [], 0
        for parameter in self.parameters:
            end = offset + parameter.numel
            result.append((parameter, offset, end))
            offset = end
        return result

    def copied_ranges(self) -> tuple[tuple[str, int, int], ...]:
        """(axis, start, end) of the elements that several ranks along a tensor-parallel axis hold alike."""
        return self.ranges_by(_copies)

    def rate_runs(self) -> list[tuple[int, int, bool, float]]:
        """(start, end, whether decayed, factor of the learning rate) of all elements, padding included, alike neighbours
        together."""
        found: list[tuple[int, int, bool, float]] = []
        tail = [(self.numel, self.padded_numel, False, 1.0)]
        own = [(start, end, p.weight_decay, p.spec.lr_scale) for p, start, end in self.ranges()]
        for start, end, decayed, scale in own + tail:
            if found and found[-1][2:] == (decayed, scale):
                start = found.pop()[0]
            found.append((start, end, decayed, scale))
        return found

    def ranges_by(self, axis_of: Callable[[LocalParameter], str | None]) -> tuple[tuple[str, int, int], ...]:
        """(axis, start, end) of the parameters that have an axis, neighbours of one axis together."""
        found: list[tuple[str, int, int]] = []
        for parameter, start, end in self.ranges():
            axis = axis_of(parameter)
            if axis is None:
                continue
            if found and found[-1][0] == axis and found[-1][2] == start:
                start = found.pop()[1]
            found.append((axis, start, end))
        return tuple(found)


def _copies(parameter: LocalParameter) -> str | None:
    """The axis along which ranks hold the same part of a parameter."""
    if parameter.spec.kv_heads:
        return "tp_copy"
    return "tp" if parameter.spec.tensor_dim is None else None


def flat_layout(unit: UnitSpec, layout: Layout) -> FlatLayout:
    """The flat buffer of a unit's local part, padded so that the shards of any data-parallel group are whole and aligned."""
    parameters = tuple(local_parameter(spec, unit.domain, layout.degree) for spec in unit.parameters)
    replicas, shards = layout.domain_degrees(unit.domain)
    multiple = ALIGNMENT_ELEMENTS * replicas * shards
    padded = -(-sum(p.numel for p in parameters) // multiple) * multiple
    flat = FlatLayout(
        unit.name,
        unit.domain,
        parameters,
        len(unit.matrices),
        padded,
        num_shards=shards if layout.zero > 0 else 1,
        zero=layout.zero if shards > 1 else 0,
        shard_axes=layout.shard_axes(unit.domain),
        gradient_axes=layout.gradient_axes(unit.domain),
    )
    return (
        replace(flat, sums=flat.ranges_by(lambda each: _summed_over(each, flat.domain, layout)))
        if layout.tp > 1
        else flat
    )


def shard_index(layout: Layout, flat: FlatLayout, rank: int) -> int:
    """The index of the rank's shard of the unit."""
    return layout.group_of(rank, flat.shard_axes).index(rank) if flat.zero > 0 else 0


def flat_layouts(segments: Iterable[Segment], layout: Layout) -> dict[str, FlatLayout]:
    """Every unit's flat buffer, by unit name."""
    return {unit.name: flat_layout(unit, layout) for segment in segments for unit in segment.own}


def _summed_over(parameter: LocalParameter, domain: Domain, layout: Layout) -> str | None:
    """The tensor-parallel axis over which a parameter's gradient is a partial sum on every rank."""
    spec = parameter.spec
    if domain == "expert" or layout.tp == 1:
        return None
    if spec.kv_heads:
        return "tp_copy" if layout.tp_copy > 1 else None
    if spec.summed == "always" or (spec.summed == "sequence" and layout.sequence_parallel):
        return "tp"
    return None
