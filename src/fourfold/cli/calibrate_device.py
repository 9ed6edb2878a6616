"""`fourfold calibrate --device`: measures one device and writes its file."""

import os
import platform
import sys
import tomllib
from functools import partial
from pathlib import Path

from fourfold.api.new_file import write_new_file
from fourfold.calibrate.budget import Shares
from fourfold.cli.options import print_json
from fourfold.config import UserError
from fourfold.hardware import parse_device
from fourfold.launch.machine import busy_cores, memory_bytes
from fourfold.report.format_device import device_text, document, screen

BUSY_CORES = 0.25
"""Cores that others keep busy from which on it is said before anything is measured."""


def say_if_busy() -> None:
    """A line where other processes compute on this machine, whose rates would then be those that they leave."""
    others = busy_cores()
    if others is not None and others >= BUSY_CORES:
        print(
            f"note: other processes keep {others:.1f} of {os.cpu_count()} cores busy: what is measured now is what they leave; "
            "stop them, and calibrate again when the machine is quiet",
            file=sys.stderr,
            flush=True,
        )


def calibrate_device(device: str, ranks: int, seconds: float, dtype: str, out: Path, cores: int, json: bool) -> int:
    """`ranks`: that share a processor's `cores`. Raises `UserError` where there is no such device."""

    shares = Shares(seconds, partial(print, file=sys.stderr if json else sys.stdout, flush=True))
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
    if json:
        print_json({"file": str(out), **document(found, tomllib.loads(text))})
        return 0
    for line in screen(found):
        print(line)
    print(f"written to {out}; use it as: fourfold simulate RUN.toml --cluster {out}")
    return 0
