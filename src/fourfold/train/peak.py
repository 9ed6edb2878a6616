"""The measured peak of this device's matmuls: the denominator of MFU where the cluster is "this"."""

import time
from pathlib import Path

import torch

from fourfold.config.json_lines import read_jsonl
from fourfold.model.torch_operations import torch_dtype
from fourfold.train.metrics import EVENTS

ENOUGH_SECONDS = 0.2


def measure_peak_flops(compute: str, device: torch.device) -> float:
    """FLOP/s of the best of several square matmuls in the compute format, all ranks measuring at once.

    On a CPU they grow, and none begins after `ENOUGH_SECONDS`: where a CPU has no instructions of a format, one matmul of
    1024 takes seconds and is no faster than a smaller one.
    """
    sizes = [8192] * 8 if device.type == "cuda" else [256, 512, *[1024] * 6]
    best = spent = 0.0
    for size in sizes:
        left = torch.ones(size, size, dtype=torch_dtype(compute), device=device)
        right = torch.full_like(left, 0.5)
        _synchronize(device)
        start = time.perf_counter()
        torch.mm(left, right)
        _synchronize(device)
        seconds = time.perf_counter() - start
        best, spent = max(best, 2 * size**3 / seconds), spent + seconds
        if device.type == "cpu" and spent > ENOUGH_SECONDS:
            break
    return best


def known_peak_flops(out: Path) -> float:
    """The peak that an earlier generation of the run in `out` measured; 0 where there is none."""
    found = [row.get("peak_flops") for row in read_jsonl(out / EVENTS) if row.get("event") == "machine"]
    return float(found[-1]) if found and isinstance(found[-1], float) else 0.0


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
