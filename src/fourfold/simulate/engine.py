"""The event simulation of one step: every pipeline rank's program on its streams, with transfers and collectives between them.

Ranks that differ in other coordinates than pp run the same list at the same times: one of each is simulated. A rank computes its
list in order; what it starts goes to the stream of its group, one after the other, and a WAIT joins it. A transfer begins when the
sender has started it, the receiver has asked for it and the link is free; what all pipeline ranks enter together begins with the
last of them.
"""

from collections import deque
from collections.abc import Sequence

from fourfold.config import UserError
from fourfold.simulate.host import HostStream
from fourfold.simulate.rank import Rank, Times
from fourfold.simulate.state import SimulationState


def simulate_times(state: SimulationState, hosts: Sequence[HostStream] = ()) -> Times:
    """Runs the programs of all pipeline ranks to their end. `hosts`: of every rank, where they are known apart from passes. Raises
    `UserError` where they wait for each other for ever."""
    ready = deque(state.ranks)
    idle = 0
    while ready:
        rank = ready.popleft()
        before = rank.at
        _advance(rank, state, hosts[rank.index] if hosts else None)
        if rank.at < len(rank.steps):
            ready.append(rank)
        idle = idle + 1 if rank.at == before else 0
        if idle > len(ready) + 1:
            stuck = [state.waits_for(each) for each in sorted(ready, key=lambda each: each.index)]
            raise UserError("\n".join(["the programs wait for each other:", *stuck]))
    return state.times()


def _advance(rank: Rank, state: SimulationState, host: HostStream | None) -> None:
    """Runs the rank until it must wait for another. Kernels lose `contention` of the time that a collective runs beside them, and
    collectives of a pass what they share of the network."""
    steps, contention, take = rank.steps, state.prices.software.contention, state.take
    starts, ends, number = rank.times.starts, rank.times.ends, len(steps)
    while rank.at < number:
        turn = rank.now
        if host is not None:
            host.gate(rank)
        start = rank.now
        seconds = take(rank)
        if seconds is None:
            rank.now = turn
            return
        if seconds:
            beside = rank.in_flight - start
            if beside > 0 and (pattern := steps[rank.at][0]).op.is_compute:
                lost = contention * min(seconds, beside)
                seconds += lost + state.share_network(rank, pattern)
            rank.now = start + seconds
        if host is not None:
            host.issue(rank, turn, start)
        starts.append(turn)
        ends.append(rank.now)
        rank.at += 1
