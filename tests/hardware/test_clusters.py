"""Devices and clusters that come with fourfold: sourced, sane beside each other, and nested; and cutting or growing them."""

import math
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from fourfold.config import UserError
from fourfold.hardware import (
    PEAK_BITS,
    Cluster,
    cluster_names,
    device_names,
    has_count,
    load_cluster,
    load_device,
    parse_cluster,
    require_count,
)

DEVICES = [
    "v100-sxm-16",
    "v100-sxm-32",
    "a100-sxm-40",
    "a100-sxm-80",
    "a100-custom-64",
    "a100-pcie-40",
    "a100-pcie-80",
    "a800-sxm-80",
    "h100-sxm",
    "h100-pcie",
    "h100-nvl",
    "h100-custom-96",
    "h800-sxm",
    "h200-sxm",
    "h20",
    "b200",
    "b300",
    "gb200",
    "gb300",
    "gh200-96",
    "gh200-144",
    "a40",
    "a10g",
    "rtx-a5000",
    "rtx-a6000",
    "rtx-3090",
    "l4",
    "l40",
    "l40s",
    "rtx-6000-ada",
    "rtx-4090",
    "rtx-5090",
    "rtx-pro-6000",
    "max-1550",
    "mi100",
    "mi250x-gcd",
    "mi300x",
    "mi325x",
    "mi350x",
    "mi355x",
    "gaudi-2",
    "gaudi-3",
    "trainium-core",
    "trainium2",
    "tpu-v4",
    "tpu-v5e",
    "tpu-v5p",
    "tpu-v6e",
    "tpu-v7x",
    "ascend-910b",
    "ascend-910c",
    "ascend-910c-die",
]


def test_the_devices_are_these() -> None:
    assert device_names() == sorted(DEVICES)


@pytest.mark.parametrize("name", DEVICES)
def test_a_device_is_sourced_and_sane(name: str) -> None:
    device = load_device(name)
    assert device.key == name
    assert len(device.source) > 40
    assert "  " not in device.source
    assert device.memory_bytes % 2**30 == 0
    assert 16 * 2**30 <= device.memory_bytes <= 288 * 2**30
    assert 3e11 <= device.memory_bytes_per_second <= 8e12
    assert 20 <= device.peak("bf16") / device.memory_bytes_per_second <= 600, "ridge point in FLOP a byte"
    assert device.units
    for narrower, wider in (("fp4", "fp8"), ("fp8", "bf16"), ("bf16", "tf32"), ("tf32", "fp32"), ("fp32", "fp64")):
        assert device.peak(narrower) >= device.peak(wider), f"{narrower} is at least as fast as {wider}"


@pytest.mark.parametrize(
    ("name", "dtype", "tflops"),
    [
        ("h100-sxm", "bf16", 989),
        ("h100-sxm", "fp4", 1979),
        ("a100-sxm-80", "fp8", 312),
        ("v100-sxm-32", "bf16", 125),
        ("v100-sxm-32", "tf32", 15.7),
        ("tpu-v4", "fp16", 275),
        ("tpu-v4", "fp32", 137.5),
        ("tpu-v4", "fp64", 68.75),
        ("b200", "fp4", 9000),
    ],
)
def test_a_format_that_is_not_stated_has_the_peak_of_the_nearest(name: str, dtype: str, tflops: float) -> None:
    assert load_device(name).peak(dtype) == pytest.approx(tflops * 1e12)


def test_a_format_that_is_none_names_those_that_are() -> None:
    with pytest.raises(UserError, match=r"'int8'.*fp64, fp32, tf32, bf16, fp16, fp8, fp4; for example bf16"):
        load_device("h100-sxm").peak("int8")
    assert all(load_device("h100-sxm").peak(dtype) > 0 for dtype in PEAK_BITS)


def test_worked_figures() -> None:
    h100 = load_device("h100-sxm")
    assert h100.peak("bf16") / h100.memory_bytes_per_second == pytest.approx(295, rel=0.01)
    llama = load_cluster("h100-24576")
    seconds = 6 * 405e9 * 15e12 / (llama.devices * llama.device.peak("bf16"))
    assert seconds / 86400 == pytest.approx(17.4, rel=0.01), "3.645e25 FLOP at 100 %"
    hours = llama.mean_hours_between_failures_per_device
    assert hours is not None
    assert 54 * 24 * 16384 / hours == pytest.approx(419, rel=1e-4), "interruptions in 54 days on 16,384 devices"
    assert [t.bytes_per_second for t in llama.levels] == pytest.approx([450e9, 50e9, 50e9, 50e9 / 7], rel=1e-3)
    v3 = load_cluster("h800-2048")
    assert v3.dollars_per_device_hour == 2
    assert v3.levels[0].bytes_per_second / v3.levels[1].bytes_per_second == pytest.approx(3.2)


