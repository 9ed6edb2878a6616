"""One step of every pipeline rank as a timeline: as it ran beside as it was predicted, and the memory that it held."""

from collections.abc import Iterator, Sequence
from typing import Any

from fourfold.program import Program
from fourfold.program.instruction import Op
from fourfold.results.comparison import Comparison, KindComparison, RankComparison
from fourfold.results.prediction import MemoryCurve, curve_record
from fourfold.results.record import document
from fourfold.results.run import ComparisonDocument, KindDocument, RankDocument, RankTimeline, StepTimes
from fourfold.simulate.memory import memory_along, memory_over_time
from fourfold.simulate.state import RankTimes
from fourfold.simulate.step import Simulation, simulate

MOST_RANKS = 64
"""Pipeline ranks that are drawn: of more the first, the last and some between."""
MOST_INSTRUCTIONS = 400_000
_DIGITS = 7
Stream = tuple[int, float, float, str]
"""A span of a stream: the instruction that starts it, seconds at which it begins and ends, the stream's name."""


def steps_over_time(found: Comparison) -> tuple[list[RankTimeline], list[MemoryCurve]]:
    """By pipeline rank, its instructions, when each was over, and what its streams carried. A measured stream lasts from start to
    its join. And by pipeline rank its memory, at the times that were measured, else at those predicted; empty where
    neither is known."""
    count = len(found.programs)
    shown = range(count)
    if count > MOST_RANKS:
        shown = sorted({round(i * (count - 1) / (MOST_RANKS - 1)) for i in range(MOST_RANKS)})  # type: ignore[assignment]
    measured = {rank.pp_rank: rank for rank in found.ranks if _has_timeline(rank, found.programs[rank.pp_rank])}
    simulation = _simulation(found)
    begun = first_begun(found)
    timelines, memory = list[RankTimeline](), list[MemoryCurve]()
    for pp_rank in shown:
        program, rank = found.programs[pp_rank], measured.get(pp_rank)
        predicted = None if simulation is None else simulation.times.ranks[pp_rank]
        timelines.append(
            RankTimeline(
                pp_rank=pp_rank,
                instructions=[step.short for step in program.instructions],
                rank=None if rank is None else rank.measured.rank,
                measured=None if rank is None else _measured(rank, program, begun),
                predicted=None if predicted is None else _predicted(predicted, program),
            )
        )
        if rank is not None and rank.measured.timeline is not None:
            ends = rank.measured.timeline.ends
            memory.append(curve_record(pp_rank, memory_along(program, (0.0, *ends[:-1]), ends[-1])))
        elif simulation is not None:
            memory.append(curve_record(pp_rank, memory_over_time(simulation, pp_rank)))
    return timelines, memory


def first_begun(found: Comparison) -> float:
    """When the first of the ranks whose steps were kept began (Unix time); ranks on other machines have clocks of their own."""
    return min((r.measured.timeline.begun for r in found.ranks if r.measured.timeline is not None), default=0.0)


def _simulation(found: Comparison) -> Simulation | None:
    """The step with all of its microbatches; None where there is no prediction, or too much to simulate for a picture."""
    step = found.step
    if step is None or step.is_full:
        return step.simulation if step is not None else None
    if sum(len(program.instructions) for program in found.programs) > MOST_INSTRUCTIONS:
        return None
    return simulate(found.resolved.spec, step.simulation.prices)


def _has_timeline(rank: RankComparison, program: Program) -> bool:
    timeline = rank.measured.timeline
    return timeline is not None and len(timeline.ends) == len(program.instructions)


def _measured(rank: RankComparison, program: Program, begun: float) -> StepTimes:
    timeline = rank.measured.timeline
    assert timeline is not None
    offset = timeline.begun - begun
    ends = [offset + end for end in timeline.ends]
    starts = [offset, *ends[:-1]]
    streams = _streams(_in_flight(program, starts, ends))
    return StepTimes(step=timeline.step, starts=_rounded(starts), ends=_rounded(ends), streams=streams)


def _in_flight(program: Program, starts: Sequence[float], ends: Sequence[float]) -> Iterator[Stream]:
    """Collectives and transfers between their start and their join; those that wait at once while they run."""
    started: dict[str, int] = {}
    for index, step in enumerate(program.instructions):
        if step.op is Op.WAIT and step.handle in started:
            begin = started.pop(step.handle)
            yield begin, starts[begin], ends[index], program.instructions[begin].stream
        elif step.stream != "compute":
            started[step.short] = index
    yield from ((i, starts[i], ends[i], program.instructions[i].stream) for i in started.values())


def _predicted(times: RankTimes, program: Program) -> StepTimes:
    carried = ((i, begin, end, program.instructions[i].stream) for i, (begin, end) in times.streams.items())
    streams = _streams(each for each in carried if each[3] != "compute")
    return StepTimes(step=None, starts=_rounded(times.starts), ends=_rounded(times.ends), streams=streams)


def _streams(found: Iterator[Stream]) -> list[Stream]:
    long = (each for each in found if each[2] > each[1])
    return [
        (i, round(begin, _DIGITS), round(end, _DIGITS), name)
        for i, begin, end, name in sorted(long, key=lambda each: each[1])
    ]


def _rounded(seconds: Sequence[float]) -> list[float]:
    return [round(each, _DIGITS) for each in seconds]


def comparison_record(found: Comparison) -> ComparisonDocument:
    """A run beside its prediction, with the step of every pipeline rank over time."""
    timelines, memory = steps_over_time(found)
    return ComparisonDocument(
        cluster=found.cluster.key if found.cluster is not None else None,
        predicted_step_seconds=found.predicted_seconds,
        measured_step_seconds=found.measured_seconds,
        error=found.error,
        why_not_predicted=found.why_not or None,
        notes=list(found.notes),
        differences=[
            {
                "kind": each.kind,
                "predicted_seconds": each.predicted,
                "measured_seconds": each.measured,
                "share_of_step": each.share,
                "rank": each.rank,
                "rank_difference_seconds": each.rank_seconds,
            }
            for each in found.differences
        ],
        kinds=_kinds(found.kinds),
        ranks=[_rank(rank) for rank in found.ranks],
        timelines=timelines,
        memory_over_time=memory,
    )


def comparison_document(found: Comparison) -> dict[str, Any]:
    """The document of `fourfold report --json`, without what was written beside it."""
    return dict(document(comparison_record(found)))


def _kinds(found: Sequence[KindComparison]) -> list[KindDocument]:
    return [
        KindDocument(kind=each.kind, count=each.count, predicted_seconds=each.predicted, measured_seconds=each.measured)
        for each in found
    ]


def _rank(rank: RankComparison) -> RankDocument:
    measured = rank.measured
    return RankDocument(
        rank=measured.rank,
        pp_rank=rank.pp_rank,
        predicted_step_seconds=rank.predicted_seconds,
        measured_step_seconds=measured.step_seconds,
        timed_steps=measured.steps,
        predicted_peak_bytes=rank.predicted_peak,
        measured_peak_bytes=measured.peak_memory_bytes,
        predicted_sent_bytes=dict(rank.predicted_bytes),
        measured_sent_bytes=dict(measured.sent_bytes),
        sent_bytes_equal=rank.sent_equal,
        kinds=_kinds(rank.kinds),
    )
