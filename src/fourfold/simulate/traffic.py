"""Communication of a simulated step by the axes of its groups: bytes sent, seconds on the links, seconds waited for.

The exposed time of a segment's own collectives is divided among their axes by their seconds.
"""

from fourfold.program.instruction import COMPUTE_OPS, SENDS, TRANSFERS, Op
from fourfold.program.pattern import Pattern
from fourfold.simulate.durations import Durations
from fourfold.simulate.step import Simulation

BYTES, BUSY, EXPOSED = "sent_bytes", "busy_seconds", "exposed_seconds"
Sums = dict[tuple[str, str], float]


def traffic(simulation: Simulation) -> list[Sums]:
    """Traffic of a device of every pipeline rank: by (axes, one of BYTES, BUSY, EXPOSED). A transfer counts where it is sent;
    while it is on its way, whoever waits for it is exposed to it, but not before."""
    return [_rank_traffic(simulation, rank) for rank in range(len(simulation.programs))]


def _rank_traffic(simulation: Simulation, rank: int) -> Sums:
    durations = simulation.durations
    times, steps = simulation.times.ranks[rank], simulation.programs[rank].steps
    sums: Sums = {}

    def add(axes: str, what: str, amount: float) -> None:
        if amount > 0:
            sums[axes, what] = sums.get((axes, what), 0.0) + amount

    for pattern, microbatches in steps.microbatches.items():
        if pattern.op in COMPUTE_OPS:
            continue
        number = len(microbatches)
        for collective in pattern.work.collectives:
            add(collective.axes, BYTES, number * collective.sent_bytes)
        if pattern.op not in TRANSFERS:
            for axes, seconds in _seconds(pattern, durations).items():
                add(axes, BUSY, number * seconds)
    sent = (stream for index, stream in times.streams.items() if steps.steps[index][0].op in SENDS)
    add("pp", BUSY, sum(stop - begin for begin, stop in sent))
    for index, ((step, _), start, end) in enumerate(zip(steps.steps, times.starts, times.ends, strict=True)):
        if end <= start or step.op in COMPUTE_OPS:
            continue
        joined = times.joins[index] if step.op is Op.WAIT else index
        begin, stop = times.streams.get(joined, (start, end))
        waited = min(end, stop) - max(start, begin)
        started, _ = steps.steps[joined]
        if started.op in TRANSFERS:
            add("pp", EXPOSED, waited)
            continue
        parts = _seconds(started, durations)
        total = sum(parts.values())
        for axes, seconds in parts.items():
            add(axes, EXPOSED, seconds / total * min(waited, total) if total else 0.0)
    for alike in simulation.passes[rank]:
        number, cost = alike.number, durations.phase(alike.step)
        for collective in alike.step.collectives:
            add(collective.axes, BYTES, number * collective.sent_bytes)
        total = sum(cost.communication.values())
        for axes, seconds in cost.communication.items():
            add(axes, BUSY, number * seconds)
            add(axes, EXPOSED, number * cost.exposed * seconds / total if total else 0.0)
    return sums


def _seconds(step: Pattern, durations: Durations) -> dict[str, float]:
    """Seconds of an instruction's collectives, by axes."""
    seconds: dict[str, float] = {}
    for each in step.work.collectives:
        seconds[each.axes] = seconds.get(each.axes, 0.0) + durations.prices.collective(each.kind, each.axes, each.bytes)
    return seconds
