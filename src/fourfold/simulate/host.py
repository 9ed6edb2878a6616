"""The host of a device: it issues instructions one after the other, ahead of the device that runs them.

An instruction takes the host its share of the interpreter, and each of its launches and collectives. Its device may begin with it
when the first launch is there, and is not over before the last. Where the device is faster than that, it waits: the step is
host-bound there. Where the host must see a value (a dispatcher's counts of rows), it waits for the device.
"""

from fourfold.program.instruction import Op
from fourfold.program.launches import launches_beside, waits_of_host
from fourfold.program.pattern import Pattern
from fourfold.program.view import RankView
from fourfold.simulate.durations import Durations
from fourfold.simulate.rank import Rank


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
