"""The signals that end a supervisor, and how a launch ended."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class LaunchOutcome:
    """How a launch ended. `exit_code`: 0 finished, 1 or 2 failed, 128 + signal stopped. `message`: the failure's."""

    exit_code: int
    message: str = ""
    killed: bool = False

    @property
    def stopped(self) -> bool:
        return self.exit_code > 128


@dataclass
class StopRequests:
    """The signals that a supervisor received."""

    received: list[int] = field(default_factory=list)

    def handle(self, number: int, frame: FrameType | None) -> None:
        self.received.append(number)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Takes the signals that end a program, except where they are ignored (nohup)."""
        before = {number: signal.getsignal(number) for number in _STOP_SIGNALS}
        taken = [number for number, handler in before.items() if handler != signal.SIG_IGN]
        try:
            for number in taken:
                signal.signal(number, self.handle)
            yield
        finally:
            for number in taken:
                signal.signal(number, before[number] or signal.SIG_DFL)


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end the block as an exception does, so that everything it has started ends with it."""

    def stop(number: int, frame: object) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        print(f"stopped by {signal.Signals(number).name}", file=sys.stderr, flush=True)
        raise SystemExit(128 + number)

    before = {each: signal.signal(each, stop) for each in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
