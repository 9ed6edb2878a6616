"""Seconds of a function that is called again and again, while all other ranks do the same."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

BATCHES = 5
"""A window is divided into about so many batches of calls, so that one that something else disturbed does not count."""

LEAST_CALLS, MOST_CALLS, LONG_SECONDS = 16, 256, 1e-3
"""Calls that a graph has, so many that it takes some milliseconds; seconds of one from which on the host is ahead of the device by
itself."""


def synchronize(device: torch.device) -> None:
    """Waits for what a CUDA device was given; a CPU's work is done when its call returns."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def own_time(device: torch.device) -> Callable[[], float]:
    """The clock of a device that is measured by itself: where that is one thread of a processor, the time that it ran, so that what
    else runs there does not count."""
    alone = device.type == "cpu" and torch.get_num_threads() == 1
    return time.process_time if alone else time.perf_counter


def numbers(shape: Sequence[int], typical: float, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Operands of a measurement (`fill_`)."""
    return fill_(torch.empty(tuple(shape), dtype=dtype, device=device), typical)


def fill_(out: torch.Tensor, typical: float) -> torch.Tensor:
    """Random numbers around 0 on CUDA, where equal ones take less power and so less time than those of a training; `typical`, the
    deviation of those, everywhere on a processor."""
    return out.normal_(std=typical) if out.is_cuda else out.fill_(typical)


class Meter:
    """Times functions on a device: by events on the computing stream of a CUDA device, by `now` on a CPU."""

    def __init__(self, device: torch.device, now: Callable[[], float] = time.perf_counter) -> None:
        self.device, self._now = device, now
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if device.type == "cuda" else []

    def seconds_each(self, function: Callable[[], Any], window_seconds: float) -> float:
        """Seconds of a call, after one to warm up: the lower quartile of batches in `window_seconds`, of one where that is longer.
        All ranks start together."""
        function()
        synchronize(self.device)
        function, each = self._graphed(function)
        dist.barrier()
        end, calls = time.perf_counter() + window_seconds, 1
        while (elapsed := self._batch(function, calls)) < window_seconds / (2 * BATCHES) and time.perf_counter() < end:
            calls = max(2 * calls, int(calls * min(100.0, window_seconds / BATCHES / elapsed)))  # too short to count
        taken = [elapsed]
        while time.perf_counter() < end:
            taken.append(self._batch(function, calls))
        return sorted(taken)[(len(taken) - 1) // 4] / (calls * each)

    def _graphed(self, function: Callable[[], Any]) -> tuple[Callable[[], Any], int]:
        """A function in the place of a short one on CUDA, and how many calls it makes of that: a graph of several, so that the
        device and not the host's launches is timed. The function itself where it is long, or cannot be captured."""
        if not self._events or (elapsed := self._batch(function, 1)) > LONG_SECONDS:
            return function, 1
        calls = max(LEAST_CALLS, min(MOST_CALLS, int(2 * LONG_SECONDS / elapsed)))
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                for _ in range(calls):
                    function()
        except RuntimeError:
            return function, 1
        graph.replay()
        synchronize(self.device)
        return graph.replay, calls

    def _batch(self, function: Callable[[], Any], calls: int) -> float:
        """Seconds of so many calls."""
        if not self._events:
            begun = self._now()
            for _ in range(calls):
                function()
            return max(1e-9, self._now() - begun)
        first, last = self._events
        first.record()
        for _ in range(calls):
            function()
        last.record()
        last.synchronize()
        return max(1e-9, float(first.elapsed_time(last)) / 1e3)
