"""`fourfold calibrate`: this machine measured as a cluster file, or one device of it as a device's file."""

import os
import platform
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import tomli_w

from fourfold.api.new_file import check_new_file, write_new_file
from fourfold.api.numbers import parse_number
from fourfold.calibrate.budget import Shares, TimeAccount
from fourfold.config import UserError
from fourfold.hardware import parse_cluster, parse_device
from fourfold.launch.machine import busy_cores, memory_bytes, num_cores, require_packages
from fourfold.report.format_device import device_text, document, machine_lines, screen
from fourfold.supervise.signals import stopped_by_signals

FORMATS = ("fp32", "bf16", "fp64")
MOST_RANKS = 64
LEAST_SECONDS, MOST_SECONDS = 1, 3600
DISTURBED = 0.1
"""How much longer the same steps may take in one round of measurements than in another before it is said."""
BUSY_CORES = 0.25
"""Cores that others keep busy from which on it is said before anything is measured."""


def say_if_busy() -> None:
    """Prints a line where other processes compute on this machine, whose rates would then be those that they leave."""
    others = busy_cores()
    if others is not None and others >= BUSY_CORES:
        print(
            f"note: other processes keep {others:.1f} of {os.cpu_count()} cores busy: what is measured now is what they leave; "
            "stop them, and calibrate again when the machine is quiet",
            file=sys.stderr,
            flush=True,
        )


@dataclass(frozen=True, kw_only=True)
class CalibrateOptions:
    """The measurements, their time, and the file that they are written to."""

    out: Path | None = None
    """The new file to write. Default: this-machine.toml, of one device this-device.toml."""
    device: str | None = None
    """Measure one device alone, cuda or cpu, and write its file."""
    ranks: str | None = None
    """Numbers of ranks that run at once, with commas between. More than there are cores share them. Default: 1,2,4. With --device
    cpu one number: the device is one rank's share of the cores and the memory. Default: 1."""
    seconds: str = "120"
    """How long the measurements may take: what would end later is left out. The first of each kind cannot be."""
    dtype: str | None = None
    """The number format to compute in: fp32, bf16 or fp64. Default: fp32, with --device cuda bf16."""


@dataclass(frozen=True)
class CalibrationResult:
    """The file that was written, as a document and in lines."""

    out: Path
    document: dict[str, Any]
    lines: list[str]


def calibrated(asked: CalibrateOptions, quiet: bool) -> CalibrationResult:
    """Measures and writes the file. `quiet`: progress goes to stderr. Raises `UserError` and `RunFailure`."""
    device = asked.device
    name = "this-machine" if device is None else "this-device"
    out = asked.out or Path(f"{name}.toml")
    counts = _counts(("1,2,4" if device is None else "1") if asked.ranks is None else asked.ranks)
    budget = parse_number(asked.seconds, "--seconds", "120", LEAST_SECONDS, MOST_SECONDS)
    dtype = asked.dtype or ("bf16" if device == "cuda" else "fp32")
    if dtype not in FORMATS:
        raise UserError(f"--dtype {dtype[:40]}: allowed: {', '.join(FORMATS)}; a value that works: --dtype fp32")
    if device is not None:
        _check_device(device, counts)
    check_new_file(out, f"{name}.toml", f"{out.stem}-2.toml", ".toml")
    require_packages("calibrate", "torch")
    say = partial(print, file=sys.stderr if quiet else sys.stdout, flush=True)
    if device is not None:
        with stopped_by_signals():
            return _device(device, counts[0], budget, dtype, out, say)
    return _machine(counts, budget, dtype, out, say)


def _machine(counts: list[int], budget: float, dtype: str, out: Path, say: Callable[[str], None]) -> CalibrationResult:
    account = TimeAccount(budget, counts)
    import torch

    from fourfold.calibrate.machine import describe, measure_machine

    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    kind = "cuda" if devices else "cpu"
    if devices and counts[-1] > devices:
        raise UserError(
            f"--ranks {','.join(map(str, counts))}: this machine has {devices} CUDA devices; a value that works: --ranks "
            + ",".join(str(n) for n in (1, 2, 4, 8, 16) if n <= devices)
        )
    cores = num_cores()
    say_if_busy()
    with stopped_by_signals():
        found = measure_machine(counts, lambda n: 1 if devices else max(1, cores // n), dtype, kind, account, say)
    memory = torch.cuda.get_device_properties(0).total_memory if devices else memory_bytes() or 10**9
    name = torch.cuda.get_device_name(0) if devices else f"{platform.node() or 'this machine'}, {cores} cores"
    table = describe(found.calibration, kind, memory, dtype, name, found.by_library[counts[0]])
    text = tomli_w.dumps(table)
    machine = parse_cluster(text, out.name)
    write_new_file(out, text)
    if found.drift > DISTURBED:
        print(
            f"note: the same steps took {100 * found.drift:.0f} % longer in one round than in the other: something else runs on "
            "this machine, or its clock changes; predictions will be as far off; calibrate again when it is quiet",
            file=sys.stderr,
        )
    lines = machine_lines(machine.devices, table, found.fits, found.by_library)
    return CalibrationResult(out, {"file": str(out), **table}, lines)


def _device(
    device: str, ranks: int, seconds: float, dtype: str, out: Path, say: Callable[[str], None]
) -> CalibrationResult:
    """One device. `ranks`: that share a processor's cores. Raises `UserError` where there is no such device."""
    shares, cores = Shares(seconds, say), num_cores()
    import torch

    from fourfold.calibrate.kernels import library_text
    from fourfold.calibrate.one_device import measure_device

    if device == "cuda" and not torch.cuda.is_available():
        raise UserError(
            f"--device cuda: torch {torch.__version__} finds no CUDA device here; a value that works: --device cpu"
        )
    say_if_busy()
    threads = max(1, cores // ranks)
    share = f"{threads} of {cores} cores" if threads < cores else f"{cores} cores"
    name = torch.cuda.get_device_name(0) if device == "cuda" else f"{platform.node() or 'this machine'}, {share}"
    found = measure_device(name, device, threads, (memory_bytes() or 10**9) // ranks, dtype, shares)
    how = f"torch {torch.__version__}, {dtype}{library_text(found.by_library)}, {seconds:g} s"
    text = device_text(found, out.name, how)
    parse_device(text, out.name)
    write_new_file(out, text)
    told = document(found, tomllib.loads(text))
    return CalibrationResult(out, {"file": str(out), **told}, list(screen(found)))


def _counts(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and 1 <= int(part[:9]) <= MOST_RANKS for part in parts):
        raise UserError(
            f"--ranks {text[:80]}: allowed: numbers from 1 to {MOST_RANKS} with commas between; a value that works: --ranks 1,2,4"
        )
    odd = next((part for part in parts if int(part) > 1 and int(part) % 2), None)
    if odd is not None:
        raise UserError(
            f"--ranks {text[:80]}: {odd} ranks cannot send in pairs; allowed: 1 and even numbers, for example 1,2,4"
        )
    return sorted({int(part) for part in parts})


def _check_device(device: str, counts: list[int]) -> None:
    """Raises `UserError` for a device that is none, and for ranks that cannot share it."""
    if device not in ("cuda", "cpu"):
        raise UserError(f"--device {device[:40]}: allowed: cuda, cpu; a value that works: --device cpu")
    if len(counts) > 1 or (device == "cuda" and counts != [1]):
        allowed = (
            "leave it out: a GPU is one rank's" if device == "cuda" else "one number; a value that works: --ranks 2"
        )
        raise UserError(f"--ranks {','.join(map(str, counts))} with --device {device}: allowed: {allowed}")
