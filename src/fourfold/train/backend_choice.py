"""Which of several back ends computes a part of a run: the one that the run file names, that of its checkpoint, or the fastest.

Back ends are compared on the run's own shapes, every rank with all others at once. A back end's time is its slowest rank's, so
that all ranks take the same.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch

from fourfold.checkpoint import DamagedCheckpoint, read_manifest
from fourfold.config import FinalFailure, RunConfig, UserError
from fourfold.config.errors import is_out_of_memory
from fourfold.flash import choice, remembered
from fourfold.flash.choice import Backend
from fourfold.train.trials import Trials

_LETTERS = 120
"""The most that a message has of one problem: torch's may fill a screen."""

REPEATS = 3
Kernels = TypeVar("Kernels")
Case = TypeVar("Case")


class AgreeingRanks(Protocol):
    """Ranks that agree with each other; a `RankContext`."""

    @property
    def device(self) -> torch.device: ...

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    def least(self, value: int) -> int: ...

    def most(self, values: list[float]) -> list[float]: ...

    def tell(self, text: str, source: int) -> str: ...


@dataclass(frozen=True)
class Alone:
    """A rank that agrees with itself."""

    device: torch.device
    rank: int = 0
    world_size: int = 1

    def least(self, value: int) -> int:
        return value

    def most(self, values: list[float]) -> list[float]:
        return values

    def tell(self, text: str, source: int) -> str:
        return text


@dataclass(frozen=True)
class KernelsBackend(Generic[Kernels, Case]):
    """`kernels`: those that take the formulas' place, None: the formulas. `refuses`: why it does not take a case; None: it may."""

    name: str
    kernels: Kernels | None
    refuses: Callable[[Case], str | None]


@dataclass(frozen=True)
class Contest(Generic[Backend]):
    """The back ends that may compute a part of a run. `work`: that part in words; `option`: the run file's key; `recorded_as`: a
    checkpoint's; `file`: the name of that with times that were measured before; `default`: the back end that is taken where nothing
    is compared; `case`: this run's shapes; `examine`: why a back end cannot be taken, None: it can; `timed`: its call whose time
    decides."""

    work: str
    option: str
    recorded_as: str
    file: str
    backends: Mapping[str, Backend]
    default: Backend
    case: remembered.DeviceCase
    examine: Callable[[Backend], str | None]
    timed: Callable[[Backend], Callable[[], object]]


class Chosen(NamedTuple, Generic[Backend]):
    """The back end, and in words why it is this one; no words where there was no choice."""

    backend: Backend
    reason: str = ""


def choose_for_run(
    contest: Contest[Backend],
    config: RunConfig,
    context: AgreeingRanks,
    newest: Path | None,
    trials: Trials | None = None,
) -> Chosen[Backend]:
    """The choice at the start of a training, which compares back ends on CUDA. `newest`: the checkpoint that it may go on from."""
    measures, recorded = context.device.type == "cuda", ""
    if measures:
        recorded = context.tell(recorded_choice(newest, contest.recorded_as) if context.rank == 0 else "", 0)
    named, cache = getattr(config.run, contest.option), remembered.default_path().with_name(contest.file)
    return choose(contest, context, named, recorded, cache, device_clock(context.device), measures, trials)


def choose(
    contest: Contest[Backend],
    ranks: AgreeingRanks,
    named: str,
    recorded: str,
    cache: Path,
    clock: choice.Clock,
    measures: bool,
    trials: Trials | None = None,
) -> Chosen[Backend]:
    """The back end of a run, the same on every rank, each of which calls this. `named`: by the run file, or `auto`; `recorded`: by
    its checkpoint, or empty; `measures`: whether back ends are compared. Raises `UserError` where the named one cannot be taken,
    `FinalFailure` where none can, and `MemoryError` where that is for want of memory; `trials` raises `RunFailure` where one breaks
    this rank's device."""
    backends, guard = contest.backends, trials or Trials()

    def examine(backend: Backend) -> str | None:
        def again() -> object:
            return contest.timed(backend)()

        return guard.examine(contest.option, backend.name, lambda: contest.examine(backend), again)

    if named != "auto":
        problem = _agreed_problem(examine, backends[named], ranks)
        if problem is not None:
            _require_memory(contest.work, problem)
            raise UserError(
                f'run.{contest.option} = "{named}": {problem}; allowed: one that takes this run\'s {contest.work}; '
                f'a value that works: "auto"'
            )
        return Chosen(backends[named], "as the run file says")
    if not measures:
        return Chosen(contest.default)
    if recorded in backends and _agreed_problem(examine, backends[recorded], ranks) is None:
        return Chosen(backends[recorded], "as before the checkpoint")
    key = remembered.key_of(contest.case)
    known = remembered.recall(cache, key, backends)
    problems: dict[str, str | None] = {}
    if known is None:
        found = choice.compare(backends.values(), examine, contest.timed, guard.guarded(clock))
        problems = {name: trial.problem for name, trial in found.items()}
        known = {name: trial.seconds for name, trial in found.items()}
        if _first_without_memory(problems.values()) is None:  # what holds it now may be gone the next time
            remembered.remember(cache, key, known)
    seconds = dict(zip(backends, ranks.most([known[name] for name in backends]), strict=True))
    times = ", ".join(f"{name} {1000 * each:.2f}" for name, each in seconds.items() if each < float("inf"))
    while (name := choice.fastest(seconds)) is not None:
        if _agreed_problem(examine, backends[name], ranks) is None:
            return Chosen(backends[name], f"the fastest, in ms of forward and backward: {times}")
        seconds[name] = float("inf")
    _require_memory(contest.work, *problems.values())
    why = "; ".join(f"{name}: {(problem or '')[:_LETTERS]}" for name, problem in problems.items())
    raise FinalFailure(
        f"no back end computes this run's {contest.work}: {why or 'those known from before fail now'}; what works: another "
        f"precision.compute or run.device"
    )


def _first_without_memory(problems: Iterable[str | None]) -> str | None:
    return next((text for text in problems if text is not None and is_out_of_memory(RuntimeError(text))), None)


def _require_memory(work: str, *problems: str | None) -> None:
    """Raises `MemoryError` where that is the problem: then none of the back ends is at fault."""
    found = _first_without_memory(problems)
    if found is not None:
        raise MemoryError(f"a trial of this run's {work}: {found}")


def recorded_choice(newest: Path | None, key: str) -> str:
    """The choice that a checkpoint was made with; empty where it does not say, or cannot be read."""
    try:
        found = read_manifest(newest).info.get(key) if newest is not None else None
    except (OSError, ValueError, DamagedCheckpoint):
        return ""
    return found if isinstance(found, str) else ""


def device_clock(device: torch.device) -> choice.Clock:
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


def _agreed_problem(examine: Callable[[Any], str | None], backend: Any, ranks: AgreeingRanks) -> str | None:
    """Why some rank cannot take a back end; None on every rank, or the same on every rank."""
    problem = examine(backend)
    first = ranks.least(ranks.rank if problem is not None else ranks.world_size)
    return None if first == ranks.world_size else ranks.tell(problem or "", first)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
