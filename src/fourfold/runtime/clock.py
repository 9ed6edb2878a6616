"""How long each instruction of a step took, on one rank: a reading of the clock after every instruction."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fourfold.program import Instruction

WINDOW = 16
"""Number of the latest steps that are kept."""


@dataclass(frozen=True)
class TimedStep:
    """One step: its number, when its first instruction began (Unix time), how long the full step took, and after how many seconds
    each instruction was over."""

    step: int
    begun: float
    seconds: float
    ends: tuple[float, ...]


class StepClock:
    """The executor's observer for timed steps.

    On a processor an instruction is over when the interpreter goes on. On CUDA an event is recorded on the computing stream after
    each instruction and read after the step, so the clock adds no wait; an instruction is over when that stream has
    completed it.
    """

    def __init__(
        self,
        device: torch.device,
        now: Callable[[], float] = time.perf_counter,
        events: Sequence[Any] | None = None,
    ) -> None:
        """`now`: the processor's clock. `events`: those that somebody else records before each instruction and behind the last."""
        self._now = now
        self._others = events
        self.steps: deque[TimedStep] = deque(maxlen=WINDOW)
        self._is_cuda = device.type == "cuda"
        self._events: list[torch.cuda.Event] = []
        self._ends: list[float] = []
        self._used = 0
        self._step: int | None = None

    def begin(self, step: int) -> None:
        """Before the first instruction of step number `step`."""
        self._step, self._begun = step, time.time()
        self._ends, self._used = [], 0
        self._start = self._now()
        if self._is_cuda and self._others is None:
            self._record()

    def __call__(self, index: int, step: Instruction) -> None:
        """After instruction number `index`."""
        if self._others is not None:
            self._used = index + 2
        elif self._is_cuda:
            self._record()
        else:
            self._ends.append(self._now() - self._start)

    def finish(self, seconds: float) -> None:
        """After the step: keeps its times, if it was begun here. `seconds`: of the full step, the time before its instructions
        included."""
        if self._step is None:
            return
        if self._is_cuda or self._others is not None:
            events = self._others if self._others is not None else self._events
            events[self._used - 1].synchronize()
            self._ends = [events[0].elapsed_time(event) / 1e3 for event in events[1 : self._used]]
        self.steps.append(TimedStep(self._step, self._begun, seconds, tuple(self._ends)))
        self._step = None

    def _record(self) -> None:
        if self._used == len(self._events):
            self._events.append(torch.cuda.Event(enable_timing=True))
        self._events[self._used].record()
        self._used += 1
