"""Communicators are as many as the sets of ranks that programs sum over; each is made and called once before the first step, on the
rank's own device, in an order in which all get through."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from fourfold.config import parse_run
from fourfold.huggingface import resolve_model
from fourfold.layout import resolve_layout
from fourfold.program import Program, StepSpec, lower_pipeline, resolve_step
from fourfold.program.communicators import fewest_communicators, num_communicators
from fourfold.runtime.collectives import AxisGroup, bind_groups, make_groups
from fourfold.runtime.first_calls import FirstCall, first_calls, kinds_of
from fourfold.runtime.links import neighbours
from fourfold.runtime.parallel import groups_of
from tests.rehearse.layouts import LAYOUTS, sections
from tests.rehearse.rehearsed import layout_spec
from tests.support.opcodes import SENDS, TRANSFERS
from tests.support.parity_runs import run_table

SEVERAL = [name for name, (ranks, _) in LAYOUTS.items() if ranks > 1]
Communicator = tuple[tuple[int, ...], str]


def programs_of(spec: StepSpec) -> list[tuple[Program, Program]]:
    """By pipeline coordinate: the step with all its checks, and the evaluation."""
    train = lower_pipeline(replace(spec, checksum=True), "train")
    return list(zip(train, lower_pipeline(spec.for_evaluation(8), "evaluate"), strict=True))


def own_programs(spec: StepSpec, rank: int) -> tuple[Program, Program]:
    return programs_of(spec)[spec.layout.pp_rank(rank)]


def _made(spec: StepSpec, rank: int, backend: str = "nccl") -> tuple[dict[str, AxisGroup], list[tuple[int, ...]]]:
    """A rank's groups, and the process groups that it is in beside the default one, in order."""
    made: list[tuple[int, ...]] = []
    numbered = 0

    def new_group(ranks: list[int], device_id: Any = None, **options: Any) -> Any:
        nonlocal numbered
        numbered += 1
        assert not options.get("use_local_synchronization")
        assert device_id == (torch.device("cuda", 3) if backend == "nccl" else None)
        if rank not in ranks:
            return dist.GroupMember.NON_GROUP_MEMBER
        made.append(tuple(ranks))
        return f"group {numbered} {ranks}"

    with (
        patch.object(dist, "get_backend", return_value=backend),
        patch.object(dist, "get_world_size", return_value=spec.layout.world_size),
        patch.object(torch.cuda, "current_device", return_value=3),
        patch.object(dist, "new_group", new_group),
        patch.object(dist, "group", _World),
    ):
        return make_groups(spec.layout, rank, groups_of(spec), 60.0), made


class _World:
    WORLD = "world"


def sets_of_ranks(spec: StepSpec, rank: int) -> set[tuple[int, ...]]:
    """Sets of ranks over which this rank's programs have a collective, and the set of all ranks."""
    found = {tuple(range(spec.layout.world_size))}
    for program in own_programs(spec, rank):
        for step in program.instructions:
            for each in step.collectives if step.op not in TRANSFERS else ():
                found.add(spec.layout.group_of(rank, tuple(each.axes.split("+"))))
    return found


@pytest.mark.parametrize("name", SEVERAL)
def test_communicators_are_as_many_as_sets_of_ranks(name: str) -> None:
    """And for a pipeline one for each neighbour and direction."""
    spec, _ = layout_spec(name)
    layout = spec.layout
    for rank in range(layout.world_size):
        groups, made = _made(spec, rank)
        near = [pair for pair in neighbours(layout, layout.group_of(rank, ("pp",))) if rank in pair]
        everybody = tuple(range(layout.world_size))
        expected = sorted([*(sets_of_ranks(spec, rank) - {everybody}), *(2 * near)])
        assert sorted(made) == expected
        assert all(len(ranks) > 1 for ranks in made)
        assert num_communicators(spec, layout.pp_rank(rank)) == len(made) + 1, "as planners count them"
        assert 1 <= fewest_communicators("native", layout.world_size, layout.pp, layout.tp) <= len(made) + 1
        assert {group.ranks for group in groups.values() if group.link.process_group is not None} | {everybody} == (
            sets_of_ranks(spec, rank)
        )


def test_transfers_over_gloo_have_the_group_of_their_pipeline() -> None:
    spec, _ = layout_spec("pipeline, tied")
    groups, made = _made(spec, 0, "gloo")
    assert groups["pp"].link.process_group is not None
    assert sorted(made) == sorted((sets_of_ranks(spec, 0) | {groups["pp"].ranks}) - {tuple(range(4))})


@pytest.mark.parametrize("name", SEVERAL)
def test_every_rank_gets_through_while_groups_are_made(name: str) -> None:
    """A connection is made when all members have come to it, each being at one connection at a time."""
    spec, _ = layout_spec(name)
    get_through({rank: _made(spec, rank)[1] for rank in range(spec.layout.world_size)})


def get_through(left: dict[int, list[Any]]) -> None:
    """Fails where nobody gets on; `left`: by rank, what it comes to, each of which begins with its ranks or is them."""
    while any(left.values()):
        fronts = {rank: calls[0] for rank, calls in left.items() if calls}
        ready = {call for call in fronts.values() if all(fronts.get(each) == call for each in _members(call))}
        assert ready, f"nobody gets on: {fronts}"
        for rank, call in fronts.items():
            if call in ready:
                left[rank].pop(0)


