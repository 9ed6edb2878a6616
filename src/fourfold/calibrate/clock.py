"""Seconds of a function that is called again and again, while all other ranks do the same."""

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist


def synchronize(device: torch.device) -> None:
    """Waits for what a CUDA device was given; a CPU's work is done when its call returns."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_each(function: Callable[[], Any], device: torch.device, window_seconds: float) -> float:
    """Mean seconds of a call over at least `window_seconds`, after one call to warm up. All ranks start together."""
    function()
    synchronize(device)
    dist.barrier()
    count, elapsed, batch = 0, 0.0, 1
    start = time.perf_counter()
    while elapsed < window_seconds:
        for _ in range(batch):
            function()
        count += batch
        if device.type == "cuda":
            synchronize(device)
            batch *= 2
        elapsed = time.perf_counter() - start
    return elapsed / count
