"""Networks and nodes by the names that people type, and the cluster files made of them."""

import pytest

from fourfold.config import UserError
from fourfold.hardware import parse_cluster, resized
from fourfold.hardware.new_cluster import (
    EFA,
    INFINIBAND,
    ROCE,
    TCP,
    TCPXO,
    Fabric,
    new_cluster,
    parse_link,
    parse_network,
)


@pytest.mark.parametrize(
    ("text", "ports", "gigabits", "fabric"),
    [
        ("8x400G", 8, 400, INFINIBAND),
        ("2x100GbE", 2, 100, ROCE),
        ("1x200Gb-IB", 1, 200, INFINIBAND),
        ("8 x 400 Gbps", 8, 400, INFINIBAND),
        ("400Gb/s", 1, 400, INFINIBAND),
        ("4x100G-RoCE", 4, 100, ROCE),
        ("10GbE-tcp", 1, 10, TCP),
        ("25g tcp", 1, 25, TCP),
        ("4x100G-EFA", 4, 100, EFA),
        ("1.6Tb-ib", 1, 1600, INFINIBAND),
        ("ndr", 1, 400, INFINIBAND),
        ("8xNDR", 8, 400, INFINIBAND),
        ("4xhdr100", 4, 100, INFINIBAND),
        ("8*hdr", 8, 200, INFINIBAND),
        ("2x25GbE-tcp", 2, 25, TCP),
        ("8x200G-TCPXO", 8, 200, TCPXO),
    ],
)
def test_a_network_by_its_name(text: str, ports: int, gigabits: float, fabric: Fabric) -> None:
    found = parse_network(text)
    assert (found.ports, found.gigabits, found.fabric) == (ports, gigabits, fabric)
    assert found.bytes_per_second == ports * gigabits * 1e9 / 8


@pytest.mark.parametrize(
    "text", ["", "8x", "x400G", "400", "8x400GB/s", "400GB", "0x400G", "8x0G", "999x400G", "ndr8", "400Gfoo"]
)
def test_what_is_no_network_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="a value that works: 8x400G"):
        parse_network(text)


def test_a_link_by_its_name_or_its_rate() -> None:
    assert parse_link("NVLink4").bytes_per_second == 450e9
    assert parse_link("448 GB/s").bytes_per_second == 448e9
    with pytest.raises(UserError, match="did you mean nvlink4"):
        parse_link("nvlnk4")


def test_a_file_of_four_nodes() -> None:
    made = new_cluster(4, "a100-40gb:8", "2x100GbE", price=1.5)
    cluster = parse_cluster(made.text, "lab.toml")
    inner, outer = cluster.levels
    assert (cluster.device.key, cluster.devices, cluster.node_devices) == ("a100-sxm-40", 32, 8)
    assert (inner.bytes_per_second, inner.latency_seconds) == (300e9, 1.9e-6)
    assert (outer.bytes_per_second, outer.latency_seconds) == (25e9 / 8, 5e-6)
    assert cluster.dollars_per_device_hour == 1.5
    assert resized(cluster, 64).devices == 64
    sources = {each.what: each.source for each in made.figures}
    assert "aws-p4d" in sources["in the node"]
    assert "2 x 100 Gb/s a node = 25 GB/s" in sources["between nodes"]
    assert "RoCE" in sources["between nodes, latency"]
    assert "a100-pcie-40" in sources["device"]
    assert (sources["price"], made.figures[-1].value) == ("of a device, as stated", "1.5 $/h")


def test_nodes_of_one_device_and_one_node() -> None:
    scattered = parse_cluster(new_cluster(16, "h100-sxm", "400G").text, "lab.toml")
    assert [level.devices for level in scattered.levels] == [1, 16]
    assert scattered.node_devices == 1
    single = parse_cluster(new_cluster(1, "rtx-4090:4", None).text, "lab.toml")
    assert [(level.name, level.devices) for level in single.levels] == [("pcie", 4)]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((2, "h10-sxm:8", "ndr"), "did you mean h100-sxm?"),
        ((2, "a100:8", "ndr"), "which one? allowed: a100-sxm-40, a100-sxm-80"),
        ((2, "h100-sxm:0", "ndr"), "NAME:DEVICES of a node"),
        ((0, "h100-sxm:8", "ndr"), "--nodes 0: allowed: 1 to"),
        ((2, "h100-sxm:8", None), "--network is missing"),
        ((1, "mi325x:8", None), "--link is missing"),
    ],
    ids=str,
)
def test_what_cannot_be_made_is_refused(arguments: tuple, expected: str) -> None:
    with pytest.raises(UserError) as caught:
        new_cluster(*arguments)
    assert expected in str(caught.value)
