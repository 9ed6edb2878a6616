"""The price of what guards and measures a run, beside its steps: checks, copies to memory, sampled steps, as shares of its time."""

from dataclasses import dataclass, replace

from fourfold.config.schema import FaultsSection, MetricsSection
from fourfold.program.capabilities import unit_bytes
from fourfold.program.replicas import checksum_instruction
from fourfold.program.spec import StepSpec
from fourfold.simulate.prediction import StepPrediction, predict_step
from fourfold.simulate.step import Simulation


@dataclass(frozen=True)
class CheckPrice:
    """One kind of check. `seconds`: by which a step with it is longer; `share`: of all time, at one such step in `every_steps`.
    `memory_bytes`: more on the fullest device."""

    name: str
    seconds: float
    every_steps: int
    share: float
    memory_bytes: int = 0


def check_prices(
    step: StepPrediction,
    spec: StepSpec,
    faults: FaultsSection,
    memory_every_steps: int = 0,
    metrics: MetricsSection | None = None,
) -> list[CheckPrice]:
    """The checks and measurements of a run whose step `spec` is predicted; none of other software than fourfold's own, or that take
    no time. `memory_every_steps`: steps between two copies to memory; 0: none."""
    prices, total = step.simulation.prices, step.seconds
    if not prices.software.is_own:
        return []
    found = []
    if faults.checksum_every_steps:
        every, seconds = faults.checksum_every_steps, _checksum_seconds(step.simulation)
        found.append(CheckPrice("replica checksums", seconds, every, seconds / every / total))
    if faults.locate_nan:
        seconds = max(rank["norms"] for rank in step.along(_gradient_norms))
        found.append(CheckPrice("norms of a rank's own gradients", seconds, 1, seconds / total))
    if faults.replay_every_steps:
        again, every = predict_step(replace(spec, replay=True), prices), faults.replay_every_steps
        seconds, more = again.seconds - total, max(again.device_bytes) - max(step.device_bytes)
        found.append(CheckPrice("replay", seconds, every, seconds / every / total, max(0, more)))
    if metrics is not None and metrics.every_steps:
        sampled, every = predict_step(replace(spec, sampled=tuple(metrics.of)), prices), metrics.every_steps
        seconds, more = sampled.seconds - total, max(sampled.device_bytes) - max(step.device_bytes)
        found.append(CheckPrice("numbers of every layer", seconds, every, seconds / every / total, max(0, more)))
    if memory_every_steps:
        seconds = _copy_seconds(step, spec, memory_every_steps)
        found.append(CheckPrice("copies to memory", seconds, memory_every_steps, seconds / memory_every_steps / total))
    return [price for price in found if price.seconds > 0]


def _copy_seconds(step: StepPrediction, spec: StepSpec, every_steps: int) -> float:
    """Seconds that training stands still for a copy: for a rank's state over the device's link to its host, and for the rest of
    sending it to another machine when the next copy is due. A replica's peer gets nothing."""
    prices, layout = step.simulation.prices, spec.layout
    size = spec.checkpoint_bytes / layout.world_size
    network = prices.cluster.levels[-1] if len(prices.cluster.levels) > 1 else None
    sent = 0.0
    if network is not None and layout.dp_replicate == 1:
        sent = size / (network.device_bytes_per_second * prices.link_share)
    return prices.host_copy(size) + max(0.0, sent - every_steps * step.seconds)


def _checksum_seconds(simulation: Simulation) -> float:
    """The slowest pipeline rank's comparison, which the step waits for."""
    checks = [check for view in simulation.views if (check := checksum_instruction(view)) is not None]
    durations = simulation.durations
    return max((durations.local(check) + durations.collectives(check) for check in checks), default=0.0)


def _gradient_norms(simulation: Simulation) -> list[dict[str, float]]:
    """By rank, seconds to read every gradient once before each of its reductions, or once a step where nobody reduces it."""
    found = []
    for view, program in zip(simulation.views, simulation.programs, strict=True):
        times = {p.segment: len(ms) for p, ms in program.steps.microbatches.items() if p.op.is_reduction}
        sizes = {unit: unit_bytes(view.spec, "grad", flat) for unit, flat in view.flats.items()}
        found.append({"norms": sum(times.get(u, 1) * simulation.prices.memory(n) for u, n in sizes.items())})
    return found
