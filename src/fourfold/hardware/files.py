"""Devices and clusters as data: presets, files of the user's, and clusters cut or grown to a number of devices.

A cluster of another size has what each interconnect level then joins, and the shape of a part of a torus.
"""

import re
from dataclasses import replace
from functools import lru_cache
from math import prod
from pathlib import Path, PurePath
from typing import Any

from fourfold.config.errors import UserError, did_you_mean, shortened
from fourfold.config.presets import names_in, text_in
from fourfold.config.small_toml import SmallToml
from fourfold.hardware.schema import (
    CLUSTER_EXTRA,
    ClusterTable,
    DeviceTable,
    check,
    check_calibration,
    check_levels,
)
from fourfold.hardware.types import MAX_DEVICES, Cluster, Device, Level

THIS = "this"
_FILES = SmallToml("a device or a cluster", "my-cluster.toml", "presets are named without .toml, for example dgx-h100")


def resize(levels: tuple[Level, ...], devices: int, where: str) -> tuple[Level, ...]:
    """The levels of `devices` of the cluster's devices, each of more devices than the one before, the last of them all.

    A level that holds them all is cut to them and what is above it falls away. A level that does not hold them has blocks of equal
    size, as few as can be, made of whole blocks of the level below. The outermost grows where it is `scalable`.

    Raises `UserError`, beginning with `where`, for a number that fills no whole nodes, no torus, or more than there are."""
    if devices < 1:
        raise UserError(f"{where}: {devices} devices; allowed: 1 or more, for example {levels[0].devices}")
    if devices > levels[-1].devices and not levels[-1].scalable:
        most = levels[-1].devices
        raise UserError(
            f"{where}: {devices} devices, but level {levels[-1].name!r} joins {most} and is not scalable; "
            f"allowed: up to {most}, for example {most}; a file of your own may state more"
        )
    result: list[Level] = []
    for index, level in enumerate(levels):
        below = result[-1].devices if result else 1
        if index == len(levels) - 1 or devices <= level.devices:
            size: int | None = devices
        elif index == 0:
            size = _node(level, devices)
        else:
            size = _block(level, devices, below)
        cut = _cut(level, size) if size is not None else None
        if cut is None:
            raise UserError(f"{where}: {devices} devices: {_advice(level, devices, grows=index < len(levels) - 1)}")
        if not result or cut.devices > below:
            result.append(cut)
    return tuple(result)


