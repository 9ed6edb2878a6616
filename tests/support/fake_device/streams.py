"""One device: streams that are threads, events on them, and a queue of 1,024 launches that its host fills and then waits at."""

from collections import deque
from collections.abc import Callable

from tests.support.fake_device.simulated_time import Signal, SimulatedTime

QUEUE = 1024


class Event:
    """A point of a stream, with the methods of `torch.cuda.Event`."""

    def __init__(self, device: "FakeDevice") -> None:
        self._device = device
        self._passed = Signal()
        self._passed.is_fired = True
        self.seconds = 0.0

    def record(self, stream: "Stream | None" = None) -> None:
        passed = self._passed = Signal()

        def pass_it() -> None:
            self.seconds = self._device.time.now
            self._device.time.fire(passed)

        (stream or self._device.compute).launch(pass_it)

    def query(self) -> bool:
        return self._passed.is_fired

    def synchronize(self) -> None:
        self._device.time.wait(self._passed)

    def elapsed_time(self, end: "Event") -> float:
        """Milliseconds."""
        return 1e3 * (end.seconds - self.seconds)

    @property
    def passed(self) -> Signal:
        """The signal of its newest record."""
        return self._passed


class Stream:
    """Carries out what it was given, in order, on a thread of its own."""

    def __init__(self, device: "FakeDevice") -> None:
        self._device = device
        self._given: deque[tuple[Callable[[], None], int]] = deque()
        self._more = Signal()
        device.time.spawn(self._run)

    def launch(self, work: Callable[[], None], launches: int = 1) -> None:
        """Gives it something that takes so many launches. The host waits while the device's queue is full."""
        device = self._device
        launches = 0 if device.in_graph else launches
        while device.queued and device.queued + launches > QUEUE:
            device.room = Signal()
            device.time.wait(device.room)
        device.queued += launches
        self._given.append((work, launches))
        device.time.fire(self._more)

    def wait_event(self, event: Event) -> None:
        passed = event.passed
        self.launch(lambda: self._device.time.wait(passed))

    def _run(self) -> None:
        while True:
            while not self._given:
                self._more = Signal()
                self._device.time.wait(self._more)
            work, launches = self._given.popleft()
            work()
            self._device.queued -= launches
            self._device.time.fire(self._device.room)


class FakeDevice:
    """A device of one rank."""

    def __init__(self, time: SimulatedTime) -> None:
        self.time = time
        self.queued = 0
        self.room = Signal()
        self.in_graph = False
        """Whether what it is given is one launch, of a graph."""
        self.streams: dict[str, Stream] = {}
        self.compute = self.stream("compute")

    def stream(self, name: str) -> Stream:
        if name not in self.streams:
            self.streams[name] = Stream(self)
        return self.streams[name]

    def event(self) -> Event:
        return Event(self)

    def kernel(self, stream: Stream, seconds: float, launches: int) -> None:
        """Kernels that take so long together."""
        stream.launch(lambda: self.time.sleep(seconds), launches)


class Mark:
    """A number in the host's memory, which the device writes as it comes to a point of its computing stream. `captured`: those that
    a capture found."""

    def __init__(self, device: FakeDevice) -> None:
        self._device, self.number = device, 0
        self.captures = False
        self.captured: list[int] = []

    def write(self, number: int) -> None:
        if self.captures:
            self.captured.append(number)
        else:
            self._device.compute.launch(lambda: self.set(number))

    def set(self, number: int) -> None:
        self.number = number

    def read(self) -> int:
        return self.number
