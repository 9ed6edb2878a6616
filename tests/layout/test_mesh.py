"""The mesh: ranks and coordinates, groups, rows of the global batch, shards of flat buffers."""

from collections import Counter
from itertools import pairwise
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fourfold.config import parse_run
from fourfold.huggingface import resolve_model
from fourfold.layout import AXES, Layout, flat_layouts, resolve_layout
from fourfold.layout.mesh import ORDERS, VIEWS
from fourfold.model.spec import build_segments
from fourfold.program import StepSpec, rank_view
from fourfold.program.stage_map import stage_map
from tests.support.programs import make_spec, make_view
from tests.support.strategies import lowerings

SOME = settings(max_examples=60, deadline=None)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Any mesh, pipeline, context and tensor axes among them, and finer views of it."""
    degrees = {axis: draw(st.sampled_from([1, 1, 2, 3])) for axis in AXES}
    stages = draw(st.integers(1, 2)) * degrees["pp"]
    experts = degrees["dp_shard"] * degrees["cp"] * degrees["tp"]
    ep = draw(st.sampled_from([d for d in range(1, experts + 1) if experts % d == 0]))
    return Layout(
        **degrees, ep=ep, etp=draw(st.sampled_from([d for d in range(1, experts // ep + 1) if experts // ep % d == 0])),
        cp_ulysses=draw(st.sampled_from([d for d in range(1, degrees["cp"] + 1) if degrees["cp"] % d == 0])),
        tp_head=draw(st.sampled_from([d for d in range(1, degrees["tp"] + 1) if degrees["tp"] % d == 0])),
        stage_ranks=tuple(s % degrees["pp"] for s in range(stages)), zero=draw(st.integers(0, 3)), schedule="1f1b",
        microbatch_sequences=draw(st.integers(1, 3)),
        num_microbatches=draw(st.integers(1, 4)), sequence_length=8, recompute=("none",), prefetch=1,
        outermost=draw(st.sampled_from(sorted(ORDERS))),
    )  # fmt: skip


@SOME
@given(layouts())
def test_ranks_and_coordinates_are_one_to_one_with_tp_innermost(layout: Layout) -> None:
    """In every view: the mesh itself, and those that divide the experts' ranks, `cp` and `tp` anew."""
    order = ORDERS[layout.outermost]
    seen = [tuple(layout.coordinates(rank)[axis] for axis in order) for rank in range(layout.world_size)]
    assert seen == sorted(set(seen)), "coordinates grow lexicographically in the order of the axes"
    for view in VIEWS:
        seen = [tuple(layout.coordinates(rank)[axis] for axis in view) for rank in range(layout.world_size)]
        assert len(set(seen)) == layout.world_size
        for rank in range(layout.world_size):
            assert layout.rank_of(layout.coordinates(rank), view) == rank
    if layout.tp > 1:
        assert layout.coordinates(1)["tp"] == 1


@SOME
@given(layouts(), st.sampled_from(VIEWS).flatmap(lambda view: st.tuples(st.just(view), st.sets(st.sampled_from(view)))))
def test_groups_along_any_axes_part_the_ranks(layout: Layout, chosen: tuple[tuple[str, ...], set[str]]) -> None:
    view, names = chosen
    axes = tuple(axis for axis in view if axis in names)
    groups = layout.groups(axes)
    assert sorted(rank for group in groups for rank in group) == list(range(layout.world_size))
    for group in groups:
        assert len(group) == layout.group_size(axes)
        assert list(group) == sorted(group)
        for rank in group:
            assert layout.group_of(rank, axes) == group
        fixed = {tuple(layout.coordinates(r)[a] for a in view if a not in axes) for r in group}
        assert len(fixed) == 1


@SOME
@given(layouts())
def test_finer_views_divide_one_axis_or_the_ranks_of_the_experts(layout: Layout) -> None:
    for rank in range(layout.world_size):
        own = layout.coordinates(rank)
        assert own["cp"] == own["cp_ring"] * layout.cp_ulysses + own["cp_ulysses"]
        assert own["tp"] == own["tp_head"] * layout.tp_copy + own["tp_copy"]
        dense = (own["dp_shard"] * layout.cp + own["cp"]) * layout.tp + own["tp"]
        assert dense == (own["edp"] * layout.ep + own["ep"]) * layout.etp + own["etp"]
        group = layout.group_of(rank, ("edp", "ep", "etp"))
        assert group == layout.group_of(rank, ("dp_shard", "cp", "tp"))


@SOME
@given(layouts())
def test_the_tied_group_is_the_first_and_the_last_stage(layout: Layout) -> None:
    first, last = layout.stage_ranks[0], layout.stage_ranks[-1]
    for group in layout.groups(("tied",)):
        assert [layout.coordinates(rank)["pp"] for rank in group] == sorted({first, last})
        assert len(group) == layout.degree("tied")
    members = [rank for group in layout.groups(("tied",)) for rank in group]
    assert len(members) == len(set(members)) == layout.world_size // layout.pp * layout.degree("tied")


