"""Pinned memory: few allocations, of powers of two, as predicted; and none of a step's copies finds another's in its place."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fourfold.config import parse_run
from fourfold.launch.host_memory import host_line, host_need
from fourfold.launch.resolve import resolve_run
from fourfold.program.compiled import CompiledStages
from fourfold.program.lower import each_program
from fourfold.program.offload.pinned import activation_slots, allocated_bytes, chunks_of, pinned_bytes, state_parts
from fourfold.rehearse.rank import pretended_rank
from fourfold.rehearse.shapes import KnownShapes
from fourfold.runtime.offload.pinned import PinnedSlots, host_tensors
from tests.rehearse.rehearsed import layout_spec
from tests.support.parity_runs import run_table


def rounded(size: int) -> int:
    """Bytes that torch's caching host allocator takes: `llvm::PowerOf2Ceil` of the size."""
    return 1 << (size - 1).bit_length()


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(st.integers(1, 10**4), st.integers(10**6, 10**10)), min_size=1, max_size=60))
def test_chunks_hold_every_part_once_and_are_rounded_no_further(sizes: list[int]) -> None:
    chunks = chunks_of(sizes)
    assert all(chunk.bytes == rounded(chunk.bytes) for chunk in chunks)
    assert sorted(number for chunk in chunks for number, _ in chunk.parts) == list(range(len(sizes)))
    for chunk in chunks:
        ends = 0
        for number, offset in chunk.parts:
            assert offset >= ends
            assert offset % 512 == 0
            ends = offset + sizes[number]
        assert ends <= chunk.bytes
    assert allocated_bytes(sizes) <= sum(rounded(max(size, 512)) for size in sizes), "worse than each by itself"


@settings(max_examples=200, deadline=None)
@given(st.integers(10**6, 10**9), st.integers(16, 400), st.integers(0, 10**6))
def test_many_equal_parts_waste_little(size: int, count: int, odd: int) -> None:
    """A model's blocks: where each by itself may take twice its bytes, together they take an eighth more at most, and their last
    allocation's rest."""
    sizes = [size] * count + [size // 3 + odd % size]
    assert allocated_bytes(sizes) <= 1.2 * sum(sizes)


def states_of_8b() -> list[int]:
    """Master weights and AdamW's states of an 8B on one device, a part for each block, and for embedding and head."""
    block, embedding = 4096 * 4096 * 2 + 4096 * 1024 * 2 + 3 * 4096 * 14336 + 2 * 4096, 128256 * 4096
    return [12 * block] * 32 + [12 * embedding] * 2


def test_the_states_of_8b() -> None:
    sizes = states_of_8b()
    assert 96e9 < sum(sizes) < 97e9
    assert allocated_bytes(sizes) < 1.1 * sum(sizes)
    by_tensor = sum(3 * rounded(size // 3) for size in sizes)  # as before: each state of each unit by itself
    assert by_tensor > 1.2 * sum(sizes)


@pytest.mark.parametrize("name", ["offloaded", "pipeline, offloaded", "experts, offloaded"])
def test_a_rank_allocates_what_is_predicted(name: str) -> None:
    """Allocates as its executor does, on a device that is not there: states before the step, slots of activations with its
    program."""
    spec, optimizer = layout_spec(name)
    compiled = CompiledStages(spec)
    views = compiled.views(spec)
    for view, program in zip(views, each_program(compiled, views), strict=True):
        rank = spec.layout.rank_of({"pp": view.pp_rank, "dp_replicate": 0, "dp_shard": 0, "cp": 0, "tp": 0})
        with pretended_rank(view, rank, optimizer, KnownShapes()) as pretended:
            pretended.follow(program)
            with pretended.faults():
                pretended.executor.run(program, pretended.feed(), 1e-4)
            slots = pretended.executor.link.slots
            storages = {
                tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes()
                for unit in pretended.executor.units.values()
                for tensor in unit.away.values()
            }
        allocated = sum(storages.values()) + slots.allocated_bytes
        routed = spec.model.num_experts > 0
        assert allocated == pinned_bytes(program, routed)
        assert len(storages) <= len(state_parts(program))
        if slots.allocated_bytes:
            assert sum(map(len, slots._free)) == sum(activation_slots(program, routed)), "all were given back"


def test_slots_that_are_away_share_no_byte_and_are_taken_again() -> None:
    slots = PinnedSlots()
    slots.reserve([1000, 1000, 5000])
    made = slots.allocated_bytes
    for _ in range(3):
        taken = [slots.take(size) for size in (900, 4000, 1000)]
        for number, slot in enumerate(taken):
            slot.fill_(number)
        assert all((slot == number).all() for number, slot in enumerate(taken))
        for slot in taken:
            slots.give_back(slot)
    assert slots.allocated_bytes == made
    more = [slots.take(5000) for _ in range(2)]  # one that nobody foresaw has memory of its own, once
    assert slots.allocated_bytes == made + 8192
    for slot in more:
        slots.give_back(slot)
    assert [len(slots.take(5000)) >= 5000 for _ in range(2)] == [True, True]
    assert slots.allocated_bytes == made + 8192


def test_states_are_views_of_their_shapes_and_zero() -> None:
    given = [{"master": torch.ones(7, 3), "exp_avg": torch.ones(21)}, {"master": torch.ones(5, dtype=torch.float64)}]
    for pinned in (False, True):
        found = host_tensors(given, pinned)
        for ours, theirs in zip(found, given, strict=True):
            assert {name: (each.shape, each.dtype) for name, each in ours.items()} == {
                name: (each.shape, each.dtype) for name, each in theirs.items()
            }
            for each in ours.values():
                assert not each.any()
                each.fill_(1)
    assert len({each.untyped_storage()._cdata for group in found for each in group.values()}) <= 2


def need(pins: bool = True, **layout: Any) -> Any:
    checkpoint = {"every_steps": 5, "asynchronous": True}
    table = run_table(layout={"microbatch_sequences": 1, **layout}, checkpoint=checkpoint)
    return host_need(resolve_run(parse_run(table), 1, None, "native" if pins else "exchange"), pins)


def test_a_machine_that_lacks_memory_hears_which_values_work() -> None:
    """All its ranks together; and each value that the line names does work."""
    found = need(offload="activations", offload_optimizer=True)
    assert min(found.activations, found.states, found.save_copy) > 0
    assert host_line(found, 8, 8 * found.bytes) == []
    assert host_line(found, 8, None) == []
    (line,) = host_line(found, 8, 8 * found.bytes - 1)
    assert "with 7 ranks on this machine" in line
    for key, value in (("offload", "none"), ("offload_optimizer", False)):
        assert f"layout.{key} = {str(value).lower()}" in line
        less = need(**{"offload": "activations", "offload_optimizer": True, key: value})
        assert host_line(less, 8, 8 * found.bytes - 1) == []
    assert "checkpoint.asynchronous = false" in line


def test_a_cpus_memory_is_not_rounded() -> None:
    pinned, plain = (need(pins, offload="activations", offload_optimizer=True) for pins in (True, False))
    assert plain.bytes < pinned.bytes


@pytest.fixture(autouse=True)
def unpinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pinning needs a device; here memory is as any."""
    empty = torch.empty

    def plain(*sizes: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        return empty(*sizes, **options)

    monkeypatch.setattr("fourfold.runtime.offload.pinned.torch.empty", plain)
