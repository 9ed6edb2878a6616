"""Streams and events of devices that are not there: all that they are given is over at once."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class FakeStream:
    """A stream of the device that is current."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.device = torch.device("cuda", torch.cuda.current_device())
        self.cuda_stream = id(self)

    def wait_stream(self, stream: "FakeStream") -> None:
        return

    def wait_event(self, event: "FakeEvent") -> None:
        return

    def synchronize(self) -> None:
        return

    def query(self) -> bool:
        return True

    def record_event(self, event: "FakeEvent | None" = None) -> "FakeEvent":
        event = event or FakeEvent()
        event.record(self)
        return event


class FakeEvent:
    """Over when it is recorded; its time is the host's."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._time = 0.0

    def record(self, stream: Any = None) -> None:
        self._time = time.perf_counter()

    def query(self) -> bool:
        return True

    def wait(self, stream: Any = None) -> None:
        return

    def synchronize(self) -> None:
        return

    def elapsed_time(self, other: "FakeEvent") -> float:
        return 1e3 * (other._time - self._time)


_COMPUTING = threading.local()


def current_stream(device: Any = None) -> FakeStream:
    if not hasattr(_COMPUTING, "stream"):
        _COMPUTING.stream = FakeStream()
    found: FakeStream = _COMPUTING.stream
    return found


@contextmanager
def use_stream(stream: FakeStream) -> Iterator[None]:
    before = current_stream()
    _COMPUTING.stream = stream
    try:
        yield
    finally:
        _COMPUTING.stream = before
