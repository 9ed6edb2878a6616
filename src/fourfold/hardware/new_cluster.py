"""A cluster file from a few words: how many nodes of which devices, and the network between them.

Links go by the names that people type: a network as `8x400G`, `2x100GbE`, `1x200Gb-IB` or `8xndr`; a node's link as `nvlink4`.
"""

import re
from dataclasses import dataclass

import tomli_w

from fourfold.config.errors import UserError, did_you_mean
from fourfold.hardware.files import (
    cluster_names,
    device_names,
    devices_like,
    is_path,
    load_cluster,
    load_device,
    read_device_table,
)
from fourfold.hardware.types import MAX_DEVICES, PCIE_4, Device

GENERATIONS = {
    "qdr": 32, "fdr": 56, "edr": 100, "hdr100": 100, "hdr": 200, "ndr200": 200, "ndr": 400, "xdr": 800,
}  # fmt: skip
"""InfiniBand's generations: Gb/s of a port of four lanes (`hdr100`, `ndr200`: of two)."""
CARDS = re.compile(r".*-pcie\b.*|rtx-.*|l4|l40s?|a10g|a40|h100-nvl")
"""Devices on PCIe cards."""


@dataclass(frozen=True)
class Fabric:
    """A kind of link. `latency_seconds`: of one small message. `source`: where that is from."""

    name: str
    latency_seconds: float
    source: str


INFINIBAND = Fabric("infiniband", 4e-6, "InfiniBand through one switch: NCCL's tuning table")
ROCE = Fabric(
    "ethernet", 5e-6, "estimate: Ethernet with RDMA (RoCE), 1 us more than InfiniBand; without RDMA append -tcp"
)
TCP = Fabric("ethernet", 30e-6, "estimate: Ethernet through the host's TCP sockets")
EFA = Fabric("efa", 15e-6, "estimate: AWS EFA")
TCPXO = Fabric("tcpxo", 15e-6, "estimate: Google TCPXO")
FABRICS = {
    "ib": INFINIBAND, "infiniband": INFINIBAND, "be": ROCE, "e": ROCE, "eth": ROCE, "ethernet": ROCE, "roce": ROCE,
    "tcp": TCP, "efa": EFA, "tcpxo": TCPXO,
}  # fmt: skip
"""By the word behind a rate, as in `100GbE` and `400G-IB`."""
_NETWORK = re.compile(
    r"(?:(\d{1,3})\s*[x*]\s*)?(\d{1,5}(?:\.\d{1,3})?)\s*(g|t)(b/s|bps|bit/s|bit|b(?!e))?[\s-]*([a-z]*)(-tcp)?"
)
_GENERATION = re.compile(r"(?:(\d{1,3})\s*[x*]\s*)?([a-z]+\d*)")


@dataclass(frozen=True)
class Network:
    """A node's ports to other nodes: `ports` of `gigabits` per second each, in one direction."""

    ports: int
    gigabits: float
    fabric: Fabric
    is_fabric_stated: bool = True

    @property
    def bytes_per_second(self) -> float:
        """One direction of all ports of a node."""
        return self.ports * self.gigabits * 1e9 / 8


def parse_network(text: str) -> Network:
    """`COUNT x RATE KIND`: `2x100GbE`, `8x400G`, `1x200Gb-IB`, `8xndr`. Rates are bits per second, as on a port's label; a count
    left out is one port a node. Raises `UserError`."""
    plain = text.strip().lower()
    if re.search(r"\dGB(/s|ps)?\b", text):
        raise UserError(
            f"--network {text[:80]!r}: GB are bytes; allowed: Gb, bits per second; a value that works: 8x400Gb"
        )
    match = _NETWORK.fullmatch(plain)
    generation = _GENERATION.fullmatch(plain)
    if match and (match[5] in FABRICS or not match[5]):
        rate = float(match[2]) * (1000 if match[3] == "t" else 1)
        fabric = TCP if match[6] else FABRICS.get(match[5], INFINIBAND)
        found = Network(int(match[1] or 1), rate, fabric, bool(match[5] or match[6]))
    elif generation and generation[2] in GENERATIONS:
        found = Network(int(generation[1] or 1), GENERATIONS[generation[2]], INFINIBAND)
    else:
        word, known = (match[5], FABRICS) if match else (plain.rpartition("x")[2] if generation else plain, GENERATIONS)
        raise UserError(
            f"--network {text[:80]!r}: not a network; {did_you_mean(word, known)}allowed: COUNTxRATE with G, Gb, GbE, G-IB, "
            f"G-RoCE, G-TCP or G-EFA behind the rate in Gb/s, or one of {', '.join(GENERATIONS)}; a value that works: 8x400G"
        )
    if not (1 <= found.ports <= 128 and 1 <= found.gigabits <= 10_000):
        raise UserError(
            f"--network {text[:80]!r}: allowed: 1 to 128 ports of 1 to 10000 Gb/s; a value that works: 8x400G"
        )
    return found


