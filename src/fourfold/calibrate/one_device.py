"""All measurements of one device, one kind after the other in the time that is given; what is fitted to them; and whole steps as a
check.

`Sample`s are predicted by the cost model itself (`cost.phase`), and the few constants with which a device is priced are the most
probable ones, given the samples and those of an unknown device (`fitted.toml`): where little was measured they stay near those.
How far they are off is told by kind of kernel.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fourfold.calibrate.budget import Shares
from fourfold.calibrate.device import (
    measure_attentions,
    measure_context,
    measure_load,
    measure_low_matmuls,
    measure_matmuls,
    measure_memory,
    measure_operators,
    measure_peaks,
    shapes_of,
)
from fourfold.calibrate.findings import (
    LOW_MATMULS,
    MATMULS,
    PASSES,
    DeviceFindings,
    DeviceMemory,
    FamilyError,
    Sample,
    StepCheck,
)
from fourfold.calibrate.fit import timed_passes, timed_updates
from fourfold.calibrate.kernels import Libraries, choose_library
from fourfold.calibrate.ranks import Ranks
from fourfold.calibrate.rounds import Table
from fourfold.calibrate.steps import measure_steps, table_spec
from fourfold.config import RunConfig, parse_run
from fourfold.cost.fitted import fitted
from fourfold.cost.kernels import gemm_seconds
from fourfold.cost.most_probable import Free, most_probable, slopes_of
from fourfold.cost.phase import phase_cost
from fourfold.cost.prices import Prices
from fourfold.hardware import Device, one_device
from fourfold.model.counts import num_parameters, step_flops_per_token
from fourfold.model.work import Elementwise, Gemm, Work
from fourfold.program.spec import StepSpec
from fourfold.simulate.run_prices import prices_for
from fourfold.simulate.step import simulate

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
LEAST_STEPS, SLOWEST_MFU = 3, 0.4
"""Steps that a model makes at least, the first to warm up; the share of the peak that is expected of the slowest."""
PARAMETER_BYTES = 48
"""Memory of a step by the model's parameters: states, gradients, and as much for activations."""


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


def measure_device(name: str, kind: str, threads: int, host_bytes: int, dtype: str, shares: Shares) -> DeviceFindings:
    """`kind`: cuda or cpu. `host_bytes`: of the memory that a processor's rank has, which runs so many threads."""
    with Ranks(1, threads, kind) as group:

        def run(function: Callable[..., Any], **options: Any) -> Any:
            return group.run(function, **options)[0]

        context = run(measure_context)
        peaks: dict[str, float] = run(measure_peaks, dtype=dtype, seconds=shares.next("peaks"))
        if "fp8" not in peaks:
            shares.skip("fp8 matmuls")
        peak = peaks[dtype]
        tables = shapes_of(kind).fitted_tables(dtype)
        libraries: Libraries = run(choose_library, table=tables[-1])
        by_library = libraries.by_onednn
        rates: list[float] = run(measure_load, dtype=dtype, peak=peak, seconds=shares.next("sustained load"))
        window = shares.next("matmuls")
        samples: list[Sample] = run(measure_matmuls, dtype=dtype, peak=peak, seconds=window, by_library=by_library)
        if "fp8" in peaks:
            samples += run(measure_low_matmuls, peak=peaks["fp8"], seconds=shares.next("fp8 matmuls"))
        samples += run(measure_attentions, dtype=dtype, peak=peak, seconds=shares.next("attention"))
        memory: DeviceMemory = run(measure_memory, seconds=shares.next("memory and launches"))
        samples += run(measure_operators, dtype=dtype, seconds=shares.next("operators"))
        most = memory.total_bytes or host_bytes
        tables = _affordable(tables, kind, peak, most, shares.peek("whole steps"))

        def steps_of(some: list[Table], share: str) -> list[dict[str, float]]:
            seconds = shares.next(share)
            window = seconds / 2 / len(some)
            found: list[dict[str, float]] = run(
                measure_steps, tables=some, window=window, by_library=by_library, alone=True, most=seconds
            )
            return found

        steps = steps_of(tables, "whole steps")
        if kind == "cuda":
            context = run(measure_context)
        checked = _affordable(
            shapes_of(kind).checked_tables(dtype), kind, peak, most, shares.peek("steps to check with")
        )
        seconds = steps_of(checked, "steps to check with")
    tables, checked = tables[: len(steps)], checked[: len(seconds)]
    for table, measured in zip(tables, steps, strict=True):
        samples += pass_samples(table, kind, measured)
    rate = max(s.work.flops / s.seconds for s in samples if s.family == MATMULS)
    reached = (model_flops(table_spec(each, 1, kind)) / one["step"] for each, one in zip(checked, seconds, strict=True))
    device = Device(
        key="this",
        name=name,
        source="measured",
        memory_bytes=most,
        memory_bytes_per_second=memory.bytes_per_second,
        peak_flops_per_second={**peaks, dtype: max(peak, rate, *rates, *reached)},
        units=memory.units,
        host_bytes_per_second=memory.from_host_bytes_per_second,
        host_launch_seconds=memory.host_launch_seconds,
        context_bytes=context,
    )
    config = parse_run(dict(tables[0]))
    fit = fit_device(device, FittedRun(config, table_spec(tables[0], 1, kind)), samples)
    device = replace(device, kernels=fit.constants)
    checks = [_check(table, kind, each["step"], device) for table, each in zip(checked, seconds, strict=True)]
    device = replace(device, torch_matmul_speed=libraries.torch_speed)
    return DeviceFindings(device, dtype, memory, tuple(rates), tuple(samples), fit.residuals, tuple(checks), by_library)


def _affordable(tables: list[Table], kind: str, peak: float, memory: int, seconds: float) -> list[Table]:
    """The tables whose steps fit into the memory and half of the time, the first of them at least."""
    found, left = tables[:1], seconds / 2
    for table in tables:
        spec = table_spec(table, 1, kind)
        left -= LEAST_STEPS * model_flops(spec) / (SLOWEST_MFU * peak)
        if left > 0 and num_parameters(spec.model) * PARAMETER_BYTES < memory:
            found.append(table)
    return found[1:] or found


def pass_samples(table: Mapping[str, Any], kind: str, seconds: Mapping[str, float]) -> Iterator[Sample]:
    """Passes over segments and updates of one rank's step. The embedding's passes are too short to count."""
    spec = table_spec(table, 1, kind)
    yield from (Sample(PASSES, work, taken) for work, taken in timed_passes(spec, seconds) if work.flops)
    for size, taken in timed_updates(spec, seconds):
        yield Sample("updates", Work((Elementwise(size, size),)), taken)


def _check(table: Mapping[str, Any], kind: str, seconds: float, device: Device) -> StepCheck:
    spec, config = table_spec(table, 1, kind), parse_run(dict(table))
    simulation = simulate(spec, prices_for(config, spec, one_device(device)))
    mfu = model_flops(spec) / seconds / device.peak(spec.compute)
    return StepCheck(num_parameters(spec.model), _tokens(spec), seconds, simulation.seconds, mfu)


def _tokens(spec: StepSpec) -> int:
    layout = spec.layout
    return layout.num_microbatches * layout.microbatch_sequences * layout.sequence_length


def model_flops(spec: StepSpec) -> float:
    """Model FLOPs of a step."""
    return _tokens(spec) * step_flops_per_token(spec.model, spec.layout.sequence_length)
