"""One step as simulated: its programs, their times, what the time went into, what fills the memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from fourfold.cost.calibration import CalibratedPrices
from fourfold.cost.memory import device_bytes, held_program
from fourfold.cost.prices import Prices
from fourfold.program import Program
from fourfold.program.capabilities import OPCODES
from fourfold.program.compiled import CompiledStages
from fourfold.program.instruction import Instruction, Opcode
from fourfold.program.liveness import MemoryPeak, memory_curve, memory_peak
from fourfold.program.lower import each_program
from fourfold.program.opcode import SMALL_SUMS
from fourfold.program.ops import Op
from fourfold.program.pattern import Pattern
from fourfold.program.spec import StepSpec
from fourfold.program.view import RankView
from fourfold.simulate.durations import Durations
from fourfold.simulate.engine import HostStream, shared_times, simulate_times
from fourfold.simulate.paused_garbage_collection import without_collection
from fourfold.simulate.state import SimulationState, Times

IDLE = "pipeline bubble"
_EXPOSED = tuple(f" {op.words}" for op in OPCODES if op.is_start and not op.is_transfer and op.info.time != SMALL_SUMS)


def exposed_axes(kind: str) -> str | None:
    """The axes of the group that a kind of time waits for; None of time that is no exposed communication."""
    if kind.startswith("exposed "):
        return kind.split(" ")[1]
    return kind.split(" ")[0] if kind.endswith(_EXPOSED) else None


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
        found, known = dict[tuple[Opcode, str | None], list[Passes]](), dict[Pattern, Passes]()
        for pattern in steps.microbatches:
            if pattern.op.is_compute:
                passes = found.setdefault((pattern.op, pattern.segment), [])
                alike = next((each for each in passes if each.step.collectives == pattern.work.collectives), None)
                if alike is None:
                    alike = Passes(pattern.of(steps.microbatches[pattern][0]))
                    passes.append(alike)
                known[pattern] = alike
        late = times.host
        for index, ((pattern, _), start, end) in enumerate(zip(steps.steps, times.starts, times.ends, strict=True)):
            if pattern in known:
                alike = known[pattern]
                alike.number += 1
                alike.seconds += end - start - late.get(index, 0.0)
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
            if end <= start or op.is_compute:
                continue
            if op is Op.WAIT:
                joined = times.joins[index]
                started, _ = steps[joined]
                end -= times.host.get(index, 0.0)
                if started.op.is_transfer:
                    add(IDLE, end - start)
                else:
                    early = before_others(started, joined, start, end)
                    add(IDLE, early)
                    add(f"{started.stream} {started.op.words}", end - start - early)
            else:
                start += times.host.get(index, 0.0)
                early = before_others(step, index, start, end)
                add(IDLE, early)
                add(op.info.time or SMALL_SUMS, end - start - early)
        for alike in self.passes[rank]:
            cost, number = durations.phase(alike.step), alike.number
            for kind, each in cost.busy.items():
                add(alike.step.op.info.time or kind, number * each)
            add(f"exposed {'+'.join(cost.communication) or 'other'} communication", number * cost.exposed)
            add("compute/communication contention", alike.seconds - number * cost.seconds)
        add("host", sum(self.host_bound[rank].values()))
        add(IDLE, self.times.makespan - sum(sums.values()))
        return sums

    @cached_property
    def host_bound(self) -> tuple[dict[str, float], ...]:
        """Seconds of every pipeline rank in which its device waits for its host, by the operation that it waits for."""
        return tuple(self._host_bound(rank) for rank in range(len(self.programs)))

    def _host_bound(self, rank: int) -> dict[str, float]:
        steps, sums = self.programs[rank].steps.steps, dict[str, float]()
        late = [(steps[index][0].op, seconds) for index, seconds in self.times.ranks[rank].host.items()]
        late += [(each.step.op, each.number * self.durations.phase(each.step).host) for each in self.passes[rank]]
        for op, seconds in late:
            if seconds > 0:
                sums[op.words] = sums.get(op.words, 0.0) + seconds
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
        """Bytes of memory on a device of every pipeline rank."""
        return tuple(
            device_bytes(max(curve), self.prices.software, self.spec, pp) for pp, curve in enumerate(self.curves)
        )


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
        if shared:
            times = shared_times(state, prices.contention_profile.relative_speeds)  # type: ignore[attr-defined]
        else:
            known = prices.software.host_instruction_seconds > 0
            times = simulate_times(state, [HostStream(view, durations) for view in views] if known else ())
        return Simulation(spec, prices, views, lowered, durations, times)


def mean_seconds(ranks: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Seconds by kind, mean over pipeline ranks."""
    sums: dict[str, float] = {}
    for rank in ranks:
        for kind, seconds in rank.items():
            sums[kind] = sums.get(kind, 0.0) + seconds / len(ranks)
    return sums
