"""Device, node and network of a published row."""

import re
from dataclasses import replace
from functools import lru_cache

from case import Network, NotACase
from defaults import ImputedDefaults
from fourfold.hardware import Device, Level, cluster_names, load_cluster, load_device
from row import Row, StatedHardware

_KEYS: tuple[tuple[str, str], ...] = (
    (r"GB300", "gb300"),
    (r"GB200", "gb200"),
    (r"B300", "b300"),
    (r"B200", "b200"),
    (r"GH200", "gh200-96"),
    (r"H200", "h200-sxm"),
    (r"H20\b", "h20"),
    (r"H800", "h800-sxm"),
    (r"H100.*NVL", "h100-nvl"),
    (r"H100(?!.*SXM).*PCI", "h100-pcie"),
    (r"H100", "h100-sxm"),
    (r"A800", "a800-sxm-80"),
    (r"A100.*40.*PCI|A100.*PCI.*40", "a100-pcie-40"),
    (r"A100.*PCI", "a100-pcie-80"),
    (r"A100.*40", "a100-sxm-40"),
    (r"A100", "a100-sxm-80"),
    (r"V100.*16|P3\.16", "v100-sxm-16"),
    (r"V100", "v100-sxm-32"),
    (r"RTX PRO[- ]6000", "rtx-pro-6000"),
    (r"6000[- ]ADA", "rtx-6000-ada"),
    (r"A6000", "rtx-a6000"),
    (r"A5000", "rtx-a5000"),
    (r"RTX ?5090", "rtx-5090"),
    (r"RTX ?4090", "rtx-4090"),
    (r"RTX ?3090", "rtx-3090"),
    (r"\bL40S", "l40s"),
    (r"\bL40\b", "l40"),
    (r"\bL4\b", "l4"),
    (r"\bA40\b", "a40"),
    (r"\bA10G", "a10g"),
    (r"MI355X", "mi355x"),
    (r"MI350X", "mi350x"),
    (r"MI325X", "mi325x"),
    (r"MI300X", "mi300x"),
    (r"MI250X?\b", "mi250x-gcd"),
    (r"MI100", "mi100"),
    (r"MAX 1550.*TILE", "max-1550"),
    (r"GAUDI ?-?2|HL-225", "gaudi-2"),
    (r"GAUDI ?-?3|HL-325", "gaudi-3"),
    (r"^(?!.*CORE).*(TRAINIUM ?2|TRN2)", "trainium2"),
    (r"TRAINIUM(?! ?[2-9])|TRN1", "trainium-core"),
    (r"TPU ?V?7X?|IRONWOOD", "tpu-v7x"),
    (r"V5P", "tpu-v5p"),
    (r"V5E|V5 LITE", "tpu-v5e"),
    (r"V6E|TRILLIUM", "tpu-v6e"),
    (r"TPU.*V4", "tpu-v4"),
    (r"910C.*\bDIE\b|\bA3\b.*ASCEND|ASCEND.*\bA3\b", "ascend-910c-die"),
    (r"910C", "ascend-910c"),
    (r"910B", "ascend-910b"),
)
"""The first pattern found in the device's name wins."""

_BY_MEMORY = {
    "a100-sxm-80": {40: "a100-sxm-40", 64: "a100-custom-64"},
    "a100-pcie-80": {40: "a100-pcie-40"},
    "h100-sxm": {95: "h100-custom-96", 96: "h100-custom-96"},
    "v100-sxm-32": {16: "v100-sxm-16"},
    "gh200-96": {141: "gh200-144", 144: "gh200-144"},
    "ascend-910c-die": {128: "ascend-910c"},
}
DEVICE_KEYS: tuple[str, ...] = tuple(
    sorted({key for _, key in _KEYS} | {key for sizes in _BY_MEMORY.values() for key in sizes.values()})
)
LARGEST_TPU_HOST = 8
"""Chips: what a row calls a node of up to so many is one host of a pod, whose links join all of its chips to one torus."""
NODE_LINKS: tuple[tuple[str, float], ...] = (
    ("rtx-", 20e9),
    ("l4", 20e9),
    ("a40", 20e9),
    ("a10g", 10e9),
    ("a100-pcie", 22e9),
    ("h100-pcie", 45e9),
    ("h100-nvl", 45e9),
    ("gh200", 150e9),
    ("mi35", 537e9),
    ("mi3", 448e9),
    ("mi100", 90e9),
    ("ascend-910c-die", 196e9),
    ("gaudi-2", 262e9),
    ("gaudi-3", 525e9),
    ("trainium2", 128e9),
    ("trainium", 48e9),
)
"""Bytes a second of one device within a node, by the beginning of its key, where no cluster that comes with fourfold has it: PCIe,
NVLink, Infinity Fabric, Ethernet on the board, by their datasheets."""
SAME_MEMORY = 0.08
"""How far a stated memory may be from a device's own and still be that, counted otherwise."""
FLOPS_A_BYTE = 240
"""Peak bf16 FLOP/s over bytes of memory a second, of a device known by its row alone: the middle of A100 to B200."""


