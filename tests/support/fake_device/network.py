"""Collectives and transfers between fake devices: each is over for all when all have come, and its time has passed."""

from collections import Counter
from collections.abc import Hashable

from tests.support.fake_device.simulated_time import Signal, SimulatedTime


class Rendezvous:
    """One call of a communicator: who has come, and when it is over."""

    def __init__(self, size: int) -> None:
        self.size, self.come, self.extra = size, 0, 0.0
        self.over = Signal()


class FakeNetwork:
    """Pairs the calls of a communicator's members in the order in which each makes them, as NCCL does."""

    def __init__(self, time: SimulatedTime) -> None:
        self._time = time
        self._rendezvous: dict[Hashable, Rendezvous] = {}
        self._calls: Counter[Hashable] = Counter()

    def call(self, rank: int, communicator: Hashable, size: int) -> Rendezvous:
        """The next call of a rank on a communicator."""
        self._calls[rank, communicator] += 1
        key = communicator, self._calls[rank, communicator]
        return self._rendezvous.setdefault(key, Rendezvous(size))

    def join(self, rendezvous: Rendezvous, seconds: float) -> None:
        """Lets a stream's thread wait until the call is over."""
        rendezvous.come += 1
        if rendezvous.come == rendezvous.size:
            self._time.sleep(seconds + rendezvous.extra)
            self._time.fire(rendezvous.over)
        self._time.wait(rendezvous.over)
