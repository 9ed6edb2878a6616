"""A device that was measured: its file is a cluster of one, is put into larger ones, and states constants of its own."""

from dataclasses import fields, replace
from pathlib import Path

import pytest

from fourfold.config import UserError
from fourfold.cost.fitted import fitted
from fourfold.cost.kernels import Kernels
from fourfold.hardware import load_cluster, parse_cluster, parse_device
from fourfold.hardware.new_cluster import new_cluster
from fourfold.hardware.types import KERNEL_CONSTANTS
from fourfold.simulate.run_prices import on_device, software_named

TEXT = """
name = "My accelerator"
source = "measured"
memory_bytes = 51_539_607_552
memory_bytes_per_second = 800e9
units = 100
host_launch_seconds = 7e-6
context_bytes = 600_000_000
[peak_flops_per_second]
bf16 = 150e12
[kernels]
gemm_share = 0.91
launch_seconds = 2.5e-6
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "mine.toml"
    path.write_text(TEXT)
    return str(path)


def test_its_file_is_a_cluster_of_one(file: str) -> None:
    cluster = load_cluster(file)
    assert (cluster.devices, cluster.device.name, cluster.node_devices) == (1, "My accelerator", 1)


def test_more_of_them_are_a_cluster_of_their_own(file: str) -> None:
    with pytest.raises(UserError, match="one device; what works: fourfold cluster new --device"):
        load_cluster(f"{file}:8")
    made = new_cluster(2, f"{file}:8", "8x400G", "nvlink4")
    cluster = parse_cluster(made.text, "lab.toml")
    assert (cluster.devices, cluster.node_devices) == (16, 8)
    assert cluster.device.kernels == {"gemm_share": 0.91, "launch_seconds": 2.5e-6}
    assert cluster.device.context_bytes == 600_000_000
    assert "150 TFLOP/s in bf16" in made.figures[0].source


def test_a_constant_that_is_none_is_named() -> None:
    with pytest.raises(UserError, match=r"unknown constant 'kernels\.gem_share'; did you mean gemm_share"):
        parse_device(TEXT.replace("gemm_share", "gem_share"), "mine.toml")
    with pytest.raises(UserError, match="a value that works: 3e-6"):
        parse_device(TEXT.replace("2.5e-6", '"fast"'), "mine.toml")


def test_its_constants_stand_in_place_of_fitted_ones() -> None:
    device, known = parse_device(TEXT, "h100-sxm.toml"), fitted()
    own = known.kernels("h100-sxm", known.software("fourfold"), device.kernels)
    usual = known.kernels("h100-sxm", known.software("fourfold"))
    assert (own.gemm_share, own.launch_seconds) == (0.91 * known.software("fourfold").gemm_speed, 2.5e-6)
    assert own.attention_share == usual.attention_share != 0


def test_the_host_of_a_measured_device_is_that_of_fourfolds_own_software() -> None:
    device = parse_device(TEXT, "mine.toml")
    own, other = on_device(software_named(None), device), software_named("megatron-2025")
    assert (own.host_launch_seconds, own.context_bytes) == (7e-6, 600_000_000)
    assert on_device(other, device) == other


def test_every_constant_of_a_file_is_one_of_the_cost_model() -> None:
    assert set(KERNEL_CONSTANTS) <= {field.name for field in fields(Kernels)}


def test_a_measured_gpu_is_priced_with_fused_kernels_as_it_was_measured(file: str) -> None:
    device, own = load_cluster(file).device, software_named(None)
    assert on_device(own, device).fused == 1.0
    assert on_device(own, replace(device, units=None)).fused == own.fused, "a processor's formulas are not fused"
    assert on_device(own, load_cluster("dgx-h100:1").device).fused == own.fused, "it was never measured"
    other = software_named("megatron")
    assert on_device(other, device).fused == other.fused
