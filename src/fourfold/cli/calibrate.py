"""`fourfold calibrate`: measures this machine and writes a cluster file of it."""

import json as json_text
import os
import platform
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import tomli_w
from cyclopts import Parameter

from fourfold.api.numbers import parse_number
from fourfold.config import RunFailure, UserError
from fourfold.config.whole_file import write_whole
from fourfold.hardware import parse_cluster
from fourfold.launch.machine import memory_bytes, require_packages

Flag = Annotated[bool, Parameter(negative=(), show_default=False)]
FORMATS = ("fp32", "bf16", "fp64")
MOST_RANKS = 64
LEAST_SECONDS, MOST_SECONDS = 1, 3600
DISTURBED = 0.1
"""How much longer the same steps may take in one round of measurements than in another before it is said."""


def calibrate(
    *,
    out: Path = Path("this-machine.toml"),
    ranks: str = "1,2,4",
    seconds: str = "120",
    dtype: str = "fp32",
    json: Flag = False,
) -> int:
    """Measure this machine and write it as a cluster file, for --cluster or the run file's [cluster] preset.

    Matmuls and attention by shape, whole segments, the optimizer, collectives and transfers by size and group, with each
    of the given numbers of ranks running at once. Stop everything else first.

    Parameters
    ----------
    out
        The file to write.
    ranks
        Numbers of ranks that run at once, with commas between. More than there are cores share them.
    seconds
        How long the measurements may take: rounds that would end later are left out. The first cannot be.
    dtype
        The number format to compute in: fp32, bf16 or fp64.
    json
        Print one JSON document and nothing else.
    """
    counts = _counts(ranks)
    budget = parse_number(seconds, "--seconds", "120", LEAST_SECONDS, MOST_SECONDS)
    if dtype not in FORMATS:
        raise UserError(f"--dtype {dtype[:40]}: allowed: {', '.join(FORMATS)}; a value that works: --dtype fp32")
    _check_out(out)
    require_packages("calibrate", "torch")
    from fourfold.calibrate.budget import TimeAccount

    account = TimeAccount(budget, counts)
    import torch

    from fourfold.calibrate.describe import describe
    from fourfold.calibrate.machine import measure_machine

    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    kind = "cuda" if devices else "cpu"
    if devices and counts[-1] > devices:
        raise UserError(
            f"--ranks {ranks}: this machine has {devices} CUDA devices; a value that works: --ranks "
            + ",".join(str(n) for n in (1, 2, 4, 8, 16) if n <= devices)
        )

    def say(text: str) -> None:
        print(text, file=sys.stderr if json else sys.stdout, flush=True)

    cores = _cores()
    with stopped_by_signals():
        found = measure_machine(counts, lambda n: 1 if devices else max(1, cores // n), dtype, kind, account, say)
    memory = torch.cuda.get_device_properties(0).total_memory if devices else memory_bytes() or 10**9
    name = torch.cuda.get_device_name(0) if devices else f"{platform.node() or 'this machine'}, {cores} cores"
    table = describe(found.calibration, kind, memory, dtype, name)
    text = tomli_w.dumps(table)
    machine = parse_cluster(text, out.name)
    try:
        write_whole(out, text)
    except OSError as error:
        raise RunFailure(f"--out {out}: cannot be written: {error.strerror}; name another place with --out") from None
    if found.drift > DISTURBED:
        print(
            f"note: the same steps took {100 * found.drift:.0f} % longer in one round than in the other: something else runs on "
            "this machine, or its clock changes; predictions will be as far off; calibrate again when it is quiet",
            file=sys.stderr,
        )
    if json:
        print(json_text.dumps({"file": str(out), **table}, indent=1))
        return 0
    for line in _lines(machine.devices, table, found.fits):
        print(line)
    print(f"written to {out}; use it as: fourfold simulate RUN.toml --cluster {out}")
    return 0


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end the block as an exception does, so that everything it has started ends with it."""

    def stop(number: int, frame: object) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        print(f"stopped by {signal.Signals(number).name}", file=sys.stderr, flush=True)
        raise SystemExit(128 + number)

    before = {each: signal.signal(each, stop) for each in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _cores() -> int:
    available = getattr(os, "sched_getaffinity", None)
    return len(available(0)) if available is not None else os.cpu_count() or 1


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


def _check_out(out: Path) -> None:
    if out.is_dir() or out.suffix != ".toml":
        raise UserError(f"--out {out}: should name a .toml file; a value that works: --out this-machine.toml")
    if not out.absolute().parent.is_dir():
        raise UserError(f"--out {out}: the folder {out.parent} does not exist; a value that works: --out {out.name}")


def _lines(devices: int, table: dict[str, Any], fits: dict[int, float]) -> list[str]:
    """The results in a few lines."""
    lines = []
    parts = {int(key[6:]): part for key, part in table["calibration"].items() if key.startswith("ranks_")}
    for ranks, part in sorted(parts.items()):
        kernels, software = part["kernels"], part["software"]
        peak = max(value for plane in kernels["gemms"]["plain"] for row in plane for value in row)
        line = (
            f"{ranks} rank{'s' if ranks > 1 else ' '} x {software['threads']} thread{'s' if software['threads'] > 1 else ' '}: "
            f"matmuls {peak / 1e9:.1f} GFLOP/s a rank, operators {kernels['memory_bytes_per_second'] / 1e9:.1f} GB/s and "
            f"{1e6 * kernels['launch_seconds']:.1f} us each"
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
