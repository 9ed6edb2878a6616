"""One step as simulated: its programs, their times, what the time went into, what fills the memory.

A step of many microbatches is in a steady state for most of them: its time and its peak of memory are linear in their number from
some number on. `predict_step` simulates two such numbers and goes on in a straight line, so that a step of 1,000
microbatches costs what one of some 3 x pp does.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from fourfold.cost.calibrated import CalibratedPrices
from fourfold.cost.memory import device_bytes, held_program
from fourfold.cost.prices import Prices
from fourfold.program import Program
from fourfold.program.compiled import CompiledStages
from fourfold.program.instruction import COMPUTE_OPS, TRANSFERS, Instruction, Op
from fourfold.program.liveness import MemoryPeak, highest_bytes, memory_curve, memory_peak, peak_bytes
from fourfold.program.lower import each_program
from fourfold.program.pattern import Pattern
from fourfold.program.schedule import find_schedule
from fourfold.program.spec import StepSpec
from fourfold.program.view import RankView
from fourfold.simulate.collection import without_collection
from fourfold.simulate.durations import Durations
from fourfold.simulate.engine import simulate_times
from fourfold.simulate.shared_cores import shared_times
from fourfold.simulate.state import SimulationState, Times

IDLE = "pipeline bubble"
_JOINED = tuple(
    f" {op.name.lower().replace('_', ' ')}"
    for op in (Op.REDUCE, Op.GATHER, Op.PARAMETER_ALL_GATHER, Op.REDUCE_TIED, Op.BRING)
)
_BESIDE = {
    Op.UPDATE: "optimizer",
    Op.MOMENTUM: "optimizer",
    Op.PARAMETER_ALL_GATHER: "compute/communication contention",
}
"""Kinds of time of instructions that compute nothing and are no sums over ranks."""


def exposed_axes(kind: str) -> str | None:
    """The axes of the group that a kind of time waits for; None of time that is no exposed communication."""
    if kind.startswith("exposed "):
        return kind.split(" ")[1]
    return kind.split(" ")[0] if kind.endswith(_JOINED) else None


@dataclass
class Passes:
    """Passes of one rank over one segment that cost the same: one of them, how many there are, their seconds together."""

    step: Instruction
    number: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Simulation:
    """A simulated step of all pipeline ranks: by rank its view and its program; the durations of their instructions."""

    spec: StepSpec
    prices: Prices
    views: tuple[RankView, ...]
    programs: tuple[Program, ...]
    durations: Durations
    times: Times

    @property
    def seconds(self) -> float:
        """Seconds of the step: the program's, and what the software adds to every step."""
        return self.times.makespan + self.prices.software.step_seconds

    @cached_property
    def passes(self) -> tuple[tuple[Passes, ...], ...]:
        """Passes of every pipeline rank, those that are alike together."""
        return tuple(self._passes(rank) for rank in range(len(self.programs)))

    def _passes(self, rank: int) -> tuple[Passes, ...]:
        times, steps = self.times.ranks[rank], self.programs[rank].steps
        found, known = dict[tuple[Op, str | None], list[Passes]](), dict[Pattern, Passes]()
        for pattern in steps.microbatches:
            if pattern.op in COMPUTE_OPS:
                passes = found.setdefault((pattern.op, pattern.segment), [])
                alike = next((each for each in passes if each.step.collectives == pattern.work.collectives), None)
                if alike is None:
                    alike = Passes(pattern.of(steps.microbatches[pattern][0]))
                    passes.append(alike)
                known[pattern] = alike
        for (pattern, _), start, end in zip(steps.steps, times.starts, times.ends, strict=True):
            if pattern in known:
                alike = known[pattern]
                alike.number += 1
                alike.seconds += end - start
        return tuple(each for passes in found.values() for each in passes)

    @cached_property
    def spent(self) -> tuple[dict[str, float], ...]:
        """Seconds of every pipeline rank by kind: kernels, exposed communication by its group, the pipeline bubble with transfers
        between stages, the optimizer. They sum to the makespan."""
        return tuple(self._spent(rank) for rank in range(len(self.programs)))

    def _spent(self, rank: int) -> dict[str, float]:
        durations = self.durations
        times, steps = self.times.ranks[rank], self.programs[rank].steps.steps
        sums: dict[str, float] = {}

        def add(kind: str, seconds: float) -> None:
            if seconds > 0:
                sums[kind] = sums.get(kind, 0.0) + seconds

        def before_others(step: Pattern, index: int, start: float, end: float) -> float:
            """Seconds between start and end in which other stages had not come to what all enter."""
            axes = [collective.axes for collective in step.work.collectives]
            if index not in times.streams or not any("pp" in each or "tied" in each for each in axes):
                return 0.0
            return max(0.0, min(end, times.streams[index][0]) - start)

        for index, ((step, _), start, end) in enumerate(zip(steps, times.starts, times.ends, strict=True)):
            op = step.op
            if end <= start or op in COMPUTE_OPS:
                continue
            if op is Op.WAIT:
                joined = times.joins[index]
                started, _ = steps[joined]
                if started.op in TRANSFERS:
                    add(IDLE, end - start)
                else:
                    early = before_others(started, joined, start, end)
                    add(IDLE, early)
                    add(f"{started.stream} {started.op.name.lower().replace('_', ' ')}", end - start - early)
            else:
                early = before_others(step, index, start, end)
                add(IDLE, early)
                add(_BESIDE.get(op, "norm and other sums"), end - start - early)
        for alike in self.passes[rank]:
            cost, number = durations.phase(alike.step), alike.number
            for kind, each in cost.busy.items():
                add("recomputation" if alike.step.op is Op.RECOMPUTE else kind, number * each)
            add(f"exposed {'+'.join(cost.communication) or 'other'} communication", number * cost.exposed)
            add("host", number * cost.host)
            add("compute/communication contention", alike.seconds - number * cost.seconds)
        add(IDLE, self.times.makespan - sum(sums.values()))
        return sums

    @property
    def bubble_fraction(self) -> float:
        """The share of all ranks' time in which they wait for other stages."""
        total = len(self.programs) * self.times.makespan
        return sum(spent.get(IDLE, 0.0) for spent in self.spent) / total if total else 0.0

    @cached_property
    def held(self) -> tuple[Program, ...]:
        """The programs with their buffers as large as the software's."""
        return tuple(
            held_program(program, view, self.prices.software)
            for program, view in zip(self.programs, self.views, strict=True)
        )

    @cached_property
    def peaks(self) -> tuple[MemoryPeak, ...]:
        """Memory peak of every pipeline rank, by liveness of its program's buffers, which are as large as the software's."""
        return tuple(map(memory_peak, self.held, self.curves))

    @cached_property
    def curves(self) -> tuple[list[int], ...]:
        """Memory of every pipeline rank while each instruction runs, in bytes of the program's buffers."""
        return tuple(map(memory_curve, self.held))

    @cached_property
    def device_bytes(self) -> tuple[int, ...]:
        """Memory of the devices of every pipeline rank."""
        return tuple(device_bytes(max(curve), self.prices.software) for curve in self.curves)