@pytest.mark.parametrize("name", cluster_names())
def test_a_cluster_is_sourced_and_its_levels_nest(name: str) -> None:
    cluster = load_cluster(name)
    assert cluster.key == name
    assert len(cluster.source) > 40
    assert "  " not in cluster.source
    assert "- " not in cluster.source.replace(" - ", "")
    assert cluster.device == load_device(cluster.device.key)
    _check_nesting(cluster)
    if cluster.device.power_watts and cluster.watts_per_device:
        assert cluster.watts_per_device > cluster.device.power_watts
    if len(cluster.levels) > 1:
        assert cluster.levels[0].bytes_per_second >= cluster.levels[-1].bytes_per_second
    assert load_cluster(f"{name}:{cluster.devices}") == cluster
    assert (
        load_cluster(f"{name}:{cluster.node_devices}").levels[0].bytes_per_second == cluster.levels[0].bytes_per_second
    )


def _check_nesting(cluster: Cluster) -> None:
    assert cluster.levels[-1].devices == cluster.devices
    assert cluster.node_devices == cluster.levels[0].devices
    below = 1
    for index, level in enumerate(cluster.levels):
        assert level.devices % below == 0
        assert level.devices > below or index == 0
        assert (level.kind == "torus") == bool(level.dimensions)
        if level.kind == "torus":
            assert math.prod(level.dimensions) == level.devices
        below = level.devices


@pytest.mark.parametrize(
    ("name", "levels"),
    [
        ("dgx-h100:1", [("nvlink", 1)]),
        ("dgx-h100:3", [("nvlink", 3)]),
        ("dgx-h100:64", [("nvlink", 8), ("rail", 64)]),
        ("dgx-h100:320", [("nvlink", 8), ("rail", 160), ("spine", 320)]),
        ("dgx-h100:1016", [("nvlink", 8), ("spine", 1016)]),
        ("dgx-h100:16384", [("nvlink", 8), ("rail", 256), ("spine", 16384)]),
        ("h100-24576:16384", [("nvlink", 8), ("rack", 16), ("pod", 2048), ("aggregation", 16384)]),
        ("gb200-nvl72:256", [("nvlink", 64), ("rail", 256)]),
        ("mi300x-8:64", [("infinity-fabric", 8), ("leaf", 64)]),
    ],
)
def test_a_cluster_of_another_size(name: str, levels: list[tuple[str, int]]) -> None:
    cluster = load_cluster(name)
    assert cluster.key == name
    assert cluster.devices == int(name.rpartition(":")[2])
    assert [(t.name, t.devices) for t in cluster.levels] == levels
    _check_nesting(cluster)


@pytest.mark.parametrize(
    ("name", "dimensions", "rate"),
    [
        ("tpu-v5e-256", (16, 16), 50e9),
        ("tpu-v5e-256:128", (8, 16), 37.5e9),
        ("tpu-v5e-256:64", (8, 8), 25e9),
        ("tpu-v5e-256:1", (1,), 50e9),
        ("tpu-v5e-256:50944", (16, 16), 50e9),
        ("tpu-v5p-8960:512", (8, 8, 8), 100e9),
        ("tpu-v5p-8960:192", (4, 4, 12), 100e9),
        ("tpu-v5p-8960:12288", (16, 16, 24), 100e9),
    ],
)
def test_a_part_of_a_torus_is_a_box_and_pays_for_missing_wrap_around(
    name: str, dimensions: tuple[int, ...], rate: float
) -> None:
    cluster = load_cluster(name)
    assert cluster.levels[0].dimensions == dimensions
    assert cluster.levels[0].bytes_per_second == rate
    _check_nesting(cluster)


