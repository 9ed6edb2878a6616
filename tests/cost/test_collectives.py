"""Laws of collectives: bytes of a ring, levels, latency, and what more bytes, more ranks or slower links may not do."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fourfold.cost.collectives import (
    NO_LOSS,
    Links,
    Span,
    collective_seconds,
    level_shares,
    ranks_span,
    transfer_seconds,
)
from fourfold.hardware import Cluster, Level, load_cluster

KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
H100 = load_cluster("dgx-h100")


def _cluster(*levels: tuple[int, float, float], kind: str = "switch") -> Cluster:
    made = tuple(Level(f"t{i}", kind, n, rate, latency) for i, (n, rate, latency) in enumerate(levels))  # type: ignore[arg-type]
    return replace(H100, levels=made, devices=levels[-1][0])


def _seconds(kind: str, size: float, ranks: range, cluster: Cluster, links: Links = NO_LOSS) -> float:
    return collective_seconds(kind, size, ranks_span(tuple(ranks), cluster, cluster.devices), cluster, links)


def test_a_ring_of_eight_sends_what_rings_send() -> None:
    cluster = _cluster((8, 450e9, 0.0))
    size = 1e9
    assert _seconds("all_reduce", size, range(8), cluster) == pytest.approx(2 * 7 / 8 * size / 450e9)
    assert _seconds("all_gather", size, range(8), cluster) == pytest.approx(7 / 8 * size / 450e9)
    assert _seconds("reduce_scatter", size, range(4), cluster) == pytest.approx(3 / 4 * size / 450e9)
    assert _seconds("all_to_all", size, range(8), cluster) == pytest.approx(7 / 8 * size / 450e9)


def test_a_node_of_h100_reaches_the_bandwidth_that_is_measured_there() -> None:
    """NCCL's bus bandwidth of an all-gather of 16 GiB on eight H200: 361 GB/s."""
    size = 16 * 2**30
    seconds = _seconds("all_gather", size / 0.8, range(8), H100, Links())
    assert 7 / 8 * size / seconds == pytest.approx(361e9, rel=0.02)


def test_all_rails_of_a_node_carry_a_ring() -> None:
    """Sixteen ranks on two nodes: each node's eight ports carry an eighth each."""
    cluster = _cluster((8, 450e9, 0.0), (16, 50e9, 0.0))
    full = _seconds("all_gather", 1e9, range(16), cluster)
    assert full == pytest.approx(15 / 16 * 1e9 / 8 / 50e9)
    alone = _seconds("all_gather", 1e9, range(0, 16, 8), cluster)
    assert alone == pytest.approx(1 / 2 * 1e9 / 50e9)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(KINDS), st.floats(1, 1e10), st.floats(1.0, 100.0), st.sampled_from((2, 4, 8, 16, 32, 64, 128, 256))
)
def test_more_bytes_are_not_faster(kind: str, size: float, factor: float, ranks: int) -> None:
    links = Links()
    small = _seconds(kind, size, range(ranks), H100, links)
    assert _seconds(kind, size * factor, range(ranks), H100, links) >= small * (1 - 1e-9) > 0


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(KINDS), st.floats(1e3, 1e10), st.sampled_from((8, 16, 32, 64, 128)))
def test_more_ranks_of_full_nodes_are_not_faster(kind: str, size: float, ranks: int) -> None:
    """A buffer of the same size for a group twice as large; an all-to-all keeps what each sends."""
    links = Links()
    few, many = (_seconds(kind, size, range(n), H100, links) for n in (ranks, 2 * ranks))
    assert many >= few * (1 - 1e-9)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(KINDS), st.floats(1e3, 1e10), st.floats(1e9, 4e11))
def test_no_group_is_faster_than_its_slowest_level_allows(kind: str, size: float, outer: float) -> None:
    cluster = _cluster((8, 450e9, 1e-6), (64, outer, 5e-6))
    seconds = _seconds(kind, size, range(64), cluster)
    leaves = {"all_reduce": 2 * 63 / 64 / 8, "all_to_all": 56 / 64}.get(kind, 63 / 64 / 8)
    assert seconds >= leaves * size / outer * 0.999
    slower = replace(cluster, levels=(cluster.levels[0], replace(cluster.levels[1], bytes_per_second=outer / 2)))
    assert _seconds(kind, size, range(64), slower) >= seconds


@pytest.mark.parametrize("kind", KINDS)
def test_a_byte_takes_the_latency_of_the_outermost_level(kind: str) -> None:
    assert _seconds(kind, 1, range(8), H100) >= H100.levels[0].latency_seconds
    assert _seconds(kind, 1, range(16), H100) >= H100.levels[1].latency_seconds
    assert _seconds(kind, 1e9, range(1), H100) == 0


