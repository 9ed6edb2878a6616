"""Communication of a simulated step by the axes of its groups, and by the directions of the link to the host: bytes sent, seconds
on the links, seconds waited for.

The exposed time of a segment's own collectives is divided among their axes by their seconds.
"""

from fourfold.cost.prices import Prices
from fourfold.program.instruction import Op
from fourfold.program.pattern import Pattern
from fourfold.simulate.step import Simulation

BYTES, BUSY, EXPOSED = "sent_bytes", "busy_seconds", "exposed_seconds"
Sums = dict[tuple[str, str], float]


def traffic(simulation: Simulation) -> list[Sums]:
    """Traffic of a device of every pipeline rank: by (axes, one of BYTES, BUSY, EXPOSED). A transfer counts where it is sent;
    while it is on its way, whoever waits for it is exposed to it, but not before."""
    return [_rank_traffic(simulation, rank) for rank in range(len(simulation.programs))]


def _rank_traffic(simulation: Simulation, rank: int) -> Sums:
    durations, prices = simulation.durations, simulation.durations.prices
    times, steps = simulation.times.ranks[rank], simulation.programs[rank].steps
    sums: Sums = {}

    def add(axes: str, what: str, amount: float) -> None:
        if amount > 0:
            sums[axes, what] = sums.get((axes, what), 0.0) + amount

    for pattern, microbatches in steps.microbatches.items():
        if pattern.op.is_compute:
            continue
        number = len(microbatches)
        for collective in pattern.work.collectives:
            add(collective.axes, BYTES, number * collective.sent_bytes)
        add(pattern.stream, BYTES, number * pattern.work.host_bytes)
        if not pattern.op.is_transfer:
            for axes, seconds in _seconds(pattern, prices).items():
                add(axes, BUSY, number * seconds)
    sent = (stream for index, stream in times.streams.items() if steps.steps[index][0].op.is_send)
    add("pp", BUSY, sum(stop - begin for begin, stop in sent))
    for index, ((step, _), start, end) in enumerate(zip(steps.steps, times.starts, times.ends, strict=True)):
        if end <= start or step.op.is_compute:
            continue
        joined = times.joins[index] if step.op is Op.WAIT else index
        begin, stop = times.streams.get(joined, (start, end))
        waited = min(end, stop) - max(start, begin)
        started, _ = steps.steps[joined]
        if started.op.is_transfer:
            add("pp", EXPOSED, waited)
            continue
        parts = _seconds(started, prices)
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


def level_bytes(simulation: Simulation) -> list[dict[tuple[str, int], float]]:
    """Bytes that a device of every pipeline rank sends through each level of the network: by (axes, level), 0 the innermost."""
    return [_rank_level_bytes(simulation, rank) for rank in range(len(simulation.programs))]


def _rank_level_bytes(simulation: Simulation, rank: int) -> dict[tuple[str, int], float]:
    prices, sums = simulation.durations.prices, dict[tuple[str, int], float]()
    for pattern, microbatches in simulation.programs[rank].steps.microbatches.items():
        for each in pattern.work.collectives:
            size = len(microbatches) * each.sent_bytes
            if not size:
                continue
            if pattern.op.is_send and pattern.peer is not None:
                shares = prices.transfer_shares(rank, pattern.peer)
            else:
                shares = prices.level_shares(each.kind, each.axes)
            for level, share in enumerate(shares):
                if share:
                    sums[each.axes, level] = sums.get((each.axes, level), 0.0) + share * size
    return sums


def _seconds(step: Pattern, prices: Prices) -> dict[str, float]:
    """Seconds of an instruction's collectives, by axes; of a copy, by its direction."""
    if step.op.is_host_copy:
        return {step.stream: prices.host_copy(step.work.host_bytes)}
    seconds: dict[str, float] = {}
    for each in step.work.collectives:
        seconds[each.axes] = seconds.get(each.axes, 0.0) + prices.collective(each.kind, each.axes, each.bytes)
    return seconds
