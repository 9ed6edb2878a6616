"""The limits of this process's own control groups (cgroups v1 and v2): the lowest from its group up to the top that it can see."""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PROCESS = Path("/proc/self")


@dataclass(frozen=True)
class ControlGroup:
    """Groups of one hierarchy that this process is in, its own first. `is_unified`: of cgroups v2."""

    folders: tuple[Path, ...]
    is_unified: bool


def memory_limit(process: Path = PROCESS) -> int | None:
    """The bytes of memory that this process and those beside it in its groups may use together; None without a limit."""
    limits = []
    for group in _groups("memory", process):
        for folder in group.folders:
            limits += _numbers(folder / ("memory.max" if group.is_unified else "memory.limit_in_bytes"))[:1]
    return min(limits, default=None)


def cpu_limit(process: Path = PROCESS) -> float | None:
    """The cores of which this process and those beside it in its groups may use the time together; None without a limit."""
    limits = []
    for group in _groups("cpu", process):
        for folder in group.folders:
            if group.is_unified:
                values = _numbers(folder / "cpu.max")
            else:
                values = _numbers(folder / "cpu.cfs_quota_us") + _numbers(folder / "cpu.cfs_period_us")
            if len(values) == 2 and min(values) > 0:
                limits.append(values[0] / values[1])
    return min(limits, default=None)


def _groups(controller: str, process: Path) -> Iterator[ControlGroup]:
    """The groups of v1's hierarchy of a controller and of v2's, as `cgroup` and `mountinfo` in /proc tell."""
    for number, controllers, path in _lines(process / "cgroup", ":", 2):
        is_unified = number == "0" and not controllers
        if not (is_unified or controller in controllers.split(",")):
            continue
        for top, root in _mounts(process, None if is_unified else controller):
            inner = Path(path).relative_to(root) if Path(path).is_relative_to(root) and ".." not in path else Path()
            own = top / inner
            yield ControlGroup((own, *(folder for folder in own.parents if folder.is_relative_to(top))), is_unified)


def _mounts(process: Path, controller: str | None) -> Iterator[tuple[Path, str]]:
    """(where it is mounted, the group that is its top) of v1's hierarchy of a controller; None: of v2's."""
    for fields in _lines(process / "mountinfo", " "):
        with suppress(ValueError, IndexError):
            kind, options = (fields[fields.index("-") + place] for place in (1, 3))
            if kind == "cgroup2" if controller is None else kind == "cgroup" and controller in options.split(","):
                yield Path(re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), fields[4])), fields[3]


def _lines(path: Path, separator: str, most: int = -1) -> list[list[str]]:
    with suppress(OSError, UnicodeDecodeError):
        found = [line.split(separator, most) for line in path.read_text().splitlines()]
        return [fields for fields in found if len(fields) > max(most, 0)]
    return []


def _numbers(path: Path) -> list[int]:
    """The numbers of a limit; empty where there is none: the file is missing, or says "max" or less than nothing."""
    with suppress(OSError, ValueError):
        return [int(word) for word in path.read_text().split()]
    return []