@SOME
@given(lowerings())
def test_every_position_of_a_sequence_is_on_one_context_rank(spec: StepSpec) -> None:
    layout = spec.layout
    for group in layout.groups(("cp",)):
        positions = sorted(p for rank in group for p in layout.positions(rank))
        assert positions == list(range(layout.sequence_length))
        work = {sum(p + 1 for p in layout.positions(rank)) for rank in layout.group_of(group[0], ("cp_ring",))}
        assert len(work) == 1, "causal work is even along the ring"


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
def test_shards_are_equal_aligned_and_cover_every_parameter_once(spec: StepSpec) -> None:
    """Dense units are cut for `dp_shard x cp` ranks, experts' for `edp`, each for its replicas too, where ZeRO shards them."""
    layout = spec.layout
    for flat in flat_layouts(spec.segments, layout).values():
        cuts = layout.dp_shard * layout.cp if flat.domain == "dense" else layout.edp
        assert flat.num_shards == (cuts if layout.zero else 1)
        ranges = [flat.shard_range(index) for index in range(flat.num_shards)]
        assert ranges[0][0] == 0
        assert ranges[-1][1] == flat.padded_numel
        assert all(a[1] == b[0] for a, b in pairwise(ranges))
        assert {end - start for start, end in ranges} == {flat.shard_numel}
        assert flat.padded_numel % (16 * layout.dp_replicate * cuts) == 0
        assert 0 <= flat.padded_numel - flat.numel < 16 * layout.dp_replicate * cuts
        end = 0
        for parameter, start, stop in flat.ranges():
            assert (start, stop) == (end, end + parameter.numel)
            end = stop
        assert end == flat.numel


@SOME
@given(lowerings(max_ranks=32))
def test_the_ranks_parts_of_a_parameter_make_all_of_it_and_copies_alike(spec: StepSpec) -> None:
    """Over the ranks that split a parameter its parts cover it, each element as often as there are ranks with that part."""
    layout = spec.layout
    for flat in flat_layouts(spec.segments, layout).values():
        for parameter in flat.parameters:
            boxes = Counter(parameter.box(layout.coordinates(r)) for r in layout.group_of(0, ("dp_shard", "cp", "tp")))
            assert len(set(boxes.values())) == 1
            assert sum(prod(end - start for start, end in box) for box in boxes) == parameter.spec.numel
            assert len(boxes) == prod(degree for _, _, degree in parameter.splits)


@SOME
@given(lowerings(max_ranks=32))
def test_what_ranks_hold_alike_is_summed_where_they_compute_parts_of_it(spec: StepSpec) -> None:
    """Along `tp`: what is not split is held alike; its gradient is a sum over `tp` where the ranks see other tokens or heads."""
    layout = spec.layout
    for flat in flat_layouts(spec.segments, layout).values():
        assert not flat.sums or flat.domain == "dense"
        for parameter, start, end in flat.ranges():
            wanted = None
            if flat.domain == "dense" and layout.tp > 1:
                if parameter.spec.kv_heads:
                    wanted = "tp_copy" if layout.tp_copy > 1 else None
                elif parameter.spec.summed == "always" or (
                    parameter.spec.summed == "sequence" and layout.sequence_parallel
                ):
                    wanted = "tp"
            over = [axis for axis, first, last in flat.sums if first <= start and end <= last]
            assert over == ([wanted] if wanted else [])


@SOME
@given(lowerings())
def test_decayed_parameters_come_first_and_are_the_matrices(spec: StepSpec) -> None:
    for flat in flat_layouts(spec.segments, spec.layout).values():
        decayed = [parameter.weight_decay for parameter in flat.parameters]
        assert decayed == sorted(decayed, reverse=True)
        assert flat.decayed_numel == sum(p.numel for p in flat.parameters if len(p.shape) >= 2)


@SOME
@given(lowerings())
def test_every_pipeline_rank_holds_its_stages_and_each_unit_has_one_owner(spec: StepSpec) -> None:
    """But for a tied embedding, which the first and the last stage hold."""
    layout, held = spec.layout, Counter(unit for pp in range(spec.layout.pp) for unit in rank_view(spec, pp).flats)
    shared = {"embed"} if spec.model.tie_embeddings and layout.degree("tied") == 2 else set()
    assert held == {unit.name: 1 + (unit.name in shared) for s in spec.segments for unit in s.own}
    local = [
        segment.name for stage in range(len(layout.segments_per_stage)) for segment in stage_map(spec).stages[stage]
    ]
    assert local == [segment.name for segment in spec.segments]
    assert sum(layout.segments_per_stage) == len(spec.segments)
    assert [len(stage_map(spec).held(pp)) for pp in range(layout.pp)] == [layout.virtual_stages] * layout.pp


def test_only_sharded_state_is_split() -> None:
    for zero in range(4):
        flat = make_view(dp_replicate=2, dp_shard=4, zero=zero).flats["b0"]
        assert flat.num_shards == (1 if zero == 0 else 4)


def test_a_unit_has_every_parameter_of_the_model_once() -> None:
    spec = make_spec({"qk_norm": True, "num_layers": 3})
    names = [spec.name for segment in build_segments(spec.model) for spec in segment.parameters]
    assert len(names) == len(set(names)) == 3 + 3 * 11
    assert flat_layouts(spec.segments, spec.layout).keys() == {"embed", "b0", "b1", "b2", "head"}


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
