"""A step of any number of microbatches, predicted from one or two steps as simulated.

A step of many microbatches is in a steady state for most of them: its time and its peak of memory are linear in their number from
some number on. `predict_step` simulates two such numbers and goes on in a straight line, so that a step of 1,000
microbatches costs what one of some 3 x pp does.

Where every event is wanted, `step_for_trace` simulates all of a step. A request that asks for too many segments is refused.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isclose
from typing import TypeVar

from fourfold.config import ModelConfig, UserError
from fourfold.cost.memory import device_bytes, held_program
from fourfold.cost.prices import Prices
from fourfold.program.compiled import CompiledStages
from fourfold.program.liveness import highest_bytes, host_peak_bytes, peak_bytes
from fourfold.program.lower import each_program
from fourfold.program.offload.pinned import pinned_bytes
from fourfold.program.schedule import find_schedule
from fourfold.program.spec import StepSpec
from fourfold.simulate.step import Simulation, simulate

Key = TypeVar("Key")
MAX_SEGMENT_PASSES = 400_000
"""Segments x microbatches of one simulation: some five million instructions."""
MAX_LAYERS = 10_000
TRACE_INSTRUCTIONS = 2_000_000
"""A trace has all microbatches of a step up to so many instructions."""


@dataclass(frozen=True)
class StepPrediction:
    """Seconds of a step; `simulation`: what they were found from.

    Where that has fewer microbatches than the step, `earlier` has a period less, and the step lies on the straight line through
    both, `periods` of them beyond `earlier`.
    """

    seconds: float
    simulation: Simulation
    earlier: Simulation | None = None
    periods: float = 0.0

    @property
    def is_full(self) -> bool:
        """Whether every microbatch of the step was simulated."""
        return self.earlier is None

    @cached_property
    def device_bytes(self) -> tuple[int, ...]:
        """Peak memory of the devices of every pipeline rank: the longer step's, unless ever more microbatches are in flight. Then
        each instruction's memory lies on a line of its own, and the peak on the highest of them."""
        if self.earlier is None or not _holds_ever_more(self.simulation.spec):
            return self.simulation.device_bytes
        ratio, software = self.periods, self.simulation.prices.software
        found = []
        short, long = (map(highest_bytes, each.held, each.curves) for each in (self.earlier, self.simulation))
        for pp, (before, after) in enumerate(zip(short, long, strict=True)):
            lines = (before[key] + ratio * max(0, b - before[key]) for key, b in after.items() if key in before)
            found.append(device_bytes(round(max(lines)), software, self.simulation.spec, pp))
        return tuple(found)

    @cached_property
    def host_bytes(self) -> int:
        """Bytes of the host's memory that are allocated for one device's offloaded activations and optimizer states: pinned, in
        powers of two, where the device is none of the host's own processors."""
        spec = self.simulation.spec
        if spec.transport != "native":
            return max(map(host_peak_bytes, self.simulation.programs))
        return max(pinned_bytes(program, spec.model.num_experts > 0) for program in self.simulation.programs)

    def along(self, sums: Callable[[Simulation], Sequence[Mapping[Key, float]]]) -> list[dict[Key, float]]:
        """Sums that grow linearly with the number of microbatches, one mapping a pipeline rank, for the whole step."""
        last = sums(self.simulation)
        if self.earlier is None:
            return [dict(each) for each in last]
        first = sums(self.earlier)
        return [
            {key: a.get(key, 0.0) + self.periods * (b.get(key, 0.0) - a.get(key, 0.0)) for key in {**a, **b}}
            for a, b in zip(first, last, strict=True)
        ]


def predict_step(spec: StepSpec, prices: Prices, compiled: CompiledStages | None = None) -> StepPrediction:
    """The full step, or two shorter ones and the straight line through them. `compiled`: as in `simulate`."""
    wanted, period = spec.layout.num_microbatches, round_of(spec)
    most, compiled = simulated_microbatches(spec), compiled or CompiledStages(spec)
    if most == wanted:
        simulation = simulate(spec, prices, compiled=compiled)
        return StepPrediction(simulation.seconds, simulation)
    first, second = (simulate(spec.with_microbatches(n), prices, compiled=compiled) for n in (most - period, most))
    if not _waits_alike(first, second):
        added, before = second.seconds - first.seconds, 0.0
        while abs(added - before) > _STEADY * added and most + period <= wanted and most < _MOST_ROUNDS * period:
            most += period
            first, second = second, simulate(spec.with_microbatches(most), prices, compiled=compiled)
            added, before = second.seconds - first.seconds, added
    ratio = (wanted - most) / period + 1
    return StepPrediction(first.seconds + ratio * (second.seconds - first.seconds), second, first, ratio)


def _waits_alike(first: Simulation, second: Simulation) -> bool:
    """Whether devices wait as long for their hosts in both steps: at their begin and end, and in no microbatch between. Else what a
    round adds changes until the hosts are as far ahead as they get."""
    sums = ([sum(rank.host.values()) for rank in step.times.ranks] for step in (first, second))
    return all(isclose(a, b, rel_tol=1e-9, abs_tol=1e-12) for a, b in zip(*sums, strict=True))