@dataclass(frozen=True)
class NodeLink:
    """A device's link to the others of its node: bytes per second in one direction."""

    name: str
    bytes_per_second: float
    latency_seconds: float
    source: str


_NVLINK, _PCIE = "latency: NCCL's tuning table", "latency: estimate"
NODE_LINKS = {
    "nvlink2": NodeLink("nvlink", 150e9, 1.9e-6, f"NVLink 2, six links of 25 GB/s (V100); {_NVLINK}"),
    "nvlink3": NodeLink("nvlink", 300e9, 1.9e-6, f"NVLink 3, twelve links of 25 GB/s (A100); {_NVLINK}"),
    "nvlink4": NodeLink("nvlink", 450e9, 1.9e-6, f"NVLink 4, eighteen links of 25 GB/s (H100); {_NVLINK}"),
    "nvlink5": NodeLink("nvlink", 900e9, 1.9e-6, f"NVLink 5, eighteen links of 50 GB/s (B200); {_NVLINK}"),
    "pcie3": NodeLink("pcie", 16e9, 3e-6, f"PCIe 3 x16; {_PCIE}"),
    "pcie4": NodeLink("pcie", PCIE_4, 3e-6, f"PCIe 4 x16; {_PCIE}"),
    "pcie5": NodeLink("pcie", 64e9, 3e-6, f"PCIe 5 x16; {_PCIE}"),
}
_RATE = re.compile(r"(\d{1,5}(?:\.\d{1,3})?)\s*gb(?:/s|ps)")


def parse_link(text: str) -> NodeLink:
    """`nvlink4`, `pcie5`, or a rate as `448GB/s`: bytes per second of one device in one direction. Raises `UserError`."""
    plain = text.strip().lower()
    if plain in NODE_LINKS:
        return NODE_LINKS[plain]
    match = _RATE.fullmatch(plain)
    if match is None or not 0.01 <= float(match[1]) <= 50_000:
        raise UserError(
            f"--link {text[:80]!r} is unknown; {did_you_mean(plain, NODE_LINKS)}allowed: {', '.join(NODE_LINKS)}, or a rate in "
            "GB/s; a value that works: --link 448GB/s"
        )
    return NodeLink("link", float(match[1]) * 1e9, 2e-6, "as stated; latency: estimate")


@dataclass(frozen=True)
class Figure:
    """A figure of the file: `what` it is, its `value` with unit, and `source`, where it comes from."""

    what: str
    value: str
    source: str


@dataclass(frozen=True)
class NewCluster:
    """`text`: the file. `figures`: each of its figures, explained."""

    title: str
    text: str
    figures: tuple[Figure, ...]


def new_cluster(
    nodes: int, device: str, network: str | None, link: str | None = None, price: float | None = None
) -> NewCluster:
    """`device`: NAME or NAME:DEVICES of a node, as `a100-40gb:8`; NAME may be a device's file. `network`: as `parse_network` reads
    it. `link`: in the node, as `parse_link` reads it; left out, as in a cluster that comes with fourfold, PCIe 4 for cards. Raises
    `UserError`."""
    name, a_node = _device(device)
    is_file = is_path(name)
    found, others = (load_device(name), []) if is_file else _chosen(name)
    if not 1 <= nodes * a_node <= MAX_DEVICES or nodes < 1:
        raise UserError(
            f"--nodes {nodes}: allowed: 1 to {MAX_DEVICES // a_node} nodes of {a_node}; a value that works: 4"
        )
    if nodes > 1 and network is None:
        raise UserError("--network is missing: the ports of a node to the others; a value that works: --network 8x400G")
    beside = f"; {name} may also be {' or '.join(others)}" if others else ""
    memory, peak = f"{found.memory_bytes / 2**30:.0f} GiB", f"{_tera(found.peak('bf16'))} TFLOP/s in bf16"
    where = "all its figures are in this file" if is_file else f"fourfold list devices{beside}"
    figures = [Figure("device", found.key, f"{found.name}: {memory}, {peak}; {where}")]
    levels: list[str] = []
    if a_node > 1 or nodes == 1:
        joined = parse_link(link) if link is not None else _usual_link(found)
        figures += _figures(
            "in the node", joined.bytes_per_second, joined.latency_seconds, joined.source, joined.source
        )
        levels.append(_level(joined.name, a_node, joined.bytes_per_second, joined.latency_seconds))
    else:
        levels.append(
            _level("node", 1, 1e9, 0.0).replace("[[levels]]", "[[levels]]  # a node of one device: joins nothing")
        )
    if network is not None and nodes > 1:
        ports = parse_network(network)
        rate, latency = ports.bytes_per_second / a_node, ports.fabric.latency_seconds
        figures += _figures("between nodes", rate, latency, _ports(ports, a_node), _kind(ports))
        levels.append(_level(ports.fabric.name, nodes * a_node, rate, latency, scalable=True))
    if price is not None:
        figures.append(Figure("price", f"{price:g} $/h", "of a device, as stated"))
    title = f"{nodes} node{'s' if nodes > 1 else ''} of {a_node} x {found.name}"
    kind = f"the device of {found.key}.toml" if is_file else "a preset device"
    head = {
        "name": title,
        "source": f"fourfold cluster new: {kind}; link rates as stated or usual; latencies estimated",
        "devices": nodes * a_node,
        **({} if price is None else {"dollars_per_device_hour": price}),
        "device": read_device_table(name) if is_file else found.key,
    }
    comments = [f"# {each.what}: {each.value}. {each.source}" for each in figures]
    return NewCluster(title, "\n".join([*comments, "", tomli_w.dumps(head), *levels, ""]), tuple(figures))


