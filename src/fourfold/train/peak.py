"""The measured peak of this device's matmuls: the denominator of MFU where the cluster is "this"."""

import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from fourfold.config.json_lines import read_jsonl
from fourfold.model.torch_operations import torch_dtype
from fourfold.train.metrics import EVENTS
from fourfold.train.session import RankContext, generation

ENOUGH_SECONDS = 0.2


def agreed_peak_flops(out: Path, compute: str, context: RankContext, event: Callable[..., None]) -> float:
    """A rank's peak, as the mean over all ranks measuring together; after a restart that of the start."""
    dist.barrier()
    peak = torch.zeros(1, dtype=torch.float64, device=context.device)
    if generation():
        peak += known_peak_flops(out) if context.rank == 0 else 0.0
        dist.all_reduce(peak)
    if not peak.item():
        event("phase", what="measuring this machine's matmuls")
        peak += measure_peak_flops(compute, context.device)
        dist.all_reduce(peak)
        peak /= context.world_size
        event("machine", peak_flops=peak.item())
    return peak.item()


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