def device_of(hardware: StatedHardware, row: Row, imputed: ImputedDefaults) -> Device:
    """A device of the tables, with the memory that the row states where that is another; or one made of the row's own figures."""
    name, memory_gb = _known_device(hardware, row, imputed), hardware.memory_gb
    if name is not None:
        device = load_device(name)
        stated = round((memory_gb or 0) * 2**30) or device.memory_bytes
        return replace(device, memory_bytes=stated) if abs(stated / device.memory_bytes - 1) > SAME_MEMORY else device
    peak = hardware.peak_bf16_flops
    if not peak or not memory_gb:
        raise NotACase(f"the device {hardware.device[:40]!r} is not in the device tables")
    imputed.approximate("stated_device")
    peaks = {"bf16": peak} | ({"fp8": hardware.peak_fp8_flops} if hardware.peak_fp8_flops else {})
    key, memory_bytes = re.sub(r"[^a-z0-9]+", "-", hardware.device.lower())[:40], round(memory_gb * 2**30)
    return Device(key, hardware.device[:80], row.source[:200], memory_bytes, peak / FLOPS_A_BYTE, peaks)


def _known_device(hardware: StatedHardware, row: Row, imputed: ImputedDefaults) -> str | None:
    """The key of the device tables."""
    name = hardware.device.upper().replace("RTX-", "RTX ")
    if not name or (row.regression and "GOLDEN" in name):
        if row.regression:
            return imputed.fill("device", "a100-sxm-80")
        raise NotACase("the device is not stated")
    key = next((key for pattern, key in _KEYS if re.search(pattern, name)), None)
    if key is None:
        return None
    if hardware.memory_gb is not None and "40" not in name and "80" not in name and "16" not in name:
        key = _BY_MEMORY.get(key, {}).get(round(hardware.memory_gb), key)
    sized = hardware.memory_gb is not None or re.search(r"16|32|40|80", name)
    form_open = key.startswith(("h100-sxm", "a100-sxm")) and "SXM" not in name and "DGX" not in name
    if form_open or (key.startswith("a100") and not sized):
        imputed.fill("device", key)
    return key


def network_of(
    hardware: StatedHardware, device: str, num_devices: int, notes: str, imputed: ImputedDefaults
) -> Network:
    """Nodes and links; the text of the network, or a remark on it in the notes, is read where it has figures."""
    per_node = hardware.devices_per_node
    if per_node is None:
        usual = (
            4
            if device in ("gb200", "gb300") or device.startswith(("tpu", "gh200"))
            else 16
            if device.startswith("v100")
            else 8
        )
        per_node = imputed.fill("devices_per_node", usual)
    within = usual_levels(device)[0]
    pod = within.devices if within.kind == "torus" and per_node <= LARGEST_TPU_HOST else per_node
    domain = hardware.nvlink_domain or (72 if device in ("gb200", "gb300") else pod)
    text = hardware.internode
    rate = link_rate(text, per_node)
    if rate is None and re.search(r"\bNICs?\b", notes, re.IGNORECASE):
        text, rate = notes, link_rate(notes, per_node)
    if rate is None and hardware.devices_per_node is not None:
        named = (node for (name, kind), node in MACHINES.items() if device.startswith(kind) and re.search(name, text))
        node = next(named, None)
        rate = None if node is None else node / per_node
    of_device = usual_levels(device)[-1].bytes_per_second
    if (
        rate is not None
        and rate * per_node == of_device != rate
        and not (_IN_ALL.search(text) or _cards(_spelled(text))[0])
    ):
        rate = imputed.fill("internode", of_device)
    assumed = rate is None and num_devices > domain and within.kind != "torus"
    if assumed:
        rate = imputed.fill("network", of_device)
    return Network(per_node, domain, rate, hardware.internode[:500], assumed)


