"""The event simulation of one step: every pipeline rank's program on its streams, with transfers and collectives between them.

Ranks that differ in other coordinates than pp run the same list at the same times: one of each is simulated. A rank computes its
list in order; what it starts goes to the stream of its group, one after the other, and a WAIT joins it. A transfer begins when the
sender has started it, the receiver has asked for it and the link is free; what all pipeline ranks enter together begins with the
last of them.

The host of a device issues instructions one after the other, ahead of the device that runs them. An instruction takes the host its
share of the interpreter, and each of its launches and collectives. Its device may begin with it when the first launch is there,
and is not over before the last. Where the device is faster than that, it waits: the step is host-bound there. Where the host must
see a value (a dispatcher's counts of rows), it waits for the device.

Where ranks share the cores of one machine, a stage computes faster while others wait: there (`shared_times`) one clock goes for
all pipeline ranks, and each computes at the pace that was measured for as many ranks as compute at that moment.
"""

from collections.abc import Sequence

from fourfold.program.instruction import Op
from fourfold.program.launches import launches_beside, waits_of_host
from fourfold.program.pattern import Pattern
from fourfold.program.schedule.execution import walk
from fourfold.program.view import RankView
from fourfold.simulate.durations import Durations
from fourfold.simulate.state import Rank, SimulationState, Times

ROUNDING = 1e-12


class HostStream:
    """The host of one rank. `issued`: until when it has been busy with the instructions before."""

    def __init__(self, view: RankView, durations: Durations) -> None:
        self._view, self._durations = view, durations
        self._known: dict[Pattern, tuple[float, bool, bool, bool]] = {}
        self.issued = 0.0

    def gate(self, rank: Rank) -> None:
        """Before the rank's next instruction: its device cannot begin earlier than the host does, nor with what is no pass over a
        segment before the host is done. A WAIT is gated by `issue` alone: what it joins may end later."""
        pattern = rank.steps[rank.at][0]
        seconds, waits, computes, joins = self._known.get(pattern) or self._of(pattern)
        begin = max(self.issued, rank.now) if waits else self.issued
        self._end = end = begin + seconds
        if not joins and rank.now < (first := begin if computes else end):
            rank.now = first

    def issue(self, rank: Rank, turn: float, start: float) -> None:
        """After it: notes how long the device waited for the host. `turn`: when it was ready; `start`: when it could begin."""
        self.issued = end = self._end
        if start == turn and end <= rank.now:
            return
        rank.times.host[rank.at] = start - turn + max(0.0, end - rank.now)
        rank.now = max(rank.now, end)

    def _of(self, pattern: Pattern) -> tuple[float, bool, bool, bool]:
        """Seconds of the host for such an instruction, and whether it waits for the device first, computes, and joins."""
        waits = waits_of_host(pattern, self._view) > 0
        found = self._seconds(pattern), waits, pattern.op.is_compute, pattern.op is Op.WAIT
        self._known[pattern] = found
        return found

    def _seconds(self, pattern: Pattern) -> float:
        software = self._durations.prices.software
        beside = launches_beside(pattern, self._view) * software.host_launch_seconds
        if pattern.op.is_compute:
            return software.host_instruction_seconds + self._durations.phase(pattern).issue + beside
        issued = self._durations.launches(pattern.work) * software.host_launch_seconds
        started = len(pattern.work.collectives) * software.host_collective_seconds
        return software.host_instruction_seconds + issued + started + beside


def simulate_times(state: SimulationState, hosts: Sequence[HostStream] = ()) -> Times:
    """Runs the programs of all pipeline ranks to their end. `hosts`: of every rank, where they are known apart from passes. Raises
    `UserError` where they wait for each other for ever."""
    walk(state.ranks, lambda rank: _advance(rank, state, hosts[rank.index] if hosts else None))
    if any(rank.at < len(rank.steps) for rank in state.ranks):
        raise state.deadlock()
    return state.times()


