"""Groups and pipeline coordinates, as the coordinates of all ranks say them, in every order of the axes."""

from dataclasses import replace
from itertools import combinations

import pytest

from fourfold.config.layout_section import Outermost
from fourfold.layout.mesh import ORDERS, VIEWS, Layout
from tests.support.programs import make_spec

SIZES = [
    {"pp": 2, "dp_replicate": 3, "dp_shard": 2, "cp": 2, "tp": 2, "cp_ulysses": 2},
    {"pp": 3, "dp_replicate": 2, "dp_shard": 4, "cp": 1, "tp": 2, "ep": 2, "tp_head": 2},
    {"pp": 2, "dp_replicate": 1, "dp_shard": 3, "cp": 4, "tp": 1, "ep": 6, "cp_ulysses": 2},
]


def _layout(sizes: dict[str, int], outermost: Outermost) -> Layout:
    return replace(make_spec().layout, **sizes, outermost=outermost)


@pytest.mark.parametrize("outermost", ORDERS)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_members_differ_on_the_axes_of_their_group_alone(sizes: dict[str, int], outermost: Outermost) -> None:
    layout = _layout(sizes, outermost)
    coordinates = [layout.coordinates(rank) for rank in range(layout.world_size)]
    assert [layout.pp_rank(rank) for rank in range(layout.world_size)] == [each["pp"] for each in coordinates]
    for view in VIEWS:
        for axes in (each for number in (1, 2) for each in combinations(view, number)):
            others = [axis for axis in view if axis not in axes]
            for rank in range(0, layout.world_size, 7):
                own = coordinates[rank]
                alike = [r for r, each in enumerate(coordinates) if all(each[axis] == own[axis] for axis in others)]
                assert layout.group_of(rank, axes) == tuple(alike), (rank, axes)
