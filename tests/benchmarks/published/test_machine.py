"""Devices and networks are read from a row's text."""

from dataclasses import replace

import pytest

from as_case import cluster_of
from case import PublishedCase, Skip
from defaults import DEFAULTS
from fourfold.hardware import load_device
from machine import link_rate
from normalise import normalise
from settle import predict_case
from tests.support.published import CASES, ROWS


def test_devices_and_networks() -> None:
    devices = {name: case.device for name, case in CASES.items()}
    assert (devices["vendor:0"], devices["papers:19"], devices["papers:23"]) == ("gb200", "a800-sxm-80", "b200")
    assert devices["papers:16"] == "a100-sxm-40", "A100 with 40 GB"
    assert devices["flags:1"] == "a100-sxm-80", "a test without a device"
    assert CASES["vendor:0"].network.nvlink_domain == 72
    assert CASES["papers:0"].network.internode_bytes_per_second == 8 * 200e9 / 8 / 8
    assert CASES["papers:19"].network.internode_bytes_per_second == 4 * 100e9 / 8 / 8


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("RoCE 1600 Gb/s (as in section title)", 25e9),
        ("4x100 Gb RoCE per node", 6.25e9),
        ("Eos DGX-H100, 8x400Gb IB", 50e9),
        ("8x ConnectX-7 IB NDR 400Gb/s", 50e9),
        ("8x NVLink 900 GB/s; 400 Gb/s per GPU", 50e9),
        ("NDR InfiniBand 400 Gb/s, 8 rails", 50e9),
        ("RoCE 1600 Gb/s, 8 NICs", 25e9),
        ("8x Slingshot-11 25 GB/s", 25e9),
        ("3.2 Tb/s of InfiniBand per node", 50e9),
        ("NDR400, one NIC per GPU", 50e9),
        ("quad-rail HDR200", 12.5e9),
        ("HDR200 x4", 12.5e9),
        ("8x 400GbE RoCEv2", 50e9),
        ("4x NVSwitch 900 GB/s, 100 Gb/s per GPU", 12.5e9),
        ("AWS p4d.24xlarge: EFA 400 Gb/s per node, NVSwitch 600 GB/s in the node", 6.25e9),
        ("1x ConnectX-7 400 Gb/s per GPU", 50e9),
        ("400 Gb/s InfiniBand, 1 NIC per GPU", 50e9),
        ("800 Gb/s in total over 4 NICs", 12.5e9),
        ("8x A100 80GB, 600 GB/s NVLink, 4x HDR 200 Gb/s", 12.5e9),
        ("NVLink 900 GB/s", None),
        ("8x ConnectX-7 (400 Gb/s)", 50e9),
        ("H100-80G nodes, 400G IB per GPU", 50e9),
        ("10 ms, 1 Gbps", 1e9 / 8 / 8),
        ("8 HDR IB NICs/node", 25e9),
        ("4 Omni-Path links per node", 6.25e9),
        ("NVLink 4 inter-gpu connects, 4 OmniPath links", 6.25e9),
        ("Slingshot-11, 8 cards a node", 25e9),
        ("4x Slingshot-11 per node", 12.5e9),
        ("Omni-Path, links not counted", None),
        ("InfiniBand 8x50 GB/s a node", 50e9),
        ("400 Gbps per GPU", 50e9),
        ("50 GB/s per GPU", 50e9),
        ("see the paper (HDR IB)", None),
        ("RoCE, up to 4 nodes", None),
        ("", None),
    ],
)
def test_link_rates_are_of_one_device_in_one_direction(text: str, rate: float | None) -> None:
    assert link_rate(text, 8) == rate


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("GH200 (96 GB)", "gh200-96"),
        ("NVIDIA L40S", "l40s"),
        ("L4", "l4"),
        ("GeForce RTX 4090", "rtx-4090"),
        ("RTX-3090-24GB", "rtx-3090"),
        ("RTX-PRO-6000-Blackwell-96GB", "rtx-pro-6000"),
        ("AMD Instinct MI355X", "mi355x"),
        ("Intel Gaudi 2 (HL-225H)", "gaudi-2"),
        ("Trainium (one NeuronCore of trn1.32xlarge)", "trainium-core"),
        ("TPU7x (Ironwood)", "tpu-v7x"),
        ("H200-SXM", "h200-sxm"),
        ("H100 (SXM or PCIe not stated)", "h100-sxm"),
        ("H100 PCIe", "h100-pcie"),
    ],
)
def test_devices_by_their_names(name: str, key: str) -> None:
    row = ROWS["torchtitan:6"]
    case = normalise(replace(row, hardware=replace(row.hardware, device=name, memory_gb=None)))
    assert isinstance(case, PublishedCase)
    assert case.device == key
    assert case.hardware == load_device(case.device)


