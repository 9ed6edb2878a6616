"""NCCL's communicators are connected before the first step, on the rank's own device, in an order in which all get through."""

from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from fourfold.runtime.collectives import make_groups
from fourfold.runtime.parallel import groups_of
from tests.rehearse.layouts import LAYOUTS
from tests.rehearse.rehearsed import layout_spec

SEVERAL = [name for name, (ranks, _) in LAYOUTS.items() if ranks > 1]


def _connected(name: str) -> dict[int, list[tuple[int, ...]]]:
    """By rank, the groups that it connects, in order. Each is told its device where it has several members."""
    spec, _ = layout_spec(name)
    found: dict[int, list[tuple[int, ...]]] = {}
    for rank in range(spec.layout.world_size):
        groups: list[tuple[int, ...]] = []

        def new_group(ranks: list[int], device_id: Any = None, into: Any = groups, **options: Any) -> str:
            assert options["use_local_synchronization"]
            assert (device_id == torch.device("cuda", 3)) == (len(ranks) > 1)
            into.append(tuple(ranks))
            return f"group {ranks}"

        with (
            patch.object(dist, "get_backend", return_value="nccl"),
            patch.object(dist, "get_world_size", return_value=spec.layout.world_size),
            patch.object(torch.cuda, "current_device", return_value=3),
            patch.object(dist, "new_group", new_group),
        ):
            made = make_groups(spec.layout, rank, groups_of(spec), 60.0)
        assert set(made) <= set(groups_of(spec))
        found[rank] = groups
    return found


@pytest.mark.parametrize("name", SEVERAL)
def test_every_rank_gets_through(name: str) -> None:
    """A connection is made when all members have come to it, each being at one connection at a time."""
    left = _connected(name)
    assert any(len(group) > 1 for groups in left.values() for group in groups)
    while any(left.values()):
        fronts = {rank: groups[0] for rank, groups in left.items() if groups}
        ready = {group for rank, group in fronts.items() if all(fronts.get(member) == group for member in group)}
        assert ready, f"nobody gets on: {fronts}"
        for rank, group in fronts.items():
            if group in ready:
                left[rank].pop(0)


@pytest.mark.parametrize("name", [name for name in SEVERAL if LAYOUTS[name][1]["layout"].get("pp", 1) > 1])
def test_a_pipelines_neighbours_have_a_communicator_for_each_direction(name: str) -> None:
    spec, _ = layout_spec(name)
    connected = _connected(name)
    for rank, groups in connected.items():
        pipeline = spec.layout.group_of(rank, ("pp",))
        pairs = [group for group in groups if len(group) == 2 and set(group) <= set(pipeline)]
        assert all(pairs.count(pair) >= 2 for pair in pairs if len(pipeline) > 2)
        assert len(pairs) >= 2