MACHINES = {
    (r"\bJean[- ]Zay\b", "a100"): 50e9,
    (r"\bSelene\b", "a100"): 200e9,
    (r"\bJUWELS[- ]Booster\b", "a100"): 100e9,
    (r"\bLeonardo\b", "a100"): 50e9,
    (r"\bPerlmutter\b", "a100"): 100e9,
    (r"\b(Frontier|LUMI)\b", "mi250x"): 100e9,
    (r"\bSummit\b", "v100"): 25e9,
}
"""Bytes a second of a node into its network, by the machine's name, where it is all that a row says, and its devices: four links of
Omni-Path 100 (IDRIS), eight or four of InfiniBand HDR, four of HDR100, four of Slingshot 11, two of InfiniBand EDR."""
USUAL_NETWORK = {
    "a800-sxm-80": 12.5e9,
    "gh200-96": 25e9,
    "gh200-144": 25e9,
    "gb200": 50e9,
    "gb300": 100e9,
    "mi300x": 50e9,
    "mi325x": 50e9,
    "mi350x": 50e9,
    "mi355x": 50e9,
    "max-1550": 16.7e9,
    "gaudi-2": 37.5e9,
    "gaudi-3": 75e9,
    "trainium2": 25e9,
    "ascend-910b": 25e9,
}
"""Bytes a second of one device beyond its node, where most clusters of that device have another network than the cluster file
has that comes with fourfold, or none comes with it: a card of 200 or 400 Gb/s each (800 Gb/s for GB300), Gaudi's three ports of
100 or 200 Gb/s, Aurora's eight cards for twelve tiles."""
ANY_NETWORK = 12.5e9
"""Bytes a second of any other device beyond its node."""


@lru_cache(maxsize=64)
def usual_levels(device: str) -> tuple[Level, ...]:
    """Links within a node and the network beyond: those of the first shipped cluster of that device. Where none comes with it, or
    its file ends at the node, the network is the usual one."""
    clusters = (cluster for cluster in map(load_cluster, cluster_names()) if cluster.device.key == device)
    shipped = next(clusters, None)
    within = next((rate for start, rate in NODE_LINKS if device.startswith(start)), 100e9)
    node, *network = shipped.levels if shipped else (Level("node", "switch", 8, within, 3e-6),)
    if not network and node.kind != "torus":
        network = [Level("network", "switch", 16, ANY_NETWORK, 8e-6)]
    usual = USUAL_NETWORK.get(device)
    return (node, *(replace(level, bytes_per_second=usual or level.bytes_per_second) for level in network))