@pytest.mark.parametrize("devices", [*range(1, 9), *range(16, 2000, 56)])
def test_every_number_of_full_nodes_is_a_cluster(devices: int) -> None:
    for name in ("dgx-a100", "dgx-h100", "h100-24576"):
        _check_nesting(load_cluster(f"{name}:{devices}"))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("dgx-h100:12", ["12 devices", "multiple of the 8", "8 or 16"]),
        ("dgx-h100:0", ["'0'", "1 to 1000000", "dgx-h100:64"]),
        ("dgx-h100:-8", ["'-8'", "1 to 1000000"]),
        ("dgx-h100:", ["''", "1 to 1000000"]),
        ("dgx-h100:8.5", ["'8.5'", "1 to 1000000"]),
        ("dgx-h100:١٦", ["1 to 1000000"]),
        ("dgx-h100:" + "9" * 5000, ["1 to 1000000"]),
        ("h800-2048:4096", ["'leaf' joins 2048", "not scalable", "for example 2048"]),
        ("gb200-nvl72:100", ["multiple of the 72", "72 or 144"]),
        ("tpu-v5e-256:17", ["torus 16 x 16", "16 or 18"]),
        ("tpu-v5e-256:271", ["16 x 16", "256 or 512"]),
    ],
)
def test_a_size_that_does_not_fit_names_one_that_does(name: str, words: list[str]) -> None:
    message = _refused(name)
    assert all(word in message for word in words), message
    assert "\n" not in message
    assert len(message) < 400


@pytest.mark.parametrize("name", ["dgx-h10", "dgx-a100 ", "h100-24567:64", "tpu-v5p", "quark", "", ":8", "x" * 10_000])
def test_an_unknown_cluster_lists_what_there_is(name: str) -> None:
    message = _refused(name)
    assert "is unknown" in message
    assert all(cluster in message for cluster in cluster_names())


def test_an_unknown_name_has_the_nearest() -> None:
    assert "did you mean dgx-h100?" in _refused("dgx-h10")
    assert "did you mean h100-24576?" in _refused("h100-24567:64")
    with pytest.raises(UserError, match=r"device 'h100_sxm' is unknown; did you mean h100-sxm\?.*ascend-910b"):
        load_device("h100_sxm")


@pytest.mark.parametrize("name", ["this", "this:8"])
def test_this_machine_must_be_measured_first(name: str) -> None:
    assert "run `fourfold calibrate` first and give the file it writes" in _refused(name)


def test_a_file_is_a_cluster_and_a_device_too(tmp_path: Path) -> None:
    text = (Path(sys.modules[load_cluster.__module__].__file__ or "").parent / "clusters" / "dgx-h100.toml").read_text()
    path = tmp_path / "mine.toml"
    path.write_text(text)
    preset = load_cluster("dgx-h100")
    assert load_cluster(str(path)).levels == preset.levels
    assert load_cluster(str(path)).key == "mine"
    assert load_cluster(f"{path}:64").key == "mine:64"
    assert load_cluster(f"{path}:64").levels == load_cluster("dgx-h100:64").levels
    assert parse_cluster(text, "some/dgx-h100.toml") == preset


def test_a_cluster_can_be_hashed_and_sent_to_another_process() -> None:
    cluster = load_cluster("dgx-h100")
    assert len({cluster, load_cluster("dgx-h100"), load_cluster("dgx-h100:8")}) == 2
    assert pickle.loads(pickle.dumps(cluster)) == cluster  # noqa: S301


def test_hardware_needs_no_torch() -> None:
    code = "import sys; from fourfold.hardware import load_cluster as load; load('dgx-1-v100')"
    subprocess.run([sys.executable, "-c", f"{code}; sys.exit('torch' in sys.modules)"], check=True, timeout=60)


def _refused(name: str) -> str:
    with pytest.raises(UserError) as caught:
        load_cluster(name)
    assert caught.value.exit_code == 2
    return str(caught.value)


@pytest.mark.parametrize("name", cluster_names())
def test_a_preset_says_how_many_devices_it_has_or_has_to_be_told(name: str) -> None:
    cluster = load_cluster(name)
    open_ = cluster.all_levels[-1].scalable and str(cluster.devices) not in name
    assert has_count(name) != open_
    require_count(f"{name}:{cluster.devices}")
    if open_:
        with pytest.raises(UserError, match=f"--cluster {name}:[0-9]+$") as error:
            require_count(name)
        load_cluster(str(error.value).rpartition("--cluster ")[2])
    else:
        require_count(name)
