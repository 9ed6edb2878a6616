"""Flows over simulated time: bytes a second that a device of a pipeline rank sends through each level of the network."""

from collections.abc import Iterator
from dataclasses import dataclass

from fourfold.simulate.step import Simulation
from fourfold.simulate.summary import sent_shares

SPANS = 120
Flow = tuple[str, int]
"""Axes and level, 0 the innermost."""


@dataclass(frozen=True)
class FlowsOverTime:
    """Sending of one device in spans of equal length: `ends` of the spans in seconds; by (axes, level) the mean bytes a second of
    each span, in one direction. Times the spans' length they sum to the bytes of `summary.level_bytes`."""

    ends: tuple[float, ...]
    rates: dict[Flow, tuple[float, ...]]


def flows_over_time(simulation: Simulation, rank: int, spans: int = SPANS) -> FlowsOverTime:
    """Flows of a pipeline rank's device. A collective on a stream flows while the stream carries it, one inside of a segment's pass
    evenly over the pass, a message while it is on its way from its sender."""
    makespan = simulation.times.makespan
    length = makespan / spans
    sums = dict[Flow, list[float]]()
    for flow, size, start, end in _sent(simulation, rank):
        row = sums.setdefault(flow, [0.0] * spans)
        first = min(spans - 1, int(start / length)) if length else 0
        last = min(spans - 1, int(end / length)) if length else 0
        if last == first:
            row[first] += size
            continue
        rate = size / (end - start)
        row[first] += rate * ((first + 1) * length - start)
        for span in range(first + 1, last):
            row[span] += rate * length
        row[last] += rate * (end - last * length)
    return FlowsOverTime(
        ends=tuple(length * (span + 1) for span in range(spans)),
        rates={flow: tuple(size / length if length else 0.0 for size in row) for flow, row in sums.items()},
    )


def _sent(simulation: Simulation, rank: int) -> Iterator[tuple[Flow, float, float, float]]:
    """The flow, bytes, first and last second of everything that a device of the rank sends."""
    prices = simulation.durations.prices
    times, steps = simulation.times.ranks[rank], simulation.programs[rank].steps.steps
    for index, ((pattern, _), start, end) in enumerate(zip(steps, times.starts, times.ends, strict=True)):
        if not pattern.work.collectives:
            continue
        begin, stop = times.streams.get(index, (start, end))
        for each in pattern.work.collectives:
            for level, share in enumerate(sent_shares(prices, rank, pattern, each)):
                if share and each.sent_bytes:
                    yield (each.axes, level), share * each.sent_bytes, begin, stop
