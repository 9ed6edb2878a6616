"""All measurements of one device, one kind after the other in the time that is given; what is fitted to them; and whole steps as a
check."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
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
from fourfold.calibrate.device_fit import FittedRun, fit_device
from fourfold.calibrate.findings import MATMULS, PASSES, DeviceFindings, DeviceMemory, Sample, StepCheck
from fourfold.calibrate.fit import timed_passes, timed_updates
from fourfold.calibrate.kernels import choose_library
from fourfold.calibrate.ranks import Ranks
from fourfold.calibrate.rounds import Table
from fourfold.calibrate.steps import measure_steps, table_spec
from fourfold.config import parse_run
from fourfold.hardware import Device, one_device
from fourfold.model.counts import num_parameters, step_flops_per_token
from fourfold.model.work import Elementwise, Work
from fourfold.program.spec import StepSpec
from fourfold.simulate.run_prices import prices_for
from fourfold.simulate.step import simulate

LEAST_STEPS, SLOWEST_MFU = 3, 0.4
"""Steps that a model makes at least, the first to warm up; the share of the peak that is expected of the slowest."""
PARAMETER_BYTES = 48
"""Memory of a step by the model's parameters: states, gradients, and as much for activations."""


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
        by_library: tuple[str, ...] = run(choose_library, table=tables[-1])
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
