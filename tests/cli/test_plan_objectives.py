"""`fourfold plan` towards other goals than the fastest step: fewer devices, less cost, a larger model."""

import json
import tomllib
from pathlib import Path

import pytest
import tomli_w

from tests.calibrate.machine_table import cluster
from tests.cli.planning import SMALL, document, text


@pytest.mark.rest
def test_sizes_between_doubled_ones_on_a_torus(fourfold) -> None:
    asked = (
        "--model",
        "llama3-8b",
        "--cluster",
        "tpu-v5p-8960:64",
        "--sequence-length",
        "4096",
        "--batch-sequences",
        "960",
    )
    goal = ("--objective", "devices", "--tokens", "1T", "--deadline-days", "60")
    found = document(fourfold, *asked, *goal, "--keep", "1")
    sizes = [int(line.split()[0]) for line in found["objective"]["lines"][1:]]
    assert 32 < found["devices"] < 64
    assert found["devices"] % 4 == 0
    assert len(sizes) <= 12


@pytest.mark.rest
def test_the_largest_model_fits_and_is_larger_where_there_is_more_memory(fourfold) -> None:
    def parameters(devices: int) -> float:
        asked = (
            *SMALL[:3],
            f"dgx-h100:{devices}",
            "--sequence-length",
            "2048",
            "--batch-sequences",
            "16",
            "--keep",
            "1",
        )
        found = document(fourfold, *asked, "--objective", "model")
        assert found["best"][0]["memory_bytes"] <= found["memory_limit_bytes"]
        return float(found["objective"]["lines"][1].split()[0])

    assert parameters(1) < parameters(8)


def test_a_measured_machine_of_fewer_ranks_is_priced_as_when_those_alone_compute(fourfold, here: Path) -> None:
    table = cluster()
    for ranks, seconds in ((1, 0.5), (2, 1.0), (4, 2.0)):
        table["calibration"][f"ranks_{ranks}"]["software"]["step_seconds"] = seconds
    (here / "machine.toml").write_text(tomli_w.dumps(table))
    goal = ("--objective", "cheapest", "--tokens", "1M", "--price", "2", "--out", "planned.toml")
    found = document(fourfold, "run.toml", "--cluster", "machine.toml", *goal)
    assert found["devices"] < 4, "a step of one rank alone waits for nobody"
    predicted = json.loads(fourfold("simulate", "planned.toml", "--json").out)
    assert predicted["step_seconds"] == pytest.approx(found["best"][0]["step_seconds"], rel=1e-9)
    assert tomllib.loads((here / "planned.toml").read_text())["batch"]["tokens"] == 1_000_000


SIX = """
name = "six per node"
source = "made up"
device = "a100-sxm-40"
devices = 48
[[levels]]
name = "nvlink"
kind = "switch"
devices = 6
bytes_per_second = 300e9
latency_seconds = 2e-6
[[levels]]
name = "ib"
kind = "switch"
devices = 48
bytes_per_second = 25e9
latency_seconds = 5e-6
scalable = true
"""


@pytest.mark.rest
def test_a_clusters_own_file_is_what_other_numbers_of_its_devices_are_cut_from(fourfold, tmp_path: Path) -> None:
    own = tmp_path / "dgx-h100.toml"  # as a preset is called
    own.write_text(SIX)
    asked = ("--model", "llama3-8b", "--cluster", str(own), "--sequence-length", "4096", "--batch-sequences", "432")
    asked = (*asked, "layout.offload_optimizer=false")
    goal = ("--objective", "devices", "--tokens", "10B", "--deadline-days", "2.7")
    found = document(fourfold, *asked, *goal)
    sizes = [int(line.split()[0]) for line in found["objective"]["lines"][1:]]
    assert sizes[:3] == [6, 12, 24], "whole nodes, doubled"
    assert sizes[3:] == [18], "then between the last that was late and the first in time"
    assert found["devices"] == 18
    assert found["cluster"] == "dgx-h100:18"
    small = fourfold("plan", *asked[:2], "--cluster", f"{own}:3", *asked[4:])
    assert small.code == 1
    assert "6 devices, the cluster file with :6 behind its name" in small.out