def simulate(
    spec: StepSpec,
    prices: Prices,
    programs: Sequence[Program] | None = None,
    compiled: CompiledStages | None = None,
) -> Simulation:
    """Lowers the step, unless it is lowered already, and runs it against the prices. `compiled`: what is known of its stages."""
    with without_collection():
        compiled = compiled or CompiledStages(spec)
        views = compiled.views(spec)
        lowered = tuple(programs if programs is not None else each_program(compiled, views))
        durations = Durations(prices)
        state = SimulationState(lowered, durations, spec.layout, prices)
        shared = isinstance(prices, CalibratedPrices) and prices.shares_cores and spec.layout.pp > 1
        times = shared_times(state, prices.contention_profile.relative_speeds) if shared else simulate_times(state)  # type: ignore[attr-defined]
        return Simulation(spec, prices, views, lowered, durations, times)


Key = TypeVar("Key")


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
        """Peak memory of the devices of every pipeline rank. Each instruction's memory lies on a line of its own, and the peak on
        the highest of them."""
        if self.earlier is None:
            return self.simulation.device_bytes
        ratio, software = self.periods, self.simulation.prices.software
        found = []
        short, long = (map(highest_bytes, each.held, each.curves) for each in (self.earlier, self.simulation))
        for before, after in zip(short, long, strict=True):
            lines = (before[key] + ratio * max(0, b - before[key]) for key, b in after.items() if key in before)
            found.append(device_bytes(round(max(lines)), software))
        return tuple(found)

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
    wanted, period = spec.layout.num_microbatches, max(1, spec.layout.pp)
    most, compiled = simulated_microbatches(spec), compiled or CompiledStages(spec)
    if most == wanted:
        simulation = simulate(spec, prices, compiled=compiled)
        return StepPrediction(simulation.seconds, simulation)
    fewer = most - period
    first, second = (simulate(spec.with_microbatches(n), prices, compiled=compiled) for n in (fewer, most))
    ratio = (wanted - fewer) / period
    return StepPrediction(first.seconds + ratio * (second.seconds - first.seconds), second, first, ratio)


