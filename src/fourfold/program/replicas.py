"""The checksum pass: before the update, ranks that hold the same values compare one checksum of them.

Where it stands, an update has not yet changed what this step computed with: what a bit flip has spoilt by then has not spread to
what the step leaves behind.
"""

from collections.abc import Iterator
from typing import NamedTuple

from fourfold.layout import FlatLayout
from fourfold.model.work import Elementwise, Work, sends
from fourfold.program.buffers import values
from fourfold.program.instruction import Instruction, Op
from fourfold.program.pattern import Pattern, Step
from fourfold.program.sizes import core_buffer_bytes
from fourfold.program.totals import SCALAR_BYTES, over
from fourfold.program.view import RankView


class Replica(NamedTuple):
    """A buffer that the ranks along `axes` hold alike; `ranges`, in elements of the unit's flat buffer: these alone."""

    axes: tuple[str, ...]
    buffer: str
    flat: FlatLayout
    ranges: tuple[tuple[int, int], ...] = ()

    def bytes(self, view: RankView) -> int:
        """Size of what is compared; of ranges in a shard an even share."""
        size, numel = core_buffer_bytes(view, self.buffer), sum(end - start for start, end in self.ranges)
        return size * numel // self.flat.padded_numel if self.ranges else size


def replicas(view: RankView) -> list[Replica]:
    """All of a pipeline rank. Data-parallel ranks have parameters alike and, as far as ZeRO does not shard them, optimizer states;
    tensor-parallel ranks norms and the like; the first and the last stage a tied embedding: there the parameters stand for all."""
    active = view.spec.layout.active
    found = [replica for flat in view.flats.values() for replica in _of_unit(view, flat)]
    return [replica for replica in found if replica.axes and active(replica.axes) == replica.axes]


def _of_unit(view: RankView, flat: FlatLayout) -> Iterator[Replica]:
    alike = tuple(axis for axis in flat.gradient_axes if flat.zero == 0 or axis not in flat.shard_axes)
    own = [f"master/{flat.unit}"] if view.spec.mixed else []
    states = [] if view.spec.layout.offload_optimizer else [*own, f"optimizer/{flat.unit}"]
    yield Replica(flat.shard_axes if flat.zero in (1, 2) else alike, values(flat), flat)
    for buffer in states:
        yield Replica(alike, buffer, flat)
    if flat.domain == "dense":
        for axis in ("tp", "tp_copy"):
            ranges = tuple((start, end) for along, start, end in flat.copied_ranges() if along == axis)
            if ranges:
                yield Replica((axis,), values(flat), flat, ranges)
    if flat.unit == view.tied_unit:
        yield Replica(("tied",), values(flat), flat)


def insert_checksum(steps: list[Step], view: RankView) -> list[Step]:
    """CHECKSUM before the gradient norm."""
    check = checksum_instruction(view) if view.spec.checksum else None
    if check is None:
        return steps
    norm = next(index for index, (pattern, _) in enumerate(steps) if pattern.op is Op.CLIP_NORM)
    return [*steps[:norm], (Pattern.of_first(check), None), *steps[norm:]]


def checksum_instruction(view: RankView) -> Instruction | None:
    """The comparison of one pipeline rank: a small all-gather for each group of ranks; None where it holds nothing that others hold
    too."""
    found = replicas(view)
    if not found:
        return None
    size = sum(replica.bytes(view) for replica in found)
    gathers = [
        over(view.spec.layout, "all_gather", axes, SCALAR_BYTES * view.spec.layout.group_size(axes))
        for axes in dict.fromkeys(replica.axes for replica in found)
    ]
    return Instruction(
        Op.CHECKSUM,
        reads=tuple(dict.fromkeys(replica.buffer for replica in found)),
        work=Work((Elementwise(size, size), *sends(*gathers).items)),
    )
