"""Links by the names that people type: a network as `8x400G`, `2x100GbE`, `1x200Gb-IB` or `8xndr`; a node's link as `nvlink4`."""

import re
from dataclasses import dataclass

from fourfold.config.errors import UserError, did_you_mean
from fourfold.hardware.types import PCIE_4

GENERATIONS = {
    "qdr": 32, "fdr": 56, "edr": 100, "hdr100": 100, "hdr": 200, "ndr200": 200, "ndr": 400, "xdr": 800,
}  # fmt: skip
"""InfiniBand's generations: Gb/s of a port of four lanes (`hdr100`, `ndr200`: of two)."""


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
