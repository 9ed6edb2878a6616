"""Threads on a clock that jumps to the next moment at which one has something to do. One runs at a time: a run repeats itself."""

import heapq
import threading
from collections import deque
from collections.abc import Callable


class _Ended(BaseException):
    """Ends a thread whose simulation is over."""


class Signal:
    """A point that threads wait for until another fires it."""

    def __init__(self) -> None:
        self.is_fired = False
        self.waiting: list[Task] = []


class Task:
    """One thread, which holds the baton while it runs."""

    def __init__(self, time: "SimulatedTime", run: Callable[[], None]) -> None:
        self.baton = threading.Event()
        self._time, self._run = time, run
        self.thread = threading.Thread(target=self._main, daemon=True)
        self.thread.start()

    def _main(self) -> None:
        self.baton.wait()
        try:
            if not self._time.is_over:
                self._run()
        except _Ended:
            return
        except BaseException as error:
            self._time.error = error
        self._time.back.set()


class SimulatedTime:
    """The clock and its threads. `now`: seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self.is_over = False
        self.error: BaseException | None = None
        self.back = threading.Event()
        self._ready: deque[Task] = deque()
        self._sleeping: list[tuple[float, int, Task]] = []
        self._order = 0
        self._tasks: list[Task] = []
        self._current: Task | None = None

    def spawn(self, run: Callable[[], None]) -> None:
        """Starts a thread."""
        self._tasks.append(Task(self, run))
        self._ready.append(self._tasks[-1])

    def sleep(self, seconds: float) -> None:
        """Lets the current thread wait; `inf`: for ever."""
        self._order += 1
        if seconds < float("inf"):
            heapq.heappush(self._sleeping, (self.now + seconds, self._order, self._running))
        self._yield()

    def wait(self, signal: Signal) -> None:
        """Lets the current thread wait until the signal is fired."""
        if not signal.is_fired:
            signal.waiting.append(self._running)
            self._yield()

    def fire(self, signal: Signal) -> None:
        """Lets those go on that wait for it, now and later."""
        signal.is_fired = True
        self._ready.extend(signal.waiting)
        signal.waiting.clear()

    @property
    def _running(self) -> Task:
        assert self._current is not None
        return self._current

    def _yield(self) -> None:
        own = self._running
        own.baton.clear()
        self.back.set()
        own.baton.wait()
        if self.is_over:
            raise _Ended

    def run(self, seconds: float, until: Callable[[], bool]) -> None:
        """Runs all threads until the condition holds, or so many seconds have passed. No thread is left."""
        try:
            while self.now < seconds and not until() and self._step():
                pass
        finally:
            self.is_over = True
            for task in self._tasks:
                task.baton.set()
            for task in self._tasks:
                task.thread.join(10)
        if self.error is not None:
            raise self.error

    def _step(self) -> bool:
        """Lets one thread run until it waits; whether there was one."""
        if not self._ready:
            if not self._sleeping:
                return False
            self.now, _, task = heapq.heappop(self._sleeping)
            self._ready.append(task)
        self._current = self._ready.popleft()
        self.back.clear()
        self._current.baton.set()
        self.back.wait()
        return self.error is None
