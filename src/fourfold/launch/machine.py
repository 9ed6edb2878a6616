"""Describes this machine: its device, memory and cores; and which package is missing.

Its memory and cores are no more than its own control groups allow (cgroups v1 and v2): the lowest limit from its group up to the
top that it can see.
"""

import ctypes
import importlib.util
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fourfold.config import RunConfig, UserError
from fourfold.config.errors import group_files, raise_file_limit, require_files
from fourfold.program.spec import Transport, transport_on

PROCESS = Path("/proc/self")
_DRIVERS = tuple(
    Path(path)
    for path in (
        "/proc/driver/nvidia/version",
        "/dev/nvidiactl",  # in containers, which may hide the driver's part of /proc
        "/dev/nvidia0",
        "/dev/dxg",  # WSL2: the devices of Windows
        "/dev/kfd",  # ROCm, which torch calls CUDA too
        "/dev/nvmap",  # Jetson
    )
)
_LIBRARIES = ("libnvidia-ml.so.1", "libcuda.so.1")
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_NO_DEVICES = ("", "-1", "NoDevFiles")
"""Values of these by which a person or Slurm hides all devices."""
_DRIVER_SECONDS = 20.0


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


def require_packages(command: str, *names: str, extra: str = "train") -> None:
    """Raises `UserError` where a package that a command needs is not installed; `extra` brings it."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(
            f"fourfold {command} needs the package {missing[0]}, which is not installed; what works: "
            f"pip install 'fourfold[{extra}]'"
        )


def may_have_cuda(environment: Mapping[str, str]) -> bool:
    """Whether torch may find a CUDA device here: a driver shows itself by a file, its program or its library, which differ between
    bare machines, containers and WSL2, and nobody hides all devices. True where that is unsure: torch then says."""
    told = [environment[name].strip() for name in _VISIBLE if name in environment]
    if told:
        return not any(value in _NO_DEVICES for value in told)
    return any(path.exists() for path in _DRIVERS) or shutil.which("nvidia-smi") is not None or _has_library()


def _has_library() -> bool:
    for name in _LIBRARIES:
        with suppress(OSError):
            ctypes.CDLL(name)
            return True
    return False


def num_cuda_devices(config: RunConfig) -> int:
    """CUDA devices that this process sees and the run would use: 0 on a CPU. Imports torch only where there may be one."""
    if config.run.device == "cpu" or (config.run.device == "auto" and not may_have_cuda(os.environ)):
        return 0
    if importlib.util.find_spec("torch") is None:
        return 0
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def transport_of(config: RunConfig, cuda_devices: int) -> Transport:
    """How reductions travel: NCCL's own on CUDA, exchanges on gloo."""
    return transport_on("cuda" if cuda_devices > 0 else config.run.device)


def check_devices(config: RunConfig, cuda_devices: int, local_ranks: int) -> None:
    """Raises `UserError` where this process sees fewer devices than ranks that it starts. Those that a launcher starts one by one
    find out themselves whether each has its own."""
    if config.run.device == "cuda" and cuda_devices == 0:
        raise UserError(
            f'run.device = "cuda", but torch finds no CUDA device here{_hidden()}; a value that works: run.device = "cpu"'
        )
    if 0 < cuda_devices < local_ranks:
        raise UserError(
            f"{local_ranks} ranks need {local_ranks} CUDA devices, this machine has {cuda_devices}{_hidden()}; what works: "
            f"--ranks {cuda_devices}, or run.device = cpu"
        )


def _hidden() -> str:
    """The variables that say which devices there are to see, in brackets; empty where nothing does."""
    told = [f"{name} = {os.environ[name][:80]!r}" for name in _VISIBLE if name in os.environ]
    return f" ({', '.join(told)})" if told else ""


_SUPERVISOR_FILES, _RANK_FILES = 20, 12
"""Beside connections of ranks: locks, logs, pipes and reports; a log, the data, the board, the store's one connection."""


def check_files(world_size: int, transport: Transport, machines: int = 1) -> None:
    """Raises this process's limit of open files, and `FinalFailure` where the supervisor, or a rank, could not open the files and
    sockets that every run takes: before anything is started. The supervisor that leads `machines` holds a connection of every rank
    and of every other machine. A rank asks for itself before it makes groups beside the one of all ranks."""
    raise_file_limit()
    require_files("the supervisor", _SUPERVISOR_FILES + world_size + machines - 1)
    gloo = group_files(world_size) if transport == "exchange" else 0
    require_files("a rank", _RANK_FILES + gloo, own=False)


def memory_bytes() -> int | None:
    """RAM that this process may use: the machine's, or the limit of its control groups where that is lower; None if unknown."""
    try:
        limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    except (ValueError, OSError, AttributeError):
        limits = []
    return min((each for each in (*limits, memory_limit()) if each is not None), default=None)


def device_memory_bytes() -> int | None:
    """Memory of the smallest NVIDIA device here, as its driver states it without touching the device; None where it states none."""
    query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        found = subprocess.run(query, capture_output=True, text=True, timeout=_DRIVER_SECONDS, check=True).stdout
        return min(int(line) for line in found.split()) << 20
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def oom_kills() -> int | None:
    """How many processes this machine's kernel has killed for want of memory, in all its containers; None where it does not say."""
    with suppress(OSError, IndexError, ValueError):
        return int(Path("/proc/vmstat").read_text().partition("oom_kill ")[2].split()[0])
    return None


def num_cores() -> int:
    """Cores that this process may use: those that it may run on, or as many whole ones as its control groups give it time of."""
    available, quota = getattr(os, "sched_getaffinity", None), cpu_limit()
    cores = len(available(0)) if available is not None else os.cpu_count() or 1
    return cores if quota is None else max(1, min(cores, int(quota)))


def busy_cores(seconds: float = 0.3, stat: Path = Path("/proc/stat")) -> float | None:
    """Cores of this machine that compute while this process waits for so long; None where the system does not tell."""

    def busy() -> tuple[float, float]:
        ticks = [int(each) for each in stat.read_text(encoding="ascii").splitlines()[0].split()[1:9]]
        return sum(ticks) - ticks[3] - ticks[4], sum(ticks)  # all but idle and waiting for a disk

    try:
        before = busy()
        time.sleep(seconds)
        worked, passed = (now - then for now, then in zip(busy(), before, strict=True))
        return (os.cpu_count() or 1) * worked / passed if passed > 0 else None
    except (OSError, ValueError, IndexError):
        return None


def threads_per_rank(config: RunConfig, local_ranks: int) -> int:
    """`run.threads_per_rank`, or an equal share of the cores that this process may use."""
    if config.run.threads_per_rank is not None:
        return config.run.threads_per_rank
    return max(1, num_cores() // local_ranks)