@pytest.mark.parametrize(("stated", "memory_gib"), [(80.0, 80), (84.0, 80), (94.0, 94), (64.0, 64)])
def test_a_known_device_has_the_memory_that_its_row_states_where_that_is_another(
    stated: float, memory_gib: int
) -> None:
    row = ROWS["torchtitan:6"]
    case = normalise(replace(row, hardware=replace(row.hardware, device="H100", memory_gb=stated)))
    assert isinstance(case, PublishedCase)
    assert (case.device, case.hardware.memory_bytes) == ("h100-sxm", memory_gib * 2**30)
    assert cluster_of(case).device == case.hardware


def test_a_device_known_by_its_memory() -> None:
    row = ROWS["torchtitan:6"]
    case = normalise(replace(row, hardware=replace(row.hardware, device="H100", memory_gb=96.0)))
    assert isinstance(case, PublishedCase)
    assert case.hardware == load_device("h100-custom-96")


def test_a_device_of_no_table_is_made_of_what_its_row_states() -> None:
    row = ROWS["torchtitan:6"]
    stated = replace(row.hardware, device="Tachyon X9", memory_gb=128.0, peak_bf16_flops=800e12)
    case = normalise(replace(row, hardware=stated))
    assert isinstance(case, PublishedCase)
    assert case.hardware.peak("bf16") == 800e12
    assert DEFAULTS["stated_device"] in case.defaults
    slower = replace(stated, peak_bf16_flops=400e12)
    fast, slow = predict_case(case), predict_case(normalise(replace(row, hardware=slower)))  # type: ignore[arg-type]
    assert fast.step_seconds < slow.step_seconds
    assert isinstance(normalise(replace(row, hardware=replace(stated, peak_bf16_flops=None))), Skip)


@pytest.mark.parametrize("name", ["Trainium3", "NeuronCore of trn2.48xlarge"])
def test_devices_that_only_resemble_one_of_the_tables_are_not_taken_for_it(name: str) -> None:
    row = ROWS["torchtitan:6"]
    case = normalise(replace(row, hardware=replace(row.hardware, device=name, peak_bf16_flops=None)))
    assert isinstance(case, Skip)
    assert "device tables" in case.reason


def test_a_tpu_is_a_chip_of_one_torus() -> None:
    row = ROWS["vendor:10"]
    hardware = replace(
        row.hardware, device="TPU v5p", devices_per_node=4, memory_gb=95, internode="", nvlink_domain=None
    )
    case = normalise(replace(row, hardware=hardware))
    assert isinstance(case, PublishedCase)
    assert case.network.nvlink_domain == 8960
    assert [(level.kind, level.devices) for level in cluster_of(case).levels] == [("torus", case.num_devices)]
    slices = normalise(replace(row, hardware=replace(hardware, devices_per_node=32)))
    assert isinstance(slices, PublishedCase)
    assert slices.network.nvlink_domain == 32


