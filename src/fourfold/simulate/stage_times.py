"""Seconds of whole stages: what a schedule's timeline needs, for an estimate that lowers nothing."""

from itertools import pairwise

from fourfold.cost.prices import Prices
from fourfold.model.spec import Segment
from fourfold.program.compiled import CompiledStages
from fourfold.program.footprints import Footprints, Kind, segment_kind
from fourfold.program.instruction import Op
from fourfold.program.schedule import StageTimes, find_schedule
from fourfold.program.schedule.execution import execute
from fourfold.program.sizes import hidden_bytes
from fourfold.program.spec import StepSpec
from fourfold.simulate.durations import Durations
from fourfold.simulate.prediction import LONG_PIPELINE, round_of, simulated_microbatches


def stage_seconds(spec: StepSpec, prices: Prices, compiled: CompiledStages) -> StageTimes:
    """Forward, input gradient and weight gradient of every stage, recomputation with the input gradient; one transfer between
    neighbours. As programs are expanded: the head's forward is in its backward, the embedding's backward is a weight gradient."""
    stages, costs = compiled.stages, Durations(prices)
    known: dict[Kind, tuple[float, float, float]] = {}
    columns: list[tuple[float, float, float]] = []
    for segments in stages.stages:
        sums = (0.0, 0.0, 0.0)
        for segment in segments:
            policy = stages.policies[segment.name]
            key = segment_kind(segment, policy)
            if key not in known:
                known[key] = _parts(compiled.footprints, segment, policy, spec.layout.schedule, costs)
            sums = tuple(a + b for a, b in zip(sums, known[key], strict=True))  # type: ignore[assignment]
        columns.append(sums)
    forward, inputs, weights = zip(*columns, strict=True)
    crossing = [(a, b) for a, b in pairwise(stages.ranks) if a != b]
    size = hidden_bytes(spec, spec.segments[1])
    return StageTimes(forward, inputs, weights, prices.transfer(size, *crossing[0]) if crossing else 0.0)


def _parts(
    footprints: Footprints, segment: Segment, policy: str, schedule: str, costs: Durations
) -> tuple[float, float, float]:
    def seconds(op: Op) -> float:
        return costs.work(footprints.work(segment, policy, op), segment.kind == "head").seconds

    if segment.kind == "head":
        return 0.0, seconds(Op.BACKWARD), 0.0
    if segment.kind == "embedding":
        return seconds(Op.FORWARD), 0.0, seconds(Op.BACKWARD)
    again = seconds(Op.FORWARD) if policy == "full" else 0.0
    if not find_schedule(schedule).splits_backward:
        return seconds(Op.FORWARD), seconds(Op.BACKWARD) + again, 0.0
    return seconds(Op.FORWARD), seconds(Op.BACKWARD_INPUT) + again, seconds(Op.BACKWARD_WEIGHT)


def estimate_makespan(spec: StepSpec, prices: Prices) -> float:
    """Seconds of the schedule alone: nothing but stages and their transfers. Many microbatches go on in a straight line, which
    begins earlier than that of a long pipeline's memory."""
    wanted, most, period = spec.layout.num_microbatches, simulated_microbatches(spec), round_of(spec)
    if most != wanted and spec.layout.pp >= LONG_PIPELINE and most >= 4 * period:
        most -= period
    compiled = CompiledStages(spec)
    times = stage_seconds(spec, prices, compiled)

    def makespan(number: int) -> float:
        orders = compiled.orders(spec.with_microbatches(number))
        return execute(orders, compiled.stages.ranks, times).makespan

    if most == wanted:
        return makespan(wanted)
    fewer, more = makespan(most - period), makespan(most)
    return fewer + (wanted - most + period) / period * (more - fewer)