def predict_memory(
    spec: StepSpec, prices: Prices, compiled: CompiledStages | None = None, ranks: Collection[int] | None = None
) -> Iterator[int]:
    """Peak memory of the devices of every pipeline rank, or of some `ranks`, as in `predict_step`, from programs alone, each
    lowered when it is asked for. A rank's memory does not grow with the number of microbatches from the steady state on, unless
    the schedule has ever more of them in flight, as GPipe."""
    compiled = compiled or CompiledStages(spec)
    if _holds_ever_more(spec):
        every = predict_step(spec, prices, compiled).device_bytes
        yield from (each for rank, each in enumerate(every) if ranks is None or rank in ranks)
        return
    wanted, steady, period = spec.layout.num_microbatches, steady_microbatches(spec), round_of(spec)
    few = wanted if steady is None or wanted <= steady else max(steady + (wanted - steady) % period, _ACCUMULATED)
    short = spec.with_microbatches(min(few, wanted))
    views = [view for view in compiled.views(short) if ranks is None or view.pp_rank in ranks]
    for view, program in zip(views, each_program(compiled, views), strict=True):
        peak = peak_bytes(held_program(program, view, prices.software))
        yield device_bytes(peak, prices.software, spec, view.pp_rank)


def round_of(spec: StepSpec) -> int:
    """The microbatches after which a schedule repeats itself: one for each pipeline rank, twice as many where they go two by
    two."""
    return spec.layout.pp * spec.microbatches_per_slot


def simulated_microbatches(spec: StepSpec) -> int:
    """How many of a step's microbatches `predict_step` simulates at most: all of few, and of a schedule that need not repeat
    itself."""
    wanted, period = spec.layout.num_microbatches, round_of(spec)
    steady = steady_microbatches(spec)
    if steady is None or wanted <= steady + period:
        return wanted
    return steady + (wanted - steady) % period + period


_STEADY, _MOST_ROUNDS = 1e-3, 12
"""Two rounds that differ by so much at most add the same; after so many rounds the last ones count."""
_ACCUMULATED = 2
"""A step of so many microbatches keeps gradients of one while it computes another, as a longer one does."""
LONG_PIPELINE, LONG_ROUNDS = 16, 3
"""From so many ranks on, so many rounds of pp microbatches suffice for every schedule that repeats itself."""


def steady_microbatches(spec: StepSpec) -> int | None:
    """From so many microbatches on, every further round of them adds the same time, and the same memory where ever more are in
    flight. None: the schedule need not repeat itself."""
    pp, rounds = spec.layout.pp, find_schedule(spec.layout.schedule).steady_rounds
    if rounds is None:
        return None
    if pp == spec.layout.virtual_stages == spec.microbatches_per_slot == 1 and not _holds_ever_more(spec):
        return 1
    return round_of(spec) * (min(rounds, LONG_ROUNDS) if pp >= LONG_PIPELINE else rounds)


def _holds_ever_more(spec: StepSpec) -> bool:
    """Whether the schedule has more microbatches in flight the more there are, as GPipe."""
    layout, schedule = spec.layout, find_schedule(spec.layout.schedule)
    rounds = schedule.steady_rounds
    if rounds is None:
        return False
    few, more = (schedule.in_flight(layout.pp, layout.virtual_stages, n * layout.pp) for n in (rounds, rounds + 1))
    return more > few


def check_layers(model: ModelConfig) -> None:
    """Raises `UserError` where a model has more blocks than are worth dividing among stages."""
    if model.num_layers > MAX_LAYERS:
        raise UserError(
            f"model.num_layers = {model.num_layers}: too many to simulate; allowed: 1 to {MAX_LAYERS}; a value that works: 126"
        )


def check_size(spec: StepSpec) -> None:
    """Raises `UserError` where a simulation would not end in reasonable time."""
    number, segments = simulated_microbatches(spec), len(spec.segments)
    if number * segments <= MAX_SEGMENT_PASSES:
        return
    layout = spec.layout
    fewer = max(1, MAX_SEGMENT_PASSES // segments)
    raise UserError(
        f"{number} microbatches of {segments} segments are too much to simulate (pp = {layout.pp}, schedule {layout.schedule!r}); "
        f"allowed: segments x microbatches up to {MAX_SEGMENT_PASSES}; what works: larger layout.microbatch_sequences or a smaller "
        f"batch.global_sequences with at most {fewer} microbatches a rank, or less pp"
    )


def step_for_trace(spec: StepSpec, step: StepPrediction) -> tuple[Simulation, str]:
    """The step with all its microbatches, or, where they are too many, the part that was simulated already; and what is cut."""
    if step.is_full:
        return step.simulation, ""
    simulated, wanted = step.simulation.spec.layout.num_microbatches, spec.layout.num_microbatches
    instructions = sum(len(program.instructions) for program in step.simulation.programs)
    expected = instructions * wanted // simulated
    if expected <= TRACE_INSTRUCTIONS:
        return simulate(spec, step.simulation.prices), ""
    cut = (
        f"\nit shows {simulated} of {wanted} microbatches: all of them are some {expected:,} instructions, and a trace has at most "
        f"{TRACE_INSTRUCTIONS:,}"
    )
    return step.simulation, cut