@pytest.mark.parametrize(
    ("device", "text", "rate"),
    [
        ("H100-80GB-SXM", "InfiniBand 400 Gb/s", 50e9),
        ("H100-80GB-SXM", "400 Gb/s InfiniBand per node", 6.25e9),
        ("H100-80GB-SXM", "InfiniBand 800 Gb/s", 12.5e9),
        ("A100-80GB-SXM", "InfiniBand HDR 200 Gb/s", 25e9),
        ("A100-80GB-SXM", "400 Gb/s", 6.25e9),
        ("H100-80GB-SXM", "1x 400 Gb/s NIC", 6.25e9),
        ("GH200-96GB", "Slingshot, about 25 GB/s of all-to-all between nodes", 25e9),
        ("GH200-96GB", "Slingshot, 25 GB/s per node", 6.25e9),
        ("A100-80GB-SXM", "Jean Zay A100 partition, 8 GPU/node", 6.25e9),
        ("A100-80GB-SXM", "Selene", 25e9),
        ("H100-80GB-SXM", "Jean Zay H100 partition", 50e9),
        ("A100-80GB-SXM", "a frontier lab", 25e9),
        ("A100-80GB-SXM", "Selene, 400 Gb/s per GPU", 50e9),
    ],
)
def test_a_rate_of_nobody_is_each_devices_where_that_is_usual(device: str, text: str, rate: float) -> None:
    row = ROWS["vendor:10"]
    case = normalise(
        replace(
            row,
            hardware=replace(row.hardware, device=device, devices_per_node=4 if "GH" in device else 8, internode=text),
        )
    )
    assert isinstance(case, PublishedCase)
    assert case.network.internode_bytes_per_second == rate


@pytest.mark.parametrize(
    ("device", "per_node", "gigabytes"),
    [
        ("MI355X", 8, 50),
        ("MI300X", 8, 50),
        ("B300", 8, 100),
        ("GB200", 4, 50),
        ("RTX 4090", 8, 12.5),
        ("A800-80GB", 8, 12.5),
    ],
)
def test_a_network_that_is_not_stated_is_the_usual_one(device: str, per_node: int, gigabytes: float) -> None:
    """Never the links of a node, where a cluster file ends at it; the row says what was taken."""
    row = ROWS["vendor:10"]
    hardware = replace(
        row.hardware, device=device, devices_per_node=per_node, memory_gb=None, internode="", nvlink_domain=per_node
    )
    case = normalise(replace(row, hardware=hardware))
    assert isinstance(case, PublishedCase)
    assert case.num_devices > per_node
    assert cluster_of(case).levels[-1].bytes_per_second == gigabytes * 1e9
    assert any(entry.startswith("network = ") and DEFAULTS["network"] in entry for entry in case.defaults)
    alone = normalise(replace(row, hardware=replace(hardware, devices_per_node=case.num_devices, nvlink_domain=None)))
    assert isinstance(alone, PublishedCase)
    assert not any(entry.startswith("network = ") for entry in alone.defaults), "nothing crosses it"


def test_a_tile_is_a_device() -> None:
    row = ROWS["torchtitan:6"]
    name = "Intel Data Center GPU Max 1550 (one tile is one device)"
    case = normalise(replace(row, hardware=replace(row.hardware, device=name, peak_bf16_flops=None, memory_gb=64)))
    assert isinstance(case, PublishedCase)
    assert (case.device, case.hardware) == ("max-1550", load_device("max-1550"))
    assert case.software == "torchtitan"


@pytest.mark.parametrize(
    ("device", "framework", "software"),
    [
        ("MI300X", "Megatron-LM (2025)", "megatron-rocm"),
        ("MI300X", "torchtitan (2025)", "torchtitan"),
        ("H100-SXM", "Megatron-LM (2025)", "megatron"),
        ("MI300X", "somebody's own (2025)", "unknown"),
    ],
)
def test_a_platform_with_kernels_of_its_own_is_another_software_profile(
    device: str, framework: str, software: str
) -> None:
    row = replace(ROWS["torchtitan:6"], source="a page", framework=framework, notes="")
    hardware = replace(row.hardware, device=device, peak_bf16_flops=None, memory_gb=None)
    case = normalise(replace(row, hardware=hardware))
    assert isinstance(case, PublishedCase)
    assert case.software == software
