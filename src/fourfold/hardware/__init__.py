"""Devices, links and clusters as data: presets, a person's own files, and a cluster cut to a number of devices."""

from fourfold.hardware.files import (
    THIS,
    cluster_names,
    device_names,
    has_count,
    is_path,
    load_cluster,
    load_device,
    named_with,
    one_device,
    parse_cluster,
    parse_device,
    require_count,
    resized,
)
from fourfold.hardware.types import PEAK_BITS, Cluster, Device, Level

__all__ = [
    "PEAK_BITS",
    "THIS",
    "Cluster",
    "Device",
    "Level",
    "cluster_names",
    "device_names",
    "has_count",
    "is_path",
    "load_cluster",
    "load_device",
    "named_with",
    "one_device",
    "parse_cluster",
    "parse_device",
    "require_count",
    "resized",
]
