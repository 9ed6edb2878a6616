"""The measured peak of this device's matmuls, the denominator of MFU."""

import time
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from fourfold.config.run_rows import newest_rows
from fourfold.model import torch_onednn
from fourfold.model.torch_operations import torch_dtype
from fourfold.train.metrics import EVENTS
from fourfold.train.session import RankContext, generation


class Peak:
    """A rank's peak, as the mean over all ranks measuring together; after a restart that of the start."""

    def __init__(self, compute: str, context: RankContext, out: Path, tell: Callable[..., None]) -> None:
        """`tell`: writes an event with its fields."""
        self._tell = tell
        peak = torch.zeros(1, dtype=torch.float64, device=context.device)
        if generation() and context.rank == 0:
            peak += known_peak_flops(out)
        dist.all_reduce(peak)  # all ranks begin together
        if not peak.item():
            tell("phase", what="measuring this machine's matmuls")
            peak += measure_peak_flops(compute, context.device)
            dist.all_reduce(peak)
            peak /= context.world_size
            tell("machine", peak_flops=peak.item())
        self.flops = peak.item()

    def share(self, flops: float, step: int) -> float:
        """The share of the peak that a rank's FLOP/s are in a step. Where they are more, other work on the machine slowed the
        measurement, and the step's are the peak from then on."""
        if flops > self.flops:
            self.flops = flops
            self._tell("machine", step=step, peak_flops=flops)
        return flops / self.flops


LONG_ENOUGH = {"cpu": 0.4, "cuda": 1.0}
"""Seconds of matmuls: a processor's boost and a GPU's clock settle within them."""


def measure_peak_flops(compute: str, device: torch.device) -> float:
    """FLOP/s of the best matmul in the compute format, all ranks measuring at once.

    Squares of several sizes, once by a weight as it is stored and once by its transpose, as forward and backward take it; in fp32
    on a CPU by oneDNN too. The fastest is then repeated. On a CPU the squares grow until they have taken half the time: where it
    has no instructions of a format, one of 1024 takes seconds and is no faster than a smaller one.
    """
    budget = LONG_ENOUGH[device.type]
    sizes = (4096, 8192) if device.type == "cuda" else (256, 512, 1024)
    onednn = (False, True) if device.type == "cpu" and compute == "fp32" and torch_onednn.is_available() else (False,)
    rates: dict[tuple[int, bool, bool], float] = {}
    begun = time.perf_counter()
    for size, transposed, by_onednn in product(sizes, (False, True), onednn):
        if time.perf_counter() - begun < budget / 2 or not rates:
            matmul = _square(size, transposed, by_onednn, compute, device)
            _rate(matmul, size, device)
            rates[size, transposed, by_onednn] = _rate(matmul, size, device)
    best = max(rates, key=rates.__getitem__)
    matmul = _square(*best, compute, device)
    peak = rates[best]
    while time.perf_counter() - begun < budget:
        peak = max(peak, _rate(matmul, best[0], device))
    return peak


def _square(size: int, transposed: bool, by_onednn: bool, compute: str, device: torch.device) -> Callable[[], Tensor]:
    generator = torch.Generator(device).manual_seed(
        0
    )  # equal numbers take less power, and so less time, than a training's
    left, right = (
        torch.randn(size, size, generator=generator, dtype=torch_dtype(compute), device=device) for _ in range(2)
    )
    matmul = torch_onednn.matmul if by_onednn else torch.mm
    return partial(matmul, left, right.t() if transposed else right)


def _rate(matmul: Callable[[], Tensor], size: int, device: torch.device) -> float:
    """FLOP/s of one call, or on a GPU of several, so that its launch does not count."""
    calls = 8 if device.type == "cuda" else 1
    _synchronize(device)
    start = time.perf_counter()
    for _ in range(calls):
        matmul()
    _synchronize(device)
    return calls * 2 * size**3 / (time.perf_counter() - start)


def known_peak_flops(out: Path) -> float:
    """The peak that an earlier generation of the run in `out` measured; 0 where there is none."""
    found = next((row.get("peak_flops") for row in newest_rows(out / EVENTS) if row.get("event") == "machine"), None)
    return found if isinstance(found, float) else 0.0


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