def _advance(rank: Rank, state: SimulationState, host: HostStream | None) -> bool:
    """Runs the rank until it must wait for another. Returns whether it ran any instruction. Kernels lose `contention` of the time
    that a collective runs beside them, and collectives of a pass what they share of the network."""
    steps, contention, take = rank.steps, state.prices.software.contention, state.take
    starts, ends, number, before = rank.times.starts, rank.times.ends, len(steps), rank.at
    while rank.at < number:
        turn = rank.now
        if host is not None:
            host.gate(rank)
        start = rank.now
        seconds = take(rank)
        if seconds is None:
            rank.now = turn
            break
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
    return rank.at > before


class _Cores:
    """All ranks of a step on their way, at one moment. `left[i]`: seconds of work that rank i has before it, at the pace of a
    machine on which all ranks compute; 0: it waits."""

    def __init__(self, state: SimulationState, relative_speeds: Sequence[float]) -> None:
        self.state = state
        self.ranks = self.state.ranks
        self.left = [0.0] * len(self.ranks)
        self.begun = [0.0] * len(self.ranks)
        self.clock = 0.0
        self.measured, self.contention = relative_speeds, state.prices.software.contention
        self.each = state.layout.world_size // state.layout.pp

    def run(self) -> Times:
        while True:
            walk(self.ranks, self._go)
            if all(rank.at == len(rank.steps) for rank in self.ranks):
                break
            self._pass(self._until_next())
        return self.state.times()

    def _go(self, rank: Rank) -> bool:
        """Instructions that take no work, until the next that does or that waits. Whether there were any."""
        before = rank.at
        while rank.at < len(rank.steps) and not self.left[rank.index] and rank.now <= self.clock + ROUNDING:
            rank.now = max(rank.now, self.clock)
            start = rank.now
            work = self.state.take(rank)
            if work is None:
                break
            if work:
                self.left[rank.index], self.begun[rank.index] = work, start
                return True
            self._note(rank, start)
        return rank.at > before

    def _note(self, rank: Rank, start: float) -> None:
        """The rank's instruction is over."""
        rank.times.starts.append(start)
        rank.times.ends.append(rank.now)
        rank.at += 1

    def _speeds(self) -> list[float]:
        """Speed of each rank that computes; slower while what it has started is under way."""
        busy = sum(left > 0 for left in self.left)
        speed = self.measured[min(len(self.measured), max(1, busy * self.each)) - 1]
        slowed = speed / (1 + self.contention)
        return [slowed if rank.in_flight > self.clock + ROUNDING else speed for rank in self.ranks]

    def _until_next(self) -> float:
        """Seconds until some rank's work is done, a rank goes on, or what it has started comes to its end."""
        relative_speeds, clock = self._speeds(), self.clock
        intervals = [left / speed for left, speed in zip(self.left, relative_speeds, strict=True) if left]
        ranks = [rank for rank in self.ranks if rank.at < len(rank.steps)]
        intervals += [rank.now - clock for rank in ranks if not self.left[rank.index] and rank.now > clock + ROUNDING]
        intervals += [rank.in_flight - clock for rank in ranks if rank.in_flight > clock + ROUNDING]
        if not intervals:
            raise self.state.deadlock()
        return min(intervals)

    def _pass(self, seconds: float) -> None:
        """Lets so much time pass."""
        relative_speeds = self._speeds()
        self.clock += seconds
        for rank, speed in zip(self.ranks, relative_speeds, strict=True):
            left = self.left[rank.index]
            if not left:
                continue
            left -= seconds * speed
            if left > ROUNDING:
                self.left[rank.index] = left
                continue
            self.left[rank.index] = 0.0
            rank.now = self.clock
            self._note(rank, self.begun[rank.index])


def shared_times(state: SimulationState, relative_speeds: Sequence[float]) -> Times:
    """Runs the programs of all pipeline ranks to their end. `relative_speeds`: of a rank while 1, 2, ... ranks compute. Raises
    `UserError` where they wait for each other for ever."""
    return _Cores(state, relative_speeds).run()
