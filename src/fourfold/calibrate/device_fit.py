"""The few constants with which a device is priced, fitted to what was measured of it; and how far they are off by kind of kernel.

`Sample`s are predicted by the cost model itself (`cost.phase`), and the constants are the most probable ones, given the samples and
those of an unknown device (`fitted.toml`): where little was measured they stay near those.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fourfold.calibrate.findings import LOW_MATMULS, PASSES, FamilyError, Sample
from fourfold.config import RunConfig
from fourfold.cost.fitted import fitted
from fourfold.cost.kernels import gemm_seconds
from fourfold.cost.most_probable import Free, most_probable, slopes_of
from fourfold.cost.phase import phase_cost
from fourfold.cost.prices import Prices
from fourfold.hardware import Device, one_device
from fourfold.model.work import Gemm
from fourfold.program.spec import StepSpec
from fourfold.simulate.run_prices import prices_for

CONSTANTS = (
    Free("gemm_share", 0.3, 0.02, 1.0),
    Free("gemm_half_tiles", 1.5, 1e-3, 20.0),
    Free("gemm_half_inner", 1.5, 0.1, 5e3),
    Free("gemm_full_rows", 1.0, 1.0, 512.0),
    Free("attention_share", 0.7, 0.01, 1.0),
    Free("attention_backward_share", 0.7, 0.01, 1.0),
    Free("attention_half_keys", 1.5, 0.1, 5e3),
    Free("attention_half_width", 1.5, 0.1, 500.0),
    Free("attention_half_blocks", 1.5, 1e-3, 20.0),
    Free("memory_share", 0.7, 0.01, 10.0),
    Free("launch_seconds", 2.0, 1e-8, 1e-3),
)
LOW = (Free("low_share", 0.3, 0.05, 2.0),)
START = {"gemm_full_rows": 90.0}
"""Between the rows that are measured: where a constant is as large as a shape's rows, its slopes to either side are not alike."""
NOISE = {PASSES: 0.05, "launches": 0.05}
"""Spread, as a share, that no constant explains: passes over segments are what a step is made of."""
KERNEL_NOISE, OUTLIER = 0.15, 3.0
"""Spread of single kernels, as a share; an error of more spreads than `OUTLIER` counts less and less."""
MOST_ROUNDS, STILL = 25, 1e-3


@dataclass(frozen=True)
class FittedRun:
    """A run of one rank, whose software and formats prices are of."""

    config: RunConfig
    spec: StepSpec


@dataclass(frozen=True)
class DeviceFit:
    constants: Mapping[str, float]
    residuals: tuple[FamilyError, ...]


def fit_device(device: Device, run: FittedRun, samples: Sequence[Sample]) -> DeviceFit:
    """`device`: with its measured peaks, memory and host. Errors are logarithms of predicted over measured."""
    prior = fitted().device("default")
    start = {each.name: float(getattr(prior, each.name)) for each in (*CONSTANTS, *LOW)} | START
    low = [sample for sample in samples if sample.family == LOW_MATMULS]
    rest = [sample for sample in samples if sample.family != LOW_MATMULS]
    found = _fitted(CONSTANTS, start, rest, device, run)
    if low:
        found = _fitted(LOW, found, low, device, run)
    else:
        del found["low_share"]
    constants = {name: float(f"{value:.4g}") for name, value in found.items()}
    errors = _errors({**start, **constants}, samples, device, run)
    return DeviceFit(constants, tuple(_residuals(samples, errors)))


def _fitted(
    free: Sequence[Free], start: Mapping[str, float], samples: Sequence[Sample], device: Device, run: FittedRun
) -> dict[str, float]:
    """All constants, of which `free` are moved: Gauss-Newton with steps that are halved until they help."""
    values = dict(start)
    at, errors = [0.0] * len(free), _errors(values, samples, device, run)
    loss = _loss(free, samples, errors, at)
    for _ in range(MOST_ROUNDS):
        slopes = slopes_of(free, values, errors, lambda moved: _errors(moved, samples, device, run), lambda _: 0.02)
        noise = [
            _spread(sample) * _doubt(error / _spread(sample)) for sample, error in zip(samples, errors, strict=True)
        ]
        aim = most_probable(free, errors, noise, slopes, at)
        share = 1.0
        while share > 0.02:
            tried = {
                **values,
                **{
                    each.name: each.moved(start[each.name], now + share * (then - now))
                    for each, now, then in zip(free, at, aim, strict=True)
                },
            }
            departed = [each.departure(tried[each.name], start[each.name]) for each in free]
            new = _errors(tried, samples, device, run)
            if (less := _loss(free, samples, new, departed)) < loss:
                break
            share /= 2
        else:
            return values
        gain, values, at, errors, loss = loss - less, tried, departed, new, less
        if gain < STILL * loss:
            return values
    return values


def _errors(constants: Mapping[str, float], samples: Sequence[Sample], device: Device, run: FittedRun) -> list[float]:
    prices = prices_for(run.config, run.spec, one_device(replace(device, kernels=constants)))
    kernels = replace(
        prices, kernels=replace(prices.kernels, gradient_bytes=0.0)
    )  # a kernel alone, without the sum behind it
    return [math.log(_predicted(each, prices if each.family == PASSES else kernels) / each.seconds) for each in samples]


def _predicted(sample: Sample, prices: Prices) -> float:
    if sample.family != LOW_MATMULS:
        return phase_cost(sample.work, prices).seconds
    (gemm,), kernels = sample.work.items, prices.kernels
    assert isinstance(gemm, Gemm)
    return kernels.launch_seconds + gemm_seconds(gemm, prices.cluster.device, kernels, "fp8", 1) / kernels.low_share


def _spread(sample: Sample) -> float:
    return NOISE.get(sample.family, KERNEL_NOISE)


def _doubt(error: float) -> float:
    """Factor of a sample's spread: a measurement that something disturbed shall not decide."""
    return math.sqrt(1 + (error / OUTLIER) ** 2)


def _loss(free: Sequence[Free], samples: Sequence[Sample], errors: Sequence[float], at: Sequence[float]) -> float:
    """Minus the logarithm of the posterior density, its tails those of Cauchy's."""
    scaled = (error / _spread(sample) / OUTLIER for sample, error in zip(samples, errors, strict=True))
    held = sum((by / each.spread) ** 2 for each, by in zip(free, at, strict=True))
    return held + OUTLIER**2 * sum(math.log1p(each**2) for each in scaled)


def _residuals(samples: Sequence[Sample], errors: Sequence[float]) -> list[FamilyError]:
    found = []
    for family in dict.fromkeys(sample.family for sample in samples):
        own = sorted(
            abs(math.expm1(error)) for sample, error in zip(samples, errors, strict=True) if sample.family == family
        )
        found.append(FamilyError(family, len(own), own[len(own) // 2], own[(9 * len(own) - 1) // 10]))
    return found
