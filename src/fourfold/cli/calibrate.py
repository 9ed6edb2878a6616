"""`fourfold calibrate`: measures this machine and writes a cluster file of it, or one device and writes its file."""

import platform
import sys
from functools import partial
from pathlib import Path
from typing import Any

import tomli_w

from fourfold.api.new_file import check_new_file, write_new_file
from fourfold.api.numbers import parse_number
from fourfold.cli.calibrate_device import calibrate_device, say_if_busy
from fourfold.cli.options import Flag, print_json
from fourfold.config import UserError
from fourfold.hardware import parse_cluster
from fourfold.launch.machine import memory_bytes, num_cores, require_packages
from fourfold.supervise.signals import stopped_by_signals

FORMATS = ("fp32", "bf16", "fp64")
MOST_RANKS = 64
LEAST_SECONDS, MOST_SECONDS = 1, 3600
DISTURBED = 0.1
"""How much longer the same steps may take in one round of measurements than in another before it is said."""


def calibrate(
    *,
    out: Path | None = None,
    device: str | None = None,
    ranks: str | None = None,
    seconds: str = "120",
    dtype: str | None = None,
    json: Flag = False,
) -> int:
    """Measure this machine, or one device of it, and write a file for --cluster or the run file's [cluster] preset.

    The machine: matmuls and attention by shape, whole segments, the optimizer, collectives and transfers by size and group, with
    each of the given numbers of ranks running at once. One device: the same kernels in larger shapes, peaks, memory, launches, and
    the constants that describe them, for a cluster of such devices. Stop everything else first.

    Parameters
    ----------
    out
        The new file to write. Default: this-machine.toml, of one device this-device.toml.
    device
        Measure one device alone, cuda or cpu, and write its file.
    ranks
        Numbers of ranks that run at once, with commas between. More than there are cores share them. Default: 1,2,4. With --device
        cpu one number: the device is one rank's share of the cores and the memory. Default: 1.
    seconds
        How long the measurements may take: what would end later is left out. The first of each kind cannot be.
    dtype
        The number format to compute in: fp32, bf16 or fp64. Default: fp32, with --device cuda bf16.
    json
        Print one JSON document and nothing else.
    """
    name = "this-machine" if device is None else "this-device"
    out = out or Path(f"{name}.toml")
    counts = _counts(("1,2,4" if device is None else "1") if ranks is None else ranks)
    budget = parse_number(seconds, "--seconds", "120", LEAST_SECONDS, MOST_SECONDS)
    dtype = dtype or ("bf16" if device == "cuda" else "fp32")
    if dtype not in FORMATS:
        raise UserError(f"--dtype {dtype[:40]}: allowed: {', '.join(FORMATS)}; a value that works: --dtype fp32")
    if device is not None:
        _check_device(device, counts)
    check_new_file(out, f"{name}.toml", f"{out.stem}-2.toml", ".toml")
    require_packages("calibrate", "torch")
    if device is not None:
        with stopped_by_signals():
            return calibrate_device(device, counts[0], budget, dtype, out, num_cores(), json)
    return _calibrate_machine(counts, budget, dtype, out, json)


def _calibrate_machine(counts: list[int], budget: float, dtype: str, out: Path, json: bool) -> int:
    from fourfold.calibrate.budget import TimeAccount

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

    say = partial(print, file=sys.stderr if json else sys.stdout, flush=True)
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
    if json:
        print_json({"file": str(out), **table})
        return 0
    for line in _lines(machine.devices, table, found.fits, found.by_library):
        print(line)
    print(f"written to {out}; use it as: fourfold simulate RUN.toml --cluster {out}")
    return 0


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


def _lines(
    devices: int, table: dict[str, Any], fits: dict[int, float], by_library: dict[int, tuple[str, ...]]
) -> list[str]:
    """The results in a few lines."""
    from fourfold.calibrate.kernels import library_text
    from fourfold.calibrate.machine import best_matmul

    lines = []
    parts = {int(key[6:]): part for key, part in table["calibration"].items() if key.startswith("ranks_")}
    for ranks, part in sorted(parts.items()):
        kernels, software = part["kernels"], part["software"]
        peak = best_matmul(kernels)
        line = (
            f"{ranks} rank{'s' if ranks > 1 else ' '} x {software['threads']} thread{'s' if software['threads'] > 1 else ' '}: "
            f"matmuls{library_text(by_library[ranks])} {peak / 1e9:.1f} GFLOP/s a rank, operators "
            f"{kernels['memory_bytes_per_second'] / 1e9:.1f} GB/s and {1e6 * kernels['launch_seconds']:.1f} us each"
        )
        if ranks in fits:
            line += f", segments described to {100 * fits[ranks]:.1f} %"
        if ranks > 1:
            line += f"; alone a rank runs {software['relative_speeds'][0]:.2f} times as fast"
        lines.append(line)
    cores = table["calibration"]["cores"]
    if cores and devices > cores:
        lines.append(f"{devices} ranks share {cores} cores: what they slow one another down is in the file")
    return lines
