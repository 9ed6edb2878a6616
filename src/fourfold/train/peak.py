"""The measured peak of this device's matmuls: the denominator of MFU where the cluster is "this"."""

import time

import torch

from fourfold.model.torch_operations import torch_dtype


def measure_peak_flops(compute: str, device: torch.device) -> float:
    """FLOP/s of the best of several square matmuls in the compute format, all ranks measuring at once."""
    size, repeats = (8192, 8) if device.type == "cuda" else (1024, 6)
    left = torch.ones(size, size, dtype=torch_dtype(compute), device=device)
    right = torch.full_like(left, 0.5)
    best = 0.0
    for _ in range(repeats):
        _synchronize(device)
        start = time.perf_counter()
        torch.mm(left, right)
        _synchronize(device)
        best = max(best, 2 * size**3 / (time.perf_counter() - start))
    return best


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