def test_hops_between_nodes_cost_more_of_large_messages_than_hops_within() -> None:
    links = Links()
    extra = [
        _seconds("all_gather", 1e8, range(n), H100, links) - _seconds("all_gather", 1e8, range(n), H100)
        for n in (8, 16, 32)
    ]
    assert extra[0] == pytest.approx(7 * links.node_hop_seconds)
    assert extra[1] == pytest.approx(links.network_hop_seconds * (1 + 14 * links.inner_hop))
    assert extra[2] > 2 * extra[1] * 0.9
    dear = _seconds("all_gather", 1e8, range(16), H100, replace(links, network_hop_seconds=1e-3))
    assert dear > _seconds("all_gather", 1e8, range(16), H100, links)


def test_the_smaller_the_part_that_a_step_hands_on_the_less_a_hop_between_nodes() -> None:
    """From the stated size of a part on, the hop costs all of it; below, in proportion, so that long rings cost little more. The
    ring's steps within nodes cost what they do, whatever they hand on."""
    links = Links()

    def hops(ranks: int) -> float:
        size = 16 * 4 * links.network_hop_bytes
        return _seconds("reduce_scatter", size, range(ranks), H100, links) - _seconds(
            "reduce_scatter", size, range(ranks), H100
        )

    full, part = hops(64), hops(128)
    assert full == pytest.approx(links.network_hop_seconds * (7 + 56 * links.inner_hop))
    assert part == pytest.approx(links.network_hop_seconds * (15 / 2 + 112 * links.inner_hop))


def test_what_is_spared_beyond_the_node_is_not_sent() -> None:
    span = ranks_span(tuple(range(64)), H100, 64)
    full = collective_seconds("all_to_all", 1e9, span, H100, NO_LOSS)
    half = collective_seconds("all_to_all", 1e9, span, H100, NO_LOSS, spared=(0.0, 0.5))
    assert half == pytest.approx(full / 2, rel=0.01)


def test_what_is_spared_within_a_node_is_not_sent() -> None:
    span = ranks_span(tuple(range(8)), H100, 64)
    full = collective_seconds("all_to_all", 1e9, span, H100, NO_LOSS)
    assert collective_seconds("all_to_all", 1e9, span, H100, NO_LOSS, spared=(0.5, 0.0)) == pytest.approx(
        full / 2, rel=0.01
    )
    assert collective_seconds("all_to_all", 1e9, span, H100, NO_LOSS, spared=(0.0, 0.5)) == full


def test_groups_divide_a_shared_medium() -> None:
    cluster = _cluster((4, 10e9, 0.0), kind="shared")
    one = collective_seconds("all_gather", 1e9, Span(4, (4,), (1,)), cluster)
    two = collective_seconds("all_gather", 1e9, Span(2, (2,), (2,)), cluster)
    assert one == pytest.approx(0.75 * 1e9 / 10e9)
    assert two == pytest.approx(0.5 * 1e9 / (10e9 / 2))


def test_a_message_goes_by_the_innermost_level_that_joins_both() -> None:
    near, far = transfer_seconds(1e9, 0, 7, H100), transfer_seconds(1e9, 0, 8, H100)
    assert near == pytest.approx(1e9 / 450e9, rel=0.01)
    assert far == pytest.approx(1e9 / 50e9, rel=0.01)
    with pytest.raises(ValueError, match="not both in a cluster"):
        transfer_seconds(1.0, 0, 10**6, H100)


def test_a_torus_has_a_ring_for_every_dimension_that_a_group_spans() -> None:
    torus = Level("ici", "torus", 4096, 50e9, 0.0, dimensions=(16, 16, 16), wrap_multiple=4)
    cluster = replace(H100, levels=(torus,), devices=4096)
    for ranks, rings in ((4, 1), (16, 2), (64, 3), (4096, 3)):
        seconds = _seconds("all_gather", 1e9, range(ranks), cluster)
        assert seconds == pytest.approx((ranks - 1) / ranks * 1e9 / (2 * 50e9 * rings)), ranks
    flat = replace(torus, kind="switch", dimensions=())
    assert _seconds("all_gather", 1e9, range(64), replace(cluster, levels=(flat,))) == pytest.approx(
        63 / 64 * 1e9 / 50e9
    )


def test_levels_share_what_rings_and_pairs_send() -> None:
    """Sixteen ranks on two nodes of eight: of sixteen hops around the ring two leave a node; of fifteen partners eight do."""
    cluster = _cluster((8, 450e9, 0.0), (16, 50e9, 0.0), (64, 25e9, 0.0))
    span = ranks_span(tuple(range(16)), cluster, 64)
    assert level_shares("all_gather", span) == pytest.approx((14 / 16, 2 / 16, 0))
    assert level_shares("all_to_all", span) == pytest.approx((7 / 15, 8 / 15, 0))
    assert level_shares("all_reduce", ranks_span((0, 8), cluster, 64)) == pytest.approx((0, 1, 0))
    assert level_shares("shift", ranks_span(tuple(range(0, 64, 4)), cluster, 64)) == pytest.approx(
        (1 / 2, 1 / 4, 1 / 4)
    )
    assert level_shares("all_reduce", ranks_span((3,), cluster, 64)) == (0, 0, 0)
