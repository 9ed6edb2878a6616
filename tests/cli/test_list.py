"""`fourfold list`: every name that can be typed, with the facts that its own file or record states."""

import json

import pytest

from fourfold.config import preset_names, run_preset_names
from fourfold.hardware import cluster_names, device_names, load_cluster, load_device
from fourfold.program.schedule import SCHEDULES

NAMES = {
    "models": preset_names(),
    "clusters": cluster_names(),
    "devices": device_names(),
    "presets": [f"preset:{name}" for name in run_preset_names()],
    "schedules": [each.name for each in SCHEDULES],
}


@pytest.mark.parametrize("kind", NAMES)
def test_everything_that_has_a_name_is_listed(fourfold, kind: str) -> None:
    result = fourfold("list", kind)
    assert result.code == 0
    rows = result.out.split("\n\n")[0].splitlines()[1:]
    assert [row.split()[0] for row in rows] == NAMES[kind]
    assert [row["name"] for row in json.loads(fourfold("list", kind, "--json").out)[kind]] == NAMES[kind]


def test_a_row_has_the_figures_of_its_file(fourfold) -> None:
    def row(kind: str, name: str) -> dict:
        return next(row for row in json.loads(fourfold("list", kind, "--json").out)[kind] if row["name"] == name)

    cluster, device = load_cluster("dgx-h100"), load_device("h100-sxm")
    found = row("clusters", "dgx-h100")
    assert (found["devices"], found["devices_per_node"], found["device"]) == (cluster.devices, 8, "h100-sxm")
    assert [each["bytes_per_second"] for each in found["levels"]] == [each.bytes_per_second for each in cluster.levels]
    assert row("devices", "h100-sxm")["peak_flops_per_second"] == device.peak_flops_per_second
    assert row("models", "mixtral-8x7b")["parameters"] == 46_702_792_704
    assert row("models", "mixtral-8x7b")["active_parameters"] < 13e9
    assert row("presets", "preset:llama3-70b")["layout"]["tp"] == 4
    assert row("schedules", "1f1b")["bubble_fraction"] == pytest.approx(3 / 19)


def test_software_is_listed_by_framework_with_its_years(fourfold) -> None:
    rows = {row["name"]: row for row in json.loads(fourfold("list", "software", "--json").out)["software"]}
    listed = [row.split()[0] for row in fourfold("list", "software").out.split("\n\n")[0].splitlines()[1:]]
    assert listed == list(rows)
    assert "fourfold" in rows
    assert "default" not in rows
    assert all(each.startswith(f"{name}-") for name, row in rows.items() for each in row["dated"])
    assert {"fused", "gemm_speed", "context_bytes"} <= rows["megatron"].keys()
