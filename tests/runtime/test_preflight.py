"""Before the first step each group's links are measured, and a slow one is named by its two ends."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fourfold.config import parse_run
from fourfold.hardware import load_cluster
from fourfold.huggingface import resolve_model
from fourfold.layout import Layout, resolve_layout
from fourfold.program import resolve_step
from fourfold.runtime.preflight import (
    MESSAGE_BYTES,
    MOST_RANKS,
    TRANSFERS,
    LinkRate,
    link_rates,
    measured_names,
    measures,
    stated_levels,
)
from tests.support.parity_runs import run_table
from tests.support.supervised import Supervised, write_run

BYTES = 10**9
CHANGES = ("run.preflight=true", "layout.pp=2", "cluster.preset=dgx-h100")
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def layout_of(ranks: int, **degrees: int) -> Layout:
    config = parse_run(run_table(layout=degrees, batch={"global_sequences": 32, "sequence_length": 16}))
    model = resolve_model(config.model)
    return resolve_step(config, model, resolve_layout(config, model, ranks)).layout


@pytest.mark.parametrize("slow", [(0, 2), (6, 0), (5, 7)])
def test_the_slow_link_is_named_by_both_of_its_ends(slow: tuple[int, int]) -> None:
    layout = layout_of(8, dp_shard=4, tp=2)
    seconds = [[0.02, 0.01] for _ in range(8)]
    for end in slow:
        seconds[end][0] = 0.5
    sharded, tensor = link_rates(seconds, ["dp_shard", "tp"], layout, BYTES)
    assert (sharded.sender, sharded.receiver, sharded.is_slow) == (*slow, True)
    assert sharded.bytes_per_second == pytest.approx(BYTES / 0.02)
    assert sharded.slowest == pytest.approx(BYTES / 0.5)
    assert f"slow link: rank {slow[0]} to rank {slow[1]} 2.00 GB/s" in sharded.text()
    assert not tensor.is_slow
    assert tensor.text() == "tp 100.0 GB/s"


def test_a_slow_rank_shows_on_its_neighbours_links_and_a_slow_link_on_none_beside_it() -> None:
    layout = layout_of(4, dp_shard=4)
    (rate,) = link_rates([[0.1], [0.1], [0.1], [0.1]], ["dp_shard"], layout, BYTES)
    assert not rate.is_slow


def test_links_stand_beside_the_figure_of_the_level_at_which_their_ends_meet() -> None:
    cluster = load_cluster("dgx-h100:16")
    layout = layout_of(16, dp_replicate=2, dp_shard=8)
    levels = stated_levels([[level.devices, level.device_bytes_per_second] for level in cluster.levels])
    outside, inside = link_rates([[0.02, 0.0025]] * 16, ["dp_replicate", "dp_shard"], layout, BYTES, levels)
    (_, inner), (_, outer) = levels[:2]
    assert (outside.stated, inside.stated) == (outer, inner)
    assert not outside.is_slow
    assert replace(outside, bytes_per_second=0.3 * outer, slowest=0.3 * outer).is_slow, (
        "all links alike, beside the file's"
    )


@pytest.mark.parametrize(
    "damaged", [None, "levels", [[8]], [[0, 1e9]], [[8, "fast"]], [[8, -1.0]], [[8, float("inf")]], {}]
)
def test_a_damaged_list_of_levels_is_none(damaged: object) -> None:
    assert stated_levels(damaged) == []


def test_transfers_between_stages_are_links_too() -> None:
    layout = layout_of(4, pp=4, dp_shard=1)
    assert measured_names({"tp", "cp"}, layout) == ["cp", "tp", TRANSFERS]
    (rate,) = link_rates([[0.01], [0.4], [0.4], [0.01]], [TRANSFERS], layout, BYTES)
    assert (rate.sender, rate.receiver) == (1, 2)


@pytest.mark.parametrize(
    ("stated", "device", "ranks", "expected"),
    [
        (None, CPU, 4, False),
        (None, CUDA, 4, True),
        (None, CUDA, MOST_RANKS, True),
        (None, CUDA, MOST_RANKS + 1, False),
        (True, CUDA, MOST_RANKS + 1, True),
        (True, CPU, 2, True),
        (True, CPU, 1, False),
        (False, CUDA, 4, False),
    ],
)
def test_when_a_run_measures(stated: bool | None, device: torch.device, ranks: int, expected: bool) -> None:
    assert measures(stated, device, ranks) == expected


def test_a_run_says_what_its_links_carry(tmp_path: Path) -> None:
    with Supervised(write_run(tmp_path, 2), tmp_path / "run", *CHANGES) as run:
        assert run.finish() == 0, run.printed
        (found,) = run.events("preflight")
    assert set(found["bytes_per_second"]) == {"pp", TRANSFERS}
    assert all(rate > MESSAGE_BYTES["cpu"] / 60 for rate in found["bytes_per_second"].values())
    assert "links: pp " in run.printed
    assert "(the cluster's file: " in run.printed
    assert isinstance(LinkRate("pp", 1.0, 1.0, 0, 1, None).text(), str)
