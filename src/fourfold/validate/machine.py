"""Device, node and network of a published row."""

import re

from fourfold.validate.case import Network, Untranslatable
from fourfold.validate.defaults import Filled
from fourfold.validate.row import Row, StatedHardware

_KEYS: tuple[tuple[str, str], ...] = (
    (r"GB300", "gb300"),
    (r"GB200", "gb200"),
    (r"B300", "b300"),
    (r"B200", "b200"),
    (r"H200", "h200-sxm"),
    (r"H20\b", "h20"),
    (r"H800", "h800-sxm"),
    (r"H100.*NVL", "h100-nvl"),
    (r"H100.*PCI", "h100-pcie"),
    (r"H100", "h100-sxm"),
    (r"A800", "a800-sxm-80"),
    (r"A100.*40.*PCI|A100.*PCI.*40", "a100-pcie-40"),
    (r"A100.*PCI", "a100-pcie-80"),
    (r"A100.*40", "a100-sxm-40"),
    (r"A100", "a100-sxm-80"),
    (r"V100.*16|P3\.16", "v100-sxm-16"),
    (r"V100", "v100-sxm-32"),
    (r"MI300X", "mi300x"),
    (r"MI250X", "mi250x-gcd"),
    (r"V5P", "tpu-v5p"),
    (r"V5E|V5 LITE", "tpu-v5e"),
    (r"V6E|TRILLIUM", "tpu-v6e"),
    (r"TPU.*V4", "tpu-v4"),
    (r"910C", "ascend-910c"),
    (r"910B", "ascend-910b"),
)
"""The first pattern found in the device's name wins."""

DEVICE_KEYS: tuple[str, ...] = tuple(sorted(key for _, key in _KEYS))
_BY_MEMORY = {
    "a100-sxm-80": {40: "a100-sxm-40"},
    "a100-pcie-80": {40: "a100-pcie-40"},
    "v100-sxm-32": {16: "v100-sxm-16"},
}


def device_of(hardware: StatedHardware, row: Row, filled: Filled) -> str:
    """The key of the device tables."""
    name = hardware.device.upper()
    if not name or (row.regression and "GOLDEN" in name):
        if row.regression:
            return filled.fill("device", "a100-sxm-80")
        raise Untranslatable("the device is not stated")
    key = next((key for pattern, key in _KEYS if re.search(pattern, name)), None)
    if key is None:
        raise Untranslatable(f"the device {hardware.device[:40]!r} is not in the device tables")
    if hardware.memory_gb is not None and "40" not in name and "80" not in name and "16" not in name:
        key = _BY_MEMORY.get(key, {}).get(round(hardware.memory_gb), key)
    sized = hardware.memory_gb is not None or re.search(r"16|32|40|80", name)
    form_open = key.startswith(("h100-sxm", "a100-sxm")) and "SXM" not in name and "DGX" not in name
    if form_open or (key.startswith("a100") and not sized):
        filled.fill("device", key)
    return key


def network_of(hardware: StatedHardware, device: str, notes: str, filled: Filled) -> Network:
    """Nodes and links; the text of the network, or a remark on it in the notes, is read where it has figures."""
    per_node = hardware.devices_per_node
    if per_node is None:
        usual = (
            4 if device in ("gb200", "gb300") or device.startswith("tpu") else 16 if device.startswith("v100") else 8
        )
        per_node = filled.fill("devices_per_node", usual)
    domain = hardware.nvlink_domain or (72 if device in ("gb200", "gb300") else per_node)
    rate = link_rate(hardware.internode, per_node)
    if rate is None and "NIC" in notes.upper():
        rate = link_rate(notes, per_node)
    return Network(per_node, domain, rate, hardware.internode[:500])


_GIGABITS = {"EDR": 100, "HDR": 200, "NDR": 400, "XDR": 800}
_TIMES = re.compile(r"(\d+)\s*[xX×]\s*(\d+)\s*(?:Gb|Gbps|Gbit|G)\b(?!B)", re.IGNORECASE)
_NAMED = re.compile(r"(\d+)\s*[xX×]?\s*(EDR|HDR|NDR|XDR)\b", re.IGNORECASE)
_TOTAL = re.compile(r"(\d+(?:\.\d+)?)\s*(?:Gb/s|Gbps|Gbit/s)")
_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*GB/s")
_EACH = re.compile(r"per (?:gpu|device|nic)|/gpu|a device", re.IGNORECASE)


def link_rate(text: str, devices_per_node: int) -> float | None:
    """Bytes per second of one device in one direction, from a text such as `4x100 Gb RoCE per node`, `8 HDR IB NICs/node`,
    `RoCE 1600 Gb/s` (of a node) or `50 GB/s per GPU`. None where it has no such figure."""
    shared = 1 if _EACH.search(text) else devices_per_node
    if match := _TIMES.search(text):
        bits = float(match[1]) * float(match[2]) * 1e9
        shared = devices_per_node
    elif match := _NAMED.search(text):
        bits = float(match[1]) * _GIGABITS[match[2].upper()] * 1e9
        shared = devices_per_node
    elif match := _TOTAL.search(text):
        bits = float(match[1]) * 1e9
    elif match := _BYTES.search(text):
        bits = float(match[1]) * 8e9
    else:
        return None
    rate = bits / 8 / shared
    return rate if 1e6 < rate < 1e13 else None
