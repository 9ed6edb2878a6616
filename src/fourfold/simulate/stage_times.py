"""Seconds of whole stages: what a schedule's timeline needs, for an estimate that lowers nothing."""

from itertools import pairwise

from fourfold.cost.prices import Prices
from fourfold.model.spec import Segment
from fourfold.program.facts import Lowering
from fourfold.program.instruction import Instruction, Op
from fourfold.program.schedule import StageTimes, find_schedule
from fourfold.program.schedule.execution import execute
from fourfold.simulate.durations import Durations
from fourfold.simulate.step import simulated_microbatches


def stage_seconds(facts: Lowering, prices: Prices) -> StageTimes:
    """Forward, input gradient and weight gradient of every stage, recomputation with the input gradient; one transfer between
    neighbours. As programs are expanded: the head's forward is in its backward, the embedding's backward is a weight gradient."""
    durations = Durations(facts, prices)
    known: dict[tuple[str, bool, int, str], tuple[float, float, float]] = {}
    columns: list[tuple[float, float, float]] = []
    for stage in range(len(facts.stage_bounds)):
        sums = (0.0, 0.0, 0.0)
        for segment in facts.stage_segments(stage):
            key = (segment.kind, segment.moe, segment.depth, facts.policy(segment))
            if key not in known:
                known[key] = _parts(facts, segment, durations)
            sums = tuple(a + b for a, b in zip(sums, known[key], strict=True))  # type: ignore[assignment]
        columns.append(sums)
    forward, inputs, weights = zip(*columns, strict=True)
    ranks = facts.layout.stage_ranks
    crossing = [(a, b) for a, b in pairwise(ranks) if a != b]
    size = facts.layout.hidden_tokens * facts.model.hidden_size * facts.shape.element_bytes
    return StageTimes(forward, inputs, weights, prices.transfer(size, *crossing[0]) if crossing else 0.0)


def _parts(facts: Lowering, segment: Segment, durations: Durations) -> tuple[float, float, float]:
    def seconds(op: Op) -> float:
        return durations.phase(Instruction(op, segment.name, 0)).seconds

    if segment.kind == "head":
        return 0.0, seconds(Op.BACKWARD), 0.0
    if segment.kind == "embedding":
        return seconds(Op.FORWARD), 0.0, seconds(Op.BACKWARD)
    again = seconds(Op.FORWARD) if facts.policy(segment) == "full" else 0.0
    if not find_schedule(facts.layout.schedule).splits_backward:
        return seconds(Op.FORWARD), seconds(Op.BACKWARD) + again, 0.0
    return seconds(Op.FORWARD), seconds(Op.BACKWARD_INPUT) + again, seconds(Op.BACKWARD_WEIGHT)


def estimate_makespan(facts: Lowering, prices: Prices) -> float:
    """Seconds of the schedule alone: nothing but stages and their transfers. Many microbatches go on in a straight line."""
    wanted, most, period = facts.layout.num_microbatches, simulated_microbatches(facts), facts.layout.pp
    times = stage_seconds(facts, prices)
    if most == wanted:
        return _makespan(facts, times)
    fewer, more = (_makespan(facts.with_microbatches(number), times) for number in (most - period, most))
    return fewer + (wanted - most + period) / period * (more - fewer)


def _makespan(facts: Lowering, times: StageTimes) -> float:
    return execute(facts.orders, facts.layout.stage_ranks, times).makespan
