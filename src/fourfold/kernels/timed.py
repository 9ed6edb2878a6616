"""Kinds of kernels whose back ends are compared on CUDA, by the time that each takes on the run's own shapes."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch

from fourfold.config import ModelConfig, UserError
from fourfold.config.errors import error_text
from fourfold.kernels import check, remembered
from fourfold.kernels.backend import Backend
from fourfold.kernels.choose import (
    Chosen,
    Clock,
    Contest,
    Examine,
    KernelKind,
    RunStart,
    Trial,
    choose,
    recorded_choice,
)
from fourfold.program.spec import StepSpec

REPEATS = 3
Shapes = TypeVar("Shapes", bound=remembered.DeviceCase)


@dataclass(frozen=True)
class TimedKind(KernelKind[Shapes]):
    """A kind whose back ends are checked beside fp64, then timed.

    `case_of`: a run's shapes on a device; `small`: a smaller case of the same kind; `faults`: those of a back end's results on a
    case; `timed`: the call whose time counts; `refuses`: why a model has no choice, None: it has."""

    case_of: Callable[[StepSpec, torch.device], Shapes]
    small: Callable[[Shapes], Shapes]
    faults: Callable[[Backend[Shapes], Shapes], Iterator[str]]
    timed: Callable[[Backend[Shapes], Shapes], Callable[[], object]]
    refuses: Callable[[ModelConfig], str | None] = lambda model: None

    def examine(self, backend: Backend[Shapes], case: Shapes) -> str | None:
        """Why a back end may not compute a case; None: it may."""
        return check.examine(backend, self.small(case), case, self.faults)

    def contest(self, case: Shapes, backends: Mapping[str, Backend[Shapes]] | None = None) -> "TimedContest[Shapes]":
        """`backends`: others than the kind's own."""
        return TimedContest(
            self,
            self.backends if backends is None else backends,
            lambda backend: self.examine(backend, case),
            case,
            lambda backend: self.timed(backend, case),
        )

    def choose(self, start: RunStart) -> Chosen[Shapes]:
        named, ranks = getattr(start.config.run, self.option), start.ranks
        problem = self.refuses(start.spec.model)
        if problem is not None:
            if named not in ("auto", self.default.name):
                raise UserError(
                    f'run.{self.option} = "{named}": {problem}; allowed: "auto", "{self.default.name}"; '
                    f'a value that works: "auto"'
                )
            return Chosen(self.default)
        measures, recorded = ranks.device.type == "cuda", ""
        if measures:
            recorded = ranks.tell(recorded_choice(start.newest, self.name) if ranks.rank == 0 else "", 0)
        contest, clock = self.contest(self.case_of(start.spec, ranks.device)), device_clock(ranks.device)
        return choose(contest, ranks, named, recorded, self.cache, clock, measures, start.trials)


@dataclass(frozen=True)
class TimedContest(Contest[Shapes]):
    """A contest in which a back end's time decides. `case`: this run's shapes; `timed`: the call whose time counts."""

    case: Shapes
    timed: Callable[[Backend[Shapes]], Callable[[], object]]

    @property
    def key(self) -> str:
        return remembered.key_of(self.case)

    def results(self, backend: Backend[Shapes]) -> object:
        return self.timed(backend)()

    def measure(self, examine: Examine[Shapes], clock: Clock) -> dict[str, Trial]:
        return {backend.name: self._trial(backend, examine, clock) for backend in self.backends.values()}

    def _trial(self, backend: Backend[Shapes], examine: Examine[Shapes], clock: Clock) -> Trial:
        problem = examine(backend)
        if problem is None:
            try:
                return Trial(clock(self.timed(backend)))
            except UserError:  # of whoever measures, not of the back end
                raise
            except Exception as error:  # such as too little memory
                problem = error_text(error)
        return Trial(float("inf"), problem)

    def ranked(self, seconds: Mapping[str, float]) -> Iterator[tuple[Backend[Shapes], str]]:
        finite = {name: each for name, each in seconds.items() if each < float("inf")}
        times = ", ".join(f"{name} {1000 * each:.2f}" for name, each in finite.items())
        for name in sorted(finite, key=finite.__getitem__):
            yield self.backends[name], f"the fastest, in ms of forward and backward: {times}"


def device_clock(device: torch.device) -> Clock:
    """The shortest of a few calls, after one that compiles what there is to compile."""

    def seconds(call: Callable[[], object]) -> float:
        times = []
        for _ in range(1 + REPEATS):
            _synchronize(device)
            begun = time.perf_counter()
            call()
            _synchronize(device)
            times.append(time.perf_counter() - begun)
        return min(times[1:])

    return seconds


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
