"""The event simulation where ranks share cores: a stage computes faster while others wait. One clock for all pipeline ranks.

The engine (`engine.py`) starts, joins and enters; here time passes for all of them at once, and each computes at the
pace that was measured for as many ranks as compute at that moment.
"""

from collections.abc import Sequence

from fourfold.config import UserError
from fourfold.simulate.rank import Rank, Times
from fourfold.simulate.state import SimulationState

ROUNDING = 1e-12


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
            while any(self._go(rank) for rank in self.ranks):
                pass
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
            lines = [self.state.waits_for(rank) for rank in ranks]
            raise UserError("\n".join(["the programs wait for each other:", *lines]))
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