def predict_memory(
    spec: StepSpec, prices: Prices, compiled: CompiledStages | None = None, ranks: Collection[int] | None = None
) -> Iterator[int]:
    """Peak memory of the devices of every pipeline rank, or of some `ranks`, as in `predict_step`, from programs alone, each
    lowered when it is asked for. A rank's memory does not grow with the number of microbatches from the steady state on, unless
    the schedule has ever more of them in flight, as GPipe."""
    compiled = compiled or CompiledStages(spec)
    layout, schedule, steady = spec.layout, find_schedule(spec.layout.schedule), steady_microbatches(spec)
    wanted = layout.num_microbatches
    few = wanted if steady is None else min(steady, wanted)
    held_few, held = (schedule.in_flight(layout.pp, layout.virtual_stages, number) for number in (few, wanted))
    if held > held_few:
        every = predict_step(spec, prices, compiled).device_bytes
        yield from (each for rank, each in enumerate(every) if ranks is None or rank in ranks)
        return
    short = spec.with_microbatches(few)
    views = [view for view in compiled.views(short) if ranks is None or view.pp_rank in ranks]
    for view, program in zip(views, each_program(compiled, views), strict=True):
        yield device_bytes(peak_bytes(held_program(program, view, prices.software)), prices.software)


def simulated_microbatches(spec: StepSpec) -> int:
    """How many of a step's microbatches `predict_step` simulates at most: all of few, and of a schedule that need not repeat
    itself."""
    wanted, period = spec.layout.num_microbatches, max(1, spec.layout.pp)
    steady = steady_microbatches(spec)
    if steady is None or wanted <= steady + period:
        return wanted
    return steady + (wanted - steady) % period + period


LONG_PIPELINE, LONG_ROUNDS = 16, 3
"""From so many ranks on, so many rounds of pp microbatches suffice for every schedule that repeats itself."""


def steady_microbatches(spec: StepSpec) -> int | None:
    """From so many microbatches on, every further round of pp of them adds the same time, and the same memory where it grows at
    all. None: the schedule need not repeat itself."""
    pp, rounds = spec.layout.pp, find_schedule(spec.layout.schedule).steady_rounds
    if rounds is None:
        return None
    return pp * (min(rounds, LONG_ROUNDS) if pp >= LONG_PIPELINE else rounds)


def mean_seconds(ranks: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Seconds by kind, mean over pipeline ranks."""
    sums: dict[str, float] = {}
    for rank in ranks:
        for kind, seconds in rank.items():
            sums[kind] = sums.get(kind, 0.0) + seconds / len(ranks)
    return sums
