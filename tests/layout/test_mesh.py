"""The mesh: ranks and coordinates, groups, rows of the global batch, shards of flat buffers."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fourfold.config import parse_run, resolve_model
from fourfold.layout import AXES, Layout, flat_layouts, resolve_layout
from fourfold.model.spec import build_segments
from fourfold.program import Lowering
from tests.support.programs import make_facts
from tests.support.strategies import lowerings

SOME = settings(max_examples=150, deadline=None)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Any mesh, pipeline, context and tensor axes among them."""
    degrees = {axis: draw(st.sampled_from([1, 1, 2, 3])) for axis in AXES}
    return Layout(
        **degrees, zero=draw(st.integers(0, 3)), schedule="1f1b", microbatch_sequences=draw(st.integers(1, 3)),
        num_microbatches=draw(st.integers(1, 4)), sequence_length=8, recompute=("none",), prefetch=1,
    )  # fmt: skip


@SOME
@given(layouts())
def test_ranks_and_coordinates_are_one_to_one_with_tp_innermost(layout: Layout) -> None:
    seen = [tuple(layout.coordinates(rank).values()) for rank in range(layout.world_size)]
    assert seen == sorted(set(seen)), "coordinates grow lexicographically in the order of the axes"
    assert len(seen) == layout.world_size
    for rank in range(layout.world_size):
        assert list(layout.coordinates(rank)) == list(AXES)
        assert layout.rank_of(layout.coordinates(rank)) == rank
    if layout.tp > 1:
        assert layout.coordinates(1)["tp"] == 1


@SOME
@given(layouts(), st.sets(st.sampled_from(AXES)))
def test_groups_along_any_axes_part_the_ranks(layout: Layout, chosen: set[str]) -> None:
    axes = tuple(axis for axis in AXES if axis in chosen)
    groups = layout.groups(axes)
    assert sorted(rank for group in groups for rank in group) == list(range(layout.world_size))
    for group in groups:
        assert len(group) == layout.group_size(axes)
        assert list(group) == sorted(group)
        for rank in group:
            assert layout.group_of(rank, axes) == group
        fixed = {tuple(v for a, v in layout.coordinates(r).items() if a not in axes) for r in group}
        assert len(fixed) == 1


@SOME
@given(layouts())
def test_every_row_of_the_global_batch_is_read_once_by_each_copy_of_the_model(layout: Layout) -> None:
    total = layout.microbatch_sequences * layout.num_microbatches * layout.data_degree
    read: Counter[int] = Counter()
    for rank in range(layout.world_size):
        for m in range(layout.num_microbatches):
            assert len(layout.rows(rank, m)) == layout.microbatch_sequences
            read.update(layout.rows(rank, m))
    copies = layout.pp * layout.cp * layout.tp
    assert read == Counter(dict.fromkeys(range(total), copies))


@SOME
@given(layouts())
def test_ranks_that_differ_in_no_data_axis_read_the_same_rows(layout: Layout) -> None:
    for group in layout.groups(("pp", "cp", "tp")):
        assert len({(layout.rows(rank, 0).start, layout.data_rank(rank)) for rank in group}) == 1


@SOME
@given(lowerings())
def test_shards_are_equal_aligned_and_cover_every_parameter_once(facts: Lowering) -> None:
    for segment in facts.segments:
        flat = facts.flats[segment.name]
        ranges = [flat.shard_range(index) for index in range(flat.num_shards)]
        assert ranges[0][0] == 0
        assert ranges[-1][1] == flat.padded_numel
        assert all(a[1] == b[0] for a, b in pairwise(ranges))
        assert {end - start for start, end in ranges} == {flat.shard_numel}
        assert flat.padded_numel % (16 * facts.layout.data_degree) == 0
        assert 0 <= flat.padded_numel - flat.numel < 16 * facts.layout.data_degree
        end = 0
        for spec, start, stop in flat.ranges():
            assert (start, stop) == (end, end + spec.numel)
            end = stop
        assert end == flat.numel == segment.numel


@SOME
@given(lowerings())
def test_decayed_parameters_come_first_and_are_the_matrices(facts: Lowering) -> None:
    for flat in facts.flats.values():
        decayed = [spec.weight_decay for spec in flat.parameters]
        assert decayed == sorted(decayed, reverse=True)
        assert flat.decayed_numel == sum(p.numel for p in flat.parameters if len(p.shape) == 2)


def test_only_sharded_state_is_split() -> None:
    for zero in range(4):
        flat = make_facts(dp_replicate=2, dp_shard=4, zero=zero).flats["b0"]
        assert flat.num_shards == (1 if zero == 0 else 4)


def test_a_unit_has_every_parameter_of_the_model_once() -> None:
    facts = make_facts({"qk_norm": True, "num_layers": 3})
    names = [spec.name for segment in build_segments(facts.model) for spec in segment.parameters]
    assert len(names) == len(set(names)) == 3 + 3 * 11
    assert flat_layouts(facts.segments, facts.layout).keys() == {"embed", "b0", "b1", "b2", "head"}


# From the run file


def _layout(ranks: int | None = None, rows: int = 24, **section: object) -> Layout:
    dimensions = {"num_layers": 3, "hidden_size": 32, "num_heads": 4, "ffn_size": 8, "vocab_size": 9}
    table = {
        "model": dimensions,
        "batch": {"global_sequences": rows, "sequence_length": 8},
        "layout": section,
    }
    config = parse_run(table)
    return resolve_layout(config, resolve_model(config.model), ranks)


@pytest.mark.parametrize(
    ("ranks", "section", "expected"),
    [
        (None, {}, (1, 1)),
        (4, {}, (1, 4)),
        (4, {"dp_replicate": 2}, (2, 2)),
        (6, {"dp_replicate": 3}, (3, 2)),
        (4, {"dp_replicate": 4}, (4, 1)),
        (4, {"dp_shard": 4}, (1, 4)),
        (None, {"dp_replicate": 2, "dp_shard": 3}, (2, 3)),
    ],
)
def test_dp_shard_left_out_takes_the_remaining_ranks(
    ranks: int | None, section: dict[str, int], expected: tuple[int, int]
) -> None:
    layout = _layout(ranks, **section)
    assert (layout.dp_replicate, layout.dp_shard) == expected
    assert layout.world_size == (ranks or expected[0] * expected[1])


@pytest.mark.parametrize(("ranks", "microbatch", "count"), [(1, 1, 24), (1, 24, 1), (4, 2, 3), (8, 3, 1), (3, 4, 2)])
def test_the_number_of_microbatches_follows_from_the_batch(ranks: int, microbatch: int, count: int) -> None:
    assert _layout(ranks, microbatch_sequences=microbatch).num_microbatches == count


@pytest.mark.parametrize(
    ("stated", "blocks"),
    [
        ("none", ["none"] * 3),
        ("full", ["full"] * 3),
        ("selective", ["selective"] * 3),
        ("full:0", ["none"] * 3),
        ("full:2", ["full", "full", "none"]),
        ("selective:1", ["selective", "none", "none"]),
        (["none", "full", "selective"], ["none", "full", "selective"]),
    ],
    ids=str,
)
def test_recompute_policies_apply_to_blocks_in_order(stated: str | list[str], blocks: list[str]) -> None:
    assert _layout(recompute=stated).recompute == ("none", *blocks, "none")