def _node(level: Level, devices: int) -> int | None:
    """Size of equal innermost blocks: whole ones, or parts of tori and of blocks with `part_multiple`, no more than twice as many
    as need be."""
    if devices % level.devices == 0:
        return level.devices
    fewest = -(-devices // level.devices)
    for blocks in range(fewest, 2 * fewest + 1):
        size, rest = divmod(devices, blocks)
        if rest == 0 and _is_part(level, size):
            return size
    return None


def _is_part(level: Level, size: int) -> bool:
    if level.kind == "torus":
        return bool(torus_shape(level, size))
    return level.part_multiple is not None and size % level.part_multiple == 0


def _block(level: Level, devices: int, below: int) -> int:
    """Size of as few equal blocks as can be, of whole blocks of the level below, of which `devices` is a multiple."""
    units = devices // below
    fewest = -(-devices // level.devices)
    return below * (units // next(count for count in range(fewest, units + 1) if units % count == 0))


def _cut(level: Level, devices: int) -> Level | None:
    if level.kind != "torus" or devices == level.devices:
        return replace(level, devices=devices)
    shape = torus_shape(level, devices)
    if not shape:
        return None
    long = [extent for extent in shape if extent > 1]
    rates = [1.0 if extent % level.wrap_multiple == 0 else 0.5 for extent in long]
    rate = level.bytes_per_second * (sum(rates) / len(rates) if rates else 1.0)
    return replace(level, devices=devices, dimensions=tuple(long) or (1,), bytes_per_second=rate)


def torus_shape(level: Level, devices: int) -> tuple[int, ...]:
    """The shape of a part of `level` with `devices` devices: one that wraps around in every dimension if there is one, and then the
    nearest to a cube; empty where no part has that many."""

    def rank(shape: tuple[int, ...]) -> tuple[bool, int, tuple[int, ...]]:
        return any(extent > 1 and extent % level.wrap_multiple for extent in shape), sum(shape), shape

    return min(_shapes(level.dimensions, devices), key=rank, default=())


def _shapes(bounds: tuple[int, ...], devices: int) -> list[tuple[int, ...]]:
    if devices > prod(bounds):
        return []
    if len(bounds) == 1:
        return [(devices,)]
    divisors = [extent for extent in range(1, min(bounds[0], devices) + 1) if devices % extent == 0]
    return [(extent, *rest) for extent in divisors for rest in _shapes(bounds[1:], devices // extent)]


def _advice(level: Level, devices: int, grows: bool) -> str:
    """The words that say why a number of devices does not fit, and the nearest ones that do."""
    if level.kind != "torus":
        lower = devices // level.devices * level.devices
        part = f", nor equal parts in multiples of {level.part_multiple}" if level.part_multiple else ""
        problem = f"no multiple of the {level.devices} that level {level.name!r} joins{part}"
        return f"{problem}; for example {lower} or {lower + level.devices}"
    shape = " x ".join(map(str, level.dimensions))
    if devices > level.devices:
        near = devices // level.devices * level.devices
        more = f" or {near + level.devices}" if grows else ""
        return f"no equal parts of tori {shape} (level {level.name!r}); for example {near}{more}"
    lower = next(count for count in range(devices - 1, 0, -1) if torus_shape(level, count))
    upper = next(count for count in range(devices + 1, level.devices + 1) if torus_shape(level, count))
    return f"no box inside the torus {shape} (level {level.name!r}) has that many; for example {lower} or {upper}"


def device_names() -> list[str]:
    """Devices that come with fourfold."""
    return names_in("fourfold.hardware", "devices")


def devices_like(name: str) -> list[str]:
    """Devices whose names have all words of a shorter one, those on a module before cards: a100-40gb is a100-sxm-40 or
    a100-pcie-40."""
    words = set(re.sub(r"(\d)gb?\b", r"\1", name.lower().replace("_", "-")).split("-"))
    return sorted((each for each in device_names() if words <= {*each.split("-")}), key=lambda each: "-sxm" not in each)


def cluster_names() -> list[str]:
    """Clusters that come with fourfold."""
    return names_in("fourfold.hardware", "clusters")


def load_device(name: str) -> Device:
    """The device `name`: one of `device_names`, or the path of a `.toml` file. Raises `UserError`."""
    text, where = _find(name, "devices")
    return parse_device(text, where)


def read_device_table(name: str) -> dict[str, Any]:
    """The table of a device's file. Raises `UserError`."""
    return _FILES.table(_FILES.read(Path(name)), name)


def load_cluster(name: str) -> Cluster:
    """The cluster `name`: one of `cluster_names` or the path of a `.toml` file, either with `:DEVICES` behind it for another
    number of its devices. A device's own file is a cluster of that one device.

    Fewer devices: blocks of the network that are not needed fall away. More: where the outermost level is `scalable`. See `resize`.
    Raises `UserError` for an unknown name (with the nearest), a file that is wrong (with the key), a number that does not fit."""
    base, devices = _split(name)
    text, where = _find(base, "clusters")
    return parse_cluster(text, where, devices)


def has_count(name: str) -> bool:
    """Whether the name of a cluster says how many devices it has: `NAME:DEVICES`, a file, a preset of that size alone, or one whose
    name has the number."""
    if is_path(name) or ":" in name or name not in cluster_names():
        return True
    cluster = load_cluster(name)
    return not cluster.all_levels[-1].scalable or str(cluster.devices) in name


def require_count(name: str) -> None:
    """Raises `UserError` for the name of a cluster that may have any number of devices, and does not say which."""
    if not has_count(name):
        node = load_cluster(name).node_devices
        raise UserError(
            f"--cluster {name}: of how many devices? its nodes have {node}, and there may be any number of them; what works: "
            f"--cluster {name}:{8 * node}"
        )


def is_path(name: str) -> bool:
    """Whether the name of a cluster or a device is the path of a file."""
    return name.endswith(".toml") or "/" in name or "\\" in name or ".toml:" in name


def named_with(name: str, devices: int) -> str:
    """The name under which `load_cluster` gives the cluster `name` with another number of devices."""
    return f"{_split(name)[0]}:{devices}"


@lru_cache(maxsize=64)
def parse_cluster(text: str, where: str, devices: int | None = None) -> Cluster:
    """The cluster that TOML `text` describes. `where`: the file it is from, for messages; its stem is the cluster's key.
    `devices`: another number of them than the file's. Raises `UserError`, each line beginning with `where`."""
    table = _FILES.table(text, where)
    key = PurePath(where).stem
    if "peak_flops_per_second" in table and "levels" not in table:
        if devices not in (None, 1):
            raise UserError(
                f"{where}:{devices}: the file describes one device; what works: fourfold cluster new --device {where}:{devices} "
                "--link nvlink4 --out my-cluster.toml"
            )
        return one_device(parse_device(text, where))
    stated = {name: value for name, value in table.items() if name not in CLUSTER_EXTRA}
    cluster = check(ClusterTable, stated, where, CLUSTER_EXTRA)
    check_levels(cluster.levels, where)
    device = _device_of(table, where, key)
    calibration = check_calibration(table.get("calibration", {}), where)
    levels = tuple(Level(**{**t.model_dump(), "dimensions": tuple(t.dimensions)}) for t in cluster.levels)
    wanted = cluster.devices if devices is None else devices
    return Cluster(
        key=key if wanted == cluster.devices else f"{key}:{wanted}",
        device=device,
        devices=wanted,
        levels=resize(levels, wanted, where),
        calibration=calibration,
        full_levels=levels,
        **cluster.model_dump(exclude={"devices", "levels"}),
    )


@lru_cache(maxsize=64)
def parse_device(text: str, where: str) -> Device:
    """The device that TOML `text` describes; `where` as in `parse_cluster`. Raises `UserError`."""
    table = check(DeviceTable, _FILES.table(text, where), where)
    return Device(key=PurePath(where).stem, **table.model_dump())


def one_device(device: Device) -> Cluster:
    """A device as a cluster of it alone."""
    alone = (Level("node", "switch", 1, 1e9, 0.0),)
    return Cluster(device.key, device.name, device.source, 1, device=device, levels=alone, full_levels=alone)


def resized(cluster: Cluster, devices: int) -> Cluster:
    """A copy of the cluster with another number of its devices, as `load_cluster` gives it. Raises `UserError` as `resize` does."""
    base = cluster.key.partition(":")[0]
    levels = resize(cluster.all_levels, devices, base)
    return replace(cluster, key=f"{base}:{devices}", devices=devices, levels=levels)


def _device_of(table: dict[str, Any], where: str, key: str) -> Device:
    """`device = "NAME"` names a preset and never a path, so that a file from elsewhere reads no other file."""
    device = table.get("device")
    if isinstance(device, dict):
        return Device(key=key, **check(DeviceTable, device, f"{where}: [device]").model_dump())
    if device is None:
        raise UserError(f"{where}: key 'device' is missing; for example device = \"h100-sxm\", or a table [device]")
    if not isinstance(device, str) or device not in device_names():
        hint = did_you_mean(str(device), devices_like(str(device)) or device_names(), repr)
        raise UserError(
            f"{where}: device = {shortened(device)}: {hint}allowed: a table [device], or a name that `fourfold list devices` "
            'prints; a value that works: device = "h100-sxm"'
        )
    return load_device(device)


def _split(name: str) -> tuple[str, int | None]:
    """`NAME:DEVICES` as its two parts."""
    base, colon, count = name.rpartition(":")
    if not colon or name.endswith(".toml"):
        return name, None
    if not (count.isascii() and count.isdigit() and len(count) < 12 and 1 <= int(count) <= MAX_DEVICES):
        raise UserError(
            f"{shortened(name)}: {shortened(count)} is no number of devices; allowed: 1 to {MAX_DEVICES}, for example dgx-h100:64"
        )
    return base, int(count)


def _find(name: str, folder: str) -> tuple[str, str]:
    """The text of a preset or of a file, and what to call it in messages."""
    if name == THIS:
        raise UserError(
            '"this": this machine has not been measured; run `fourfold calibrate` first and give the file it writes, '
            "for example this.toml"
        )
    if is_path(name):
        return _FILES.read(Path(name)), name
    allowed = names_in("fourfold.hardware", folder)
    if name not in allowed:
        raise UserError(
            f"{folder.removesuffix('s')} {shortened(name)} is unknown; {did_you_mean(name, allowed)}"
            f"allowed: the path of a .toml file, or one of {', '.join(allowed)}"
        )
    return text_in("fourfold.hardware", folder, name), name