def _members(call: Any) -> tuple[int, ...]:
    return call[0] if call and isinstance(call[0], tuple) else call


class _Done:
    def wait(self) -> None:
        pass


class _BlockingLink:
    """Writes down what is called first of each communicator: NCCL would connect there, and block."""

    native = True
    process_group = "some"

    def __init__(self, ranks: Sequence[int], rank: int, into: list[Communicator]) -> None:
        self._ranks, self._rank, self._into = tuple(ranks), rank, into

    def _first(self, ranks: tuple[int, ...], what: str) -> _Done:
        if (ranks, what) not in self._into:
            self._into.append((ranks, what))
        return _Done()

    def all_reduce(self, full: Any, largest: bool = False) -> _Done:
        return self._first(self._ranks, "all_reduce")

    def all_gather(self, full: Any, shard: Any) -> _Done:
        return self._first(self._ranks, "all_gather")

    def reduce_scatter(self, shard: Any, full: Any) -> _Done:
        return self._first(self._ranks, "reduce_scatter")

    def all_to_all(self, *tensors: Any) -> _Done:
        return self._first(self._ranks, "all_to_all")

    def exchange(self, sent: Any, received: Any) -> list[_Done]:
        return [self._first(self._ranks, "shift")]

    def send(self, tensor: Any, rank: int, upwards: bool, number: int) -> _Done:
        pair = (min(rank, self._rank), max(rank, self._rank))
        return self._first(pair, f"up {upwards}")

    receive = send


class _BlockingLinks:
    native, names_all = True, False

    def __init__(self, into: list[Communicator]) -> None:
        self._into = into

    def link(self, axes: str, ranks: Sequence[int], rank: int) -> Any:
        return _BlockingLink(ranks, rank, self._into)

    def pipeline(self, layout: Any, rank: int, link: Any) -> Any:
        return _BlockingLink(layout.group_of(rank, ("pp",)), rank, self._into)


def first_used(spec: StepSpec, rank: int) -> Iterator[Communicator]:
    """Communicators that a rank's programs would connect within the step, in their order."""
    found = set()
    for program in own_programs(spec, rank):
        for step in program.instructions:
            for each in step.collectives:
                key: Communicator = spec.layout.group_of(rank, tuple(each.axes.split("+"))), each.kind
                if step.peer is not None:
                    other = key[0][step.peer]
                    key = (min(rank, other), max(rank, other)), f"up {(other > rank) == (step.op in SENDS)}"
                if key not in found:
                    found.add(key)
                    yield key


def connected(spec: StepSpec, rank: int) -> list[Communicator]:
    """Communicators that a rank connects before its first step, in order."""
    called: list[Communicator] = []
    groups = bind_groups(spec.layout, rank, groups_of(spec), _BlockingLinks(called), {})
    kinds = kinds_of(own_programs(spec, rank))
    calls: list[FirstCall] = list(first_calls(groups, groups_of(spec), spec.layout, rank, kinds, torch.device("cpu")))
    assert [each.order for each in calls] == sorted(each.order for each in calls)
    for each in calls:
        list(each.start())
    return called


@pytest.mark.parametrize("name", SEVERAL)
def test_nothing_is_left_to_connect_within_a_step(name: str) -> None:
    """So that no order of transfers, a person's own schedule's neither, can block where it is used first."""
    spec, _ = layout_spec(name)
    orders = {rank: connected(spec, rank) for rank in range(spec.layout.world_size)}
    for rank, called in orders.items():
        assert set(first_used(spec, rank)) <= set(called)
    get_through(orders)


OWN = """stages 0 1 0 1
rank 0: F0.1 F2.1 F0.0 B2.1 F2.0 B0.1 B2.0 B0.0
rank 1: F1.1 F3.1 B3.1 F1.0 B1.1 F3.0 B3.0 B1.0
"""


@pytest.mark.parametrize("schedule", ["naive", "file"])
def test_an_order_that_would_block_at_first_use_is_connected_before(schedule: str, tmp_path: Path) -> None:
    """Each of these is sound once connected; the first transfers within its step would wait for each other."""
    if schedule == "file":
        (tmp_path / "schedule.txt").write_text(OWN)
        schedule = f"file:{tmp_path / 'schedule.txt'}"
    layout = {"pp": 2, "dp_shard": 1, "schedule": schedule, "microbatch_sequences": 4}
    config = parse_run(run_table(**sections({**layout, **({"virtual_stages": 2} if ":" in schedule else {})})))
    model = resolve_model(config.model)
    spec = resolve_step(config, model, resolve_layout(config, model, 2), "native")
    orders = {rank: connected(spec, rank) for rank in range(2)}
    assert all(set(first_used(spec, rank)) <= set(orders[rank]) for rank in range(2))
    get_through(orders)
    with pytest.raises(AssertionError, match="nobody gets on"):
        get_through({rank: list(first_used(spec, rank)) for rank in range(2)})