_GIGABITS = {"EDR": 100, "HDR": 200, "NDR": 400, "XDR": 800, "OMNI-PATH": 100, "SLINGSHOT-10": 100, "SLINGSHOT-11": 200}
"""Gb/s of one card, by the name of its generation. Omni-Path had one until 2025."""
_SPELLED: tuple[tuple[str, str], ...] = (
    (r"(\d)\s*[xX×]\s*(?=[A-Za-z])", r"\1 x "),
    (r"\b(?:EDR|HDR|NDR|XDR)[- ]?(100|200|400|800)\b(?!\s*G)", r"\1 Gb/s"),
    (r"(\d)\s*(?:GbE|Gbit/s|Gbps|Gb)\b(?!/s)", r"\1 Gb/s"),
    (r"(?<![\d.-])(10|25|50|56|100|200|400|800|1600|3200)\s*G\b", r"\1 Gb/s"),
    (r"(?i)\bomni[- ]?path\b", "Omni-Path"),
    (r"(?i)\b(slingshot)[- ]?(1[01]), (\d{1,2}) cards\b", r"\3 \1-\2"),
    (r"\bdual[- ]rail", "2 rails"),
    (r"\bquad[- ]rail", "4 rails"),
)
"""Spellings of rates and of numbers of cards, to one spelling."""
_WITHIN = re.compile(r"NVLink|NVSwitch|PCIe|xGMI|Infinity Fabric", re.IGNORECASE)
"""Links inside a node, of which a network's text may speak too."""
_CARD = r"(?:rails?|NICs?|HCAs?|cards|adapters)\b"
_MADE = r"(?:ConnectX|CX|Thor|BlueField|Mellanox|EFA|IB|InfiniBand|RoCE|EDR|HDR|NDR|XDR|Slingshot|Omni)"
_TIMES = re.compile(r"(?<![\w.])(\d{1,2})\s*[xX×]\s*(\d+(?:\.\d+)?)\s*(Gb/s|GB/s|GB\b)")
_COUNTED = re.compile(rf"(?<![\w.])(\d{{1,2}}) (?:x )?{_MADE}[^,;]*?(\d+(?:\.\d+)?)\s*(Gb/s|GB/s)", re.IGNORECASE)
_BEFORE = re.compile(rf"(?<![\w.])(\d{{1,2}})[ -]{_CARD}[^,;]*?(\d+(?:\.\d+)?)\s*(Gb/s)", re.IGNORECASE)
_AFTER = re.compile(
    rf"(\d+(?:\.\d+)?)\s*(Gb/s)(?:\s*[xX×]\s*(\d{{1,2}})\b|([^;]*?)\b(\d{{1,2}})[ -]{_CARD})", re.IGNORECASE
)
FASTEST_CARD = 800
"""Gb/s: what is said of several cards and is faster is of all of them."""
_NAMED = re.compile(rf"(?<![\w.])(\d{{1,2}}) ?x? ?({'|'.join(_GIGABITS)})\b", re.IGNORECASE)
_ONE = re.compile(r"(\d+(?:\.\d+)?)\s*(Gb/s)"), re.compile(r"(\d+(?:\.\d+)?)\s*(GB/s)")
_IN_ALL = re.compile(
    r"(?<!between )(?<!across )(?<!inter)(?<!inter-)node|server|machine|host|instance|total|shared|aggregate|in all",
    re.IGNORECASE,
)
_EACH = re.compile(r"(?:per|a|each|every) (?:gpu|device|nic)\b|/gpu", re.IGNORECASE)


def link_rate(text: str, devices_per_node: int) -> float | None:
    """Bytes per second of one device in one direction, from a text such as `4x100 Gb RoCE per node`, `8 HDR IB NICs/node`,
    `8x ConnectX-7 400 Gb/s`, `RoCE 1600 Gb/s` (of a node), `3.2 Tb/s per node` or `50 GB/s per GPU`. None where it has no such
    figure."""
    text = _spelled(text)
    number, rate = _cards(text)
    if rate is None:
        return None
    if number is None or number == 1:
        number = devices_per_node if _EACH.search(text) else 1
    found = number * rate / 8 / devices_per_node
    return found if 1e6 < found < 1e13 else None


def _spelled(text: str) -> str:
    """The text on links between nodes, in one spelling."""
    text = re.sub(r"(\d+(?:\.\d+)?)\s*T(?:b/s|bps|bit/s)", lambda found: f"{1000 * float(found[1]):g} Gb/s", text)
    for pattern, plain in _SPELLED:
        text = re.sub(pattern, plain, text)
    return "; ".join(", ".join(c for c in part.split(",") if not _WITHIN.search(c)) for part in text.split(";"))


def _cards(text: str) -> tuple[float | None, float | None]:
    """How many cards a node has, and the bits a second of one; or, without a number, of whatever it is."""
    for pattern in (_TIMES, _COUNTED, _BEFORE):
        if found := pattern.search(text):
            return float(found[1]), float(found[2]) * _bits(found[3])
    if (found := _AFTER.search(text)) and float(found[1]) <= FASTEST_CARD and not _IN_ALL.search(found[4] or ""):
        return float(found[3] or found[5]), float(found[1]) * 1e9
    if found := _NAMED.search(text):
        return float(found[1]), _GIGABITS[found[2].upper()] * 1e9
    found = next((found for pattern in _ONE if (found := pattern.search(text))), None)
    return None, float(found[1]) * _bits(found[2]) if found is not None else None


def _bits(unit: str) -> float:
    """Bits of a unit of bits or bytes. `8x100 GB` means bits whose case was lost."""
    return 8e9 if unit == "GB/s" else 1e9
