"""Why the entries of a timeline start when they do: what each idle rank waits for, and the chain that makes the makespan."""

from typing import NamedTuple

from fourfold.program.instruction import Op
from fourfold.program.schedule.compute import Compute
from fourfold.program.schedule.execution import needs
from fourfold.program.timeline import Timeline


class Place(NamedTuple):
    """An entry of a rank's order."""

    rank: int
    slot: int


def waits(timeline: Timeline) -> dict[Place, Place]:
    """By entry before which its rank idles: the entry that it waits for, the last to arrive of those that it needs."""
    places: dict[tuple[bool, int, int], tuple[int, int]] = {}
    idle: list[Place] = []
    forward, weight_gradient = Op.FORWARD, Op.BACKWARD_WEIGHT
    for rank, events in enumerate(timeline.events):
        free = 0.0
        for index, (start, end, op, stage, m) in enumerate(events):
            if op is not weight_gradient:
                places[op is forward, stage, m] = rank, index
            if start > free:
                idle.append(Place(rank, index))
            free = end
    found = {}
    for place in idle:
        event = timeline.events[place.rank][place.slot]
        wanted = needs(Compute(*event[2:]), len(timeline.stage_ranks))
        makers = [Place(*places[op is forward, stage, m]) for op, stage, m in wanted]
        found[place] = max(makers, key=lambda maker: _arrival(timeline, maker, place.rank))
    return found


def critical_entries(timeline: Timeline, waited: dict[Place, Place]) -> list[Place]:
    """The chain of entries, each waiting for the one before, that ends with the step. `waited`: what `waits` found."""
    last = max(
        (Place(rank, len(events) - 1) for rank, events in enumerate(timeline.events) if events),
        key=lambda place: timeline.events[place.rank][place.slot].end,
    )
    chain = [last]
    while True:
        place = chain[-1]
        if place in waited:
            chain.append(waited[place])
        elif place.slot:
            chain.append(Place(place.rank, place.slot - 1))
        else:
            return chain[::-1]


def _arrival(timeline: Timeline, maker: Place, rank: int) -> float:
    crosses = timeline.transfer_time if maker.rank != rank else 0.0
    return timeline.events[maker.rank][maker.slot].end + crosses
