"""Times of back ends that were measured before, in a small file of the user's cache.

The file is not trusted: only names and positive numbers are taken from it, and whoever wins by it is checked again.
"""

import json
import math
import os
import platform
from collections.abc import Collection, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch

from fourfold.config.whole_file import bounded, write_whole

MAX_BYTES = 2**20
MAX_CASES = 256
_IDENTIFY = {"vendor_id", "cpu family", "model", "model name", "stepping", "cpu cores", "CPU implementer", "CPU part"}
"""Lines of `/proc/cpuinfo` that tell processors apart."""
PACKAGES = ("fourfold", "triton", "flash-attn", "flash-attn-3", "flash-attn-4", "flash-linear-attention")


class DeviceCase(Protocol):
    """A dataclass of the sizes and formats of a run's part, on a device."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def device(self) -> torch.device: ...


def folder() -> Path:
    """`fourfold` in the user's cache. Where a user has no home (under a container's arbitrary user id), a place at which no file
    can be: nothing is remembered."""
    cache = os.environ.get("XDG_CACHE_HOME")
    try:
        base = Path(cache) if cache else Path.home() / ".cache"
    except RuntimeError:
        base = Path(os.devnull)
    return base / "fourfold"


def key_of(case: DeviceCase) -> str:
    """The text that times are remembered under: the device's name, the case but for its model, versions."""
    device = torch.cuda.get_device_name(case.device) if case.device.type == "cuda" else case.device.type
    sizes = [f"{name} {getattr(case, name)}" for name in case.__dataclass_fields__ if name not in ("device", "model")]
    return ", ".join([device, *sizes, f"torch {torch.__version__}", *map(_version, PACKAGES)])


def processor() -> str:
    """This machine's processor in the kernel's words: times of one are not those of another."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").partition("\n\n")[0].splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return ", ".join(" ".join(line.split()) for line in lines if line.partition(":")[0].strip() in _IDENTIFY)


def recall(path: Path, key: str, names: Collection[str]) -> dict[str, float] | None:
    """The seconds of back ends for a case, infinite for those that could not be taken; None where nothing usable is known."""
    found = _read(path).get(key)
    if not isinstance(found, dict) or not found or not set(found) <= set(names):
        return None
    if not all(type(each) is float and math.isfinite(each) and each > 0 for each in found.values()):
        return None
    return {name: found.get(name, float("inf")) for name in names}


def remember(path: Path, key: str, seconds: Mapping[str, float]) -> None:
    """Adds a case, and drops the oldest where there are many. Does nothing where the file cannot be written."""
    kept = {name: each for name, each in seconds.items() if math.isfinite(each)}
    known = {old: value for old, value in _read(path).items() if old != key}
    cases = dict([*known.items(), (key, kept)][-MAX_CASES:])
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(cases, indent=1))
    except OSError:
        return


def _read(path: Path) -> dict[str, object]:
    try:
        table = json.loads(bounded(path, MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return table if isinstance(table, dict) else {}


def _version(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return f"no {package}"