def _tera(rate: float) -> str:
    return f"{rate / 1e12:.0f}" if rate >= 1e12 else f"{rate / 1e12:.2g}"


def _device(text: str) -> tuple[str, int]:
    name, colon, count = text.partition(":")
    if colon and not (count.isascii() and count.isdigit() and len(count) < 6 and int(count) > 0):
        raise UserError(f"--device {text[:80]}: allowed: NAME:DEVICES of a node; a value that works: h100-sxm:8")
    return name, int(count) if colon else 1


def _chosen(name: str) -> tuple[Device, list[str]]:
    """The device of a name or of a part of it, and others that it may be."""
    like = [name] if name in device_names() else devices_like(name)
    modules = [each for each in like if "-sxm" in each] or like
    if len(modules) == 1:
        return load_device(modules[0]), [each for each in like if each != modules[0]]
    if modules:
        raise UserError(f"--device {name}: which one? allowed: {', '.join(like)}; a value that works: {modules[0]}:8")
    hint = did_you_mean(name, device_names())
    raise UserError(f"--device {name[:80]} is unknown; {hint}allowed: {', '.join(device_names())}")


def _usual_link(device: Device) -> NodeLink:
    for name in cluster_names():
        cluster = load_cluster(name)
        level = cluster.levels[0]
        if cluster.device.key == device.key and level.kind == "switch":
            return NodeLink(level.name, level.bytes_per_second, level.latency_seconds, f"as in the preset {name}")
    if CARDS.fullmatch(device.key):
        card = NODE_LINKS["pcie4"]
        return NodeLink(card.name, card.bytes_per_second, card.latency_seconds, f"assumed: {card.source}; else --link")
    raise UserError(
        f"--link is missing: no preset says how the devices of a node of {device.key} are joined; allowed: "
        f"{', '.join(NODE_LINKS)}, or a rate of one device in one direction; a value that works: --link 448GB/s"
    )


def _figures(what: str, rate: float, latency: float, rate_source: str, latency_source: str) -> list[Figure]:
    return [
        Figure(what, f"{rate / 1e9:g} GB/s", f"a device, in one direction: {rate_source}"),
        Figure(f"{what}, latency", f"{latency * 1e6:g} us", latency_source),
    ]


def _ports(network: Network, a_node: int) -> str:
    node = f"{network.ports} x {network.gigabits:g} Gb/s a node = {network.bytes_per_second / 1e9:g} GB/s"
    more = f" (one each: {a_node}x{network.gigabits:g}G)" if network.ports == 1 < a_node else ""
    return f"{node}, divided by its {a_node} devices{more}" if a_node > 1 else node


def _kind(network: Network) -> str:
    unsaid = (
        "" if network.is_fabric_stated else "kind not stated, taken for InfiniBand (else 100GbE, 100G-TCP, 100G-EFA); "
    )
    return unsaid + network.fabric.source


def _level(name: str, devices: int, rate: float, latency: float, scalable: bool = False) -> str:
    lines = ["", "[[levels]]", f'name = "{name}"', 'kind = "switch"', f"devices = {devices}"]
    lines += [f"bytes_per_second = {rate!r}", f"latency_seconds = {latency!r}"]
    return "\n".join([*lines, *(["scalable = true"] if scalable else [])])
