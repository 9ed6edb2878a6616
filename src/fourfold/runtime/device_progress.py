"""How far a device has come in the program whose instructions its host issues far ahead, found without making anybody wait.

The host records an event before each instruction; a thread asks ten times a second which of them the device has passed, and says so
on the board. A captured step has no events of its own: its graph writes the number of an instruction to the host's memory as it
comes to it. The step's clock reads the events too, so that a step has no more of them than it has instructions.
"""

import os
import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import torch

from fourfold.runtime.progress import ProgressBoard

_LOOK_SECONDS = 0.1


class StreamEvent(Protocol):
    """A point of the computing stream."""

    def record(self) -> None: ...

    def query(self) -> bool: ...

    def elapsed_time(self, end: Any, /) -> float: ...


class Mark(Protocol):
    """A number in the host's memory, which a device writes when it comes to a point of the computing stream, and which is `set` by
    the host while the device has nothing to do."""

    def write(self, number: int) -> None: ...

    def set(self, number: int) -> None: ...

    def read(self) -> int: ...


class DeviceProgress:
    """Stands between the executor, which says what it comes to, and the board. `capturing`: whether what is issued is captured."""

    def __init__(
        self, board: ProgressBoard, new_event: Callable[[], StreamEvent], mark: Mark, capturing: Callable[[], bool]
    ) -> None:
        self._board, self._new_event, self._mark, self._capturing = board, new_event, mark, capturing
        self.events: list[StreamEvent] = []
        """One before each instruction of the program that was issued last, and one behind it; longer programs left more."""
        self._issued = self._reached = 0
        self._epoch, self._replays = board.epoch, False
        self._own_work: Sequence[bool] = ()
        self._stop = threading.Event()
        self._lock = threading.Lock()

    def record(self, counter: int) -> None:
        """Notes that the host has come to an instruction, and has the device note when it comes there."""
        self._board.record(counter)
        if self._epoch != self._board.epoch:
            self._begin(False)
        if self._capturing():
            if self._waits_near(counter):
                self._mark.write(counter)
        elif not self._replays:
            if counter == len(self.events):
                self.events.append(self._new_event())
            self.events[counter].record()
            self._issued = counter + 1

    def replay(self) -> None:
        """Before a captured step is given to the device, which has nothing to do."""
        self._begin(True)
        self._mark.set(0)

    def _begin(self, replays: bool) -> None:
        with self._lock:
            self._issued = self._reached = 0
            self._epoch, self._own_work, self._replays = self._board.epoch, self._board.own_work, replays

    def _waits_near(self, counter: int) -> bool:
        """Whether this instruction waits for other ranks, or the one before does, or it is the last."""
        own = self._own_work
        return counter >= len(own) or not own[counter] or (counter > 0 and not own[counter - 1])

    def look(self) -> None:
        """Asks how far the device is, and tells the board what is new."""
        with self._lock:
            issued, before, epoch, own = self._issued, self._reached, self._epoch, self._own_work
            replays, events = self._replays, self.events[: self._issued]
        if replays:
            reached, busy = self._mark.read(), 0.0
        else:  # the device passes them in order
            passed = bisect_left(events, True, before, issued, key=lambda event: not event.query())
            reached = max(passed - 1, before)
            busy = self._own_seconds(events, own, before, reached)
        with self._lock:
            if epoch != self._epoch or reached <= before:
                return
            self._reached = reached
        self._board.complete(reached, busy, epoch)

    @staticmethod
    def _own_seconds(events: Sequence[StreamEvent], own: Sequence[bool], begin: int, end: int) -> float:
        """Seconds that the device spent, from one instruction to another, in those that wait for no other rank."""
        seconds, start = 0.0, begin
        for index in range(begin, end + 1):
            if index == end or not own[index]:
                if index > start:
                    seconds += events[start].elapsed_time(events[index]) / 1e3
                start = index + 1
        return seconds

    def start(self, seconds: float = _LOOK_SECONDS) -> None:
        """Looks again and again, in a thread that ends with the process."""

        def follow() -> None:
            with suppress(RuntimeError):  # a device that failed tells nothing more; the host meets its error
                while not self._stop.wait(seconds):
                    self.look()

        threading.Thread(target=follow, name="device-progress", daemon=True).start()

    def close(self) -> None:
        """Looks no more."""
        self._stop.set()


class PinnedMark:
    """A number that a CUDA device copies from its own memory to the host's."""

    def __init__(self, device: torch.device, most: int = 1 << 14) -> None:
        """`most`: the largest number."""
        self._numbers = torch.arange(most + 1, dtype=torch.int64, device=device)
        self._here = torch.zeros(1, dtype=torch.int64, pin_memory=True)
        self._view = self._here.numpy()

    def write(self, number: int) -> None:
        """Gives the current stream the copy."""
        if number < self._numbers.numel():
            self._here.copy_(self._numbers[number : number + 1], non_blocking=True)

    def set(self, number: int) -> None:
        self._view[0] = number

    def read(self) -> int:
        return int(self._view[0])


class HostProgress:
    """The progress of a rank whose host computes: what its board says."""

    events = None

    def __init__(self, board: ProgressBoard) -> None:
        self.record = board.record

    def replay(self) -> None:
        """A captured step, which is one call."""


def open_board(out: Path, rank: int, device: torch.device) -> tuple[ProgressBoard, DeviceProgress | HostProgress]:
    """This rank's board in a run's folder, and what tells it how far its device is, which looks from now on."""
    on_device = device.type == "cuda"
    board = ProgressBoard(out, rank, int(os.environ.get("FOURFOLD_MACHINE", "0")), on_device)
    if not on_device:
        return board, HostProgress(board)
    capturing = torch.cuda.is_current_stream_capturing
    progress = DeviceProgress(board, lambda: torch.cuda.Event(enable_timing=True), PinnedMark(device), capturing)
    progress.start()
    return board, progress