@pytest.mark.rest
def test_the_cheapest_number_of_devices_is_sought_between_doubled_ones(fourfold, tmp_path: Path) -> None:
    (tmp_path / "six.toml").write_text(SIX)
    asked = ("--model", "llama3-8b", "--cluster", "six.toml", "--sequence-length", "16384", "--batch-sequences", "96")
    on_device = ("layout.offload=none", "layout.offload_optimizer=false")
    found = document(fourfold, *asked, *on_device, "--objective", "cheapest", "--tokens", "10B", "--price", "2")
    rows = [line.split() for line in found["objective"]["lines"][1:]]
    costs = {int(row[0]): float(row[4].replace(",", "")) for row in rows}
    assert list(costs) == sorted(costs)
    assert set(costs) - {1, 2, 3, 6, 12, 24, 48}, "whole nodes between"
    assert all(size % 6 == 0 for size in costs if size > 6)
    assert costs[found["devices"]] == min(costs.values())


@pytest.mark.parametrize(
    ("option", "wanting"),
    [
        (("--price", "2"), "--tokens"),
        (("--failure-hours", "50k"), "--tokens"),
        (("--deadline-days", "5"), "--objective devices"),
    ],
)
def test_options_that_say_nothing_without_another_are_refused(fourfold, option: tuple[str, str], wanting: str) -> None:
    result = fourfold("plan", *SMALL, *option)
    assert result.code == 2
    assert f"{option[0]} {option[1].removesuffix('.0')}" in result.err
    assert wanting in result.err


RUN = ("--tokens", "10B", "--price", "2.5", "--failure-hours", "50k")


@pytest.mark.parametrize(
    "objective",
    [
        "cheapest",
        *(pytest.param(each, marks=pytest.mark.rest) for each in ("fastest", "safest", "devices", "context", "model")),
    ],
)
def test_every_objective_says_days_cost_and_goodput(fourfold, objective: str) -> None:
    asked = (
        *SMALL[:3],
        "dgx-h100:8",
        *SMALL[4:],
        "layout.tp=1",
        "layout.cp=1",
        "layout.pp=1",
        "--objective",
        objective,
        *RUN,
    )
    deadline = ("--deadline-days", "20") if objective == "devices" else ()
    found, printed = document(fourfold, *asked, *deadline), text(fourfold, *asked, *deadline)
    run, best = found["run"], found["best"][0]
    steps = -(-10_000_000_000 // found["tokens"])
    assert run["training_seconds"] == pytest.approx(steps * best["step_seconds"], rel=1e-12)
    assert 0.9 < run["goodput"] < 1
    assert run["seconds"] == pytest.approx(run["training_seconds"] / run["goodput"])
    devices = found["devices"] + run["failures"]["spare_devices"]
    assert run["dollars"] == pytest.approx(2.5 * devices * run["seconds"] / 3600)
    for line in ("run        10.0 G tokens", f"cost       ${run['dollars']:,.0f}", "goodput    "):
        assert line in printed


@pytest.mark.rest
@pytest.mark.parametrize("objective", [("cheapest",), ("devices", "--deadline-days", "9")])
def test_an_objective_says_of_its_devices_what_a_plan_on_them_says(fourfold, objective: tuple[str, ...]) -> None:
    """The objective's own line of figures is equal too, and what `simulate` says of the layout."""
    asked = (*SMALL[:3], "dgx-h100:16", *SMALL[4:], "layout.cp=1", *RUN)
    found = document(fourfold, *asked, "--objective", *objective, "--out", "planned.toml")
    direct = document(fourfold, *asked[:3], f"dgx-h100:{found['devices']}", *asked[4:])
    assert direct["best"] == found["best"]
    assert direct["run"] == found["run"]
    (row,) = (line.split() for line in found["objective"]["lines"][1:] if line.split()[0] == str(found["devices"]))
    assert row[2] == f"{found['run']['seconds'] / 86_400:.1f}"
    assert row[4] == f"{found['run']['dollars']:,.0f}"
    simulated = json.loads(fourfold("simulate", "planned.toml", "--json", *RUN[2:]).out)
    assert simulated["run"] == found["run"]
