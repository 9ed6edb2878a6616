"""The global gradient norm. Each element of each parameter counts once, however many ranks hold it."""

from collections.abc import Mapping

import torch
from torch import Tensor

from fourfold.layout import Layout
from fourfold.layout.mesh import AXES
from fourfold.program.totals import norm_axes
from fourfold.program.view import RankView
from fourfold.runtime.units import Unit

_ROW = 1024


class GradientNorm:
    """This rank's share of the squared norm. The sum over the ranks of `norm_axes` is that of the full gradient."""

    def __init__(self, view: RankView, units: Mapping[str, Unit], rank: int, device: torch.device) -> None:
        self._device = device
        shared = SharedOnce(view, units, rank)
        self._parts = [(unit, ranges) for name, unit in units.items() if (ranges := shared.ranges(name))]

    def sum_of_squares(self) -> Tensor:
        """The squared norm of the reduced gradients, a scalar in fp64."""
        squares = [squared_norm(unit.grad_shard[start:end]) for unit, ranges in self._parts for start, end in ranges]
        if not squares:
            return torch.zeros((), dtype=torch.float64, device=self._device)
        return torch.stack(squares).sum()


class SharedOnce:
    """The ranges of this rank's shards that count, of elements that several ranks hold: those of the first rank in a group of
    `norm_axes`."""

    def __init__(self, view: RankView, units: Mapping[str, Unit], rank: int) -> None:
        place = view.spec.layout.coordinates(rank)
        self._ranges = {
            name: [each for each in _counted_ranges(unit, place) if each[0] < each[1]]
            for name, unit in units.items()
            if is_counted(view, name, rank)
        }

    def ranges(self, unit: str) -> list[tuple[int, int]]:
        """(start, end) in elements of the unit's shard."""
        return self._ranges.get(unit, [])


def squared_norm(gradient: Tensor) -> Tensor:
    """The squared norm of a flat tensor, a scalar in fp64. Rows first: one fp32 sum over millions of elements is off by 1e-4."""
    dtype = torch.float32 if gradient.dtype == torch.bfloat16 else gradient.dtype
    rows_end = gradient.numel() // _ROW * _ROW
    rows = torch.linalg.vector_norm(gradient[:rows_end].view(-1, _ROW), dim=1, dtype=dtype)
    rest = torch.linalg.vector_norm(gradient[rows_end:], dtype=dtype)
    return rows.double().square().sum() + rest.double().square()


def is_counted(view: RankView, unit: str, rank: int) -> bool:
    """Whether this rank is the first of those in its norm group that hold the same reduced gradient of the unit."""
    layout, flat = view.spec.layout, view.flats[unit]
    if unit == view.tied_unit and view.pp_rank != layout.tied_ranks[0]:
        return False
    keys: tuple[str, ...] = ("pp", "tp") if flat.domain == "dense" else ("pp", "ep", "etp")
    if flat.zero > 0:
        keys += ("dp_shard", "cp") if flat.domain == "dense" else ("edp",)
    own = _place(layout, rank, keys)
    members = layout.group_of(rank, norm_axes(layout) or AXES[:1])
    return all(member >= rank or _place(layout, member, keys) != own for member in members)


def _place(layout: Layout, rank: int, keys: tuple[str, ...]) -> tuple[int, ...]:
    coordinates = layout.coordinates(rank)
    return tuple(coordinates[key] for key in keys)


def _counted_ranges(unit: Unit, coordinates: Mapping[str, int]) -> list[tuple[int, int]]:
    """Ranges of the shard, without elements that an earlier rank along a tensor-parallel axis also has."""
    low, high = unit.flat.shard_range(unit.index)
    ranges, start = [], low
    for axis, first, last in unit.flat.copied_ranges():
        if coordinates[axis] == 0 or unit.flat.domain == "expert":
            continue
        ranges.append((start - low, max(min(first, high), start) - low))
        start = max(start, min(last, high))
    return [*ranges, (start - low, high - low)]
