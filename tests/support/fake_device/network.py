"""Collectives and transfers between fake devices: each is over for all when all have come, and its time has passed."""

from collections import Counter
from collections.abc import Hashable

from tests.support.fake_device.simulated_time import Signal, SimulatedTime


class Meeting:
    """One call of a communicator: who has come, and when it is over."""

    def __init__(self, size: int) -> None:
        self.size, self.come, self.extra = size, 0, 0.0
        self.over = Signal()


class FakeNetwork:
    """Pairs the calls of a communicator's members in the order in which each makes them, as NCCL does."""

    def __init__(self, time: SimulatedTime) -> None:
        self._time = time
        self._meetings: dict[Hashable, Meeting] = {}
        self._calls: Counter[Hashable] = Counter()

    def call(self, rank: int, communicator: Hashable, size: int) -> Meeting:
        """The next call of a rank on a communicator."""
        self._calls[rank, communicator] += 1
        key = communicator, self._calls[rank, communicator]
        return self._meetings.setdefault(key, Meeting(size))

    def join(self, meeting: Meeting, seconds: float) -> None:
        """Of a stream's thread: returns when the call is over."""
        meeting.come += 1
        if meeting.come == meeting.size:
            self._time.sleep(seconds + meeting.extra)
            self._time.fire(meeting.over)
        self._time.wait(meeting.over)
