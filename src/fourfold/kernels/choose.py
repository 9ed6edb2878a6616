"""The choice of a back end: the one that the run file names, that of its checkpoint, or the fastest that is right.

Back ends are compared on the run's own shapes, every rank with all others at once. A back end's time is its slowest rank's, so
that all ranks take the same.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Generic, NamedTuple, Protocol

import torch

from fourfold.checkpoint import DamagedCheckpoint, read_manifest
from fourfold.checkpoint.manifest import Manifest
from fourfold.config import FinalFailure, RunConfig, UserError
from fourfold.config.errors import is_out_of_memory
from fourfold.kernels import remembered
from fourfold.kernels.backend import Backend, Case
from fourfold.kernels.trials import Trials
from fourfold.program import Program
from fourfold.program.spec import StepSpec

_LETTERS = 120
"""The most that a message has of one problem: torch's may fill a screen."""

Clock = Callable[[Callable[[], object]], float]
"""Seconds of one call."""
Examine = Callable[[Backend[Case]], str | None]
"""Why a back end cannot be taken; None: it can."""


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
class RunStart:
    """The start of a training on one rank. `newest`, `copy`: the checkpoint, and the copy in memory, that it may go on from."""

    config: RunConfig
    spec: StepSpec
    program: Program
    ranks: AgreeingRanks
    newest: Path | None = None
    copy: Manifest | None = None
    trials: Trials = field(default_factory=Trials)


class Chosen(NamedTuple, Generic[Case]):
    """The back end, and in words why it is this one; no words where there was no choice."""

    backend: Backend[Case]
    reason: str = ""


@dataclass(frozen=True)
class KernelKind(ABC, Generic[Case]):
    """A part of a step that several back ends may compute.

    `work`: that part in words; `name`: its key in a checkpoint, and the event that tells its choice; `option`: the run file's key;
    `file`: of times measured before; `backends`: by name in the run file, in the order that decides between equals; the first of
    them computes where nothing is compared."""

    work: str
    name: str
    option: str
    file: str
    backends: Mapping[str, Backend[Case]]

    @property
    def default(self) -> Backend[Case]:
        return next(iter(self.backends.values()))

    @abstractmethod
    def choose(self, start: RunStart) -> Chosen[Case]:
        """The choice of a run, the same on every rank, each of which calls this when it starts."""

    @property
    def cache(self) -> Path:
        """The file of times, in the user's cache."""
        return remembered.folder() / self.file


class Trial(NamedTuple):
    """One time. `problem`: why its back end cannot be taken; `seconds`: infinite then."""

    seconds: float
    problem: str | None = None


@dataclass(frozen=True)
class Contest(ABC, Generic[Case]):
    """The back ends that may compute a part of this run. `examine`: why one cannot be taken, None: it can."""

    kind: KernelKind[Case]
    backends: Mapping[str, Backend[Case]]
    examine: Examine[Case]

    @property
    @abstractmethod
    def key(self) -> str:
        """The text that times are remembered under: device, case, versions."""

    @property
    def names(self) -> Collection[str]:
        """The names of the times, the same on every rank."""
        return self.backends

    @property
    def own_names(self) -> Collection[str]:
        """The names of those that this rank measures. On it, the others take no time."""
        return self.names

    def results(self, backend: Backend[Case]) -> object:
        """Results of a back end, made anew at every call: their bits have to repeat where the run asks for that."""
        return None

    @abstractmethod
    def measure(self, examine: Examine[Case], clock: Clock) -> dict[str, Trial]:
        """This rank's times, by name."""

    @abstractmethod
    def ranked(self, seconds: Mapping[str, float]) -> Iterator[tuple[Backend[Case], str]]:
        """The back ends to take by these times, the best first, each with the reason."""


def choose(
    contest: Contest[Case],
    ranks: AgreeingRanks,
    named: str,
    recorded: str,
    cache: Path,
    clock: Clock,
    measures: bool,
    trials: Trials | None = None,
) -> Chosen[Case]:
    """The back end of a run, the same on every rank, each of which calls this. `named`: by the run file, or `auto`; `recorded`: by
    its checkpoint, or empty; `measures`: whether back ends are compared. Raises `UserError` where the named one cannot be taken,
    `FinalFailure` where none can, and `MemoryError` where that is for want of memory; `trials` raises `RunFailure` where one breaks
    this rank's device."""
    kind, backends, guard = contest.kind, contest.backends, trials or Trials()

    def examine(backend: Backend[Case]) -> str | None:
        def again() -> object:
            return contest.results(backend)

        return guard.examine(kind.option, backend.name, lambda: contest.examine(backend), again)

    if named != "auto":
        problem = agreed_problem(partial(examine, backends[named]), ranks)
        if problem is not None:
            _require_memory(kind.work, problem)
            raise UserError(
                f'run.{kind.option} = "{named}": {problem}; allowed: one that takes this run\'s {kind.work}; '
                f'a value that works: "auto"'
            )
        return Chosen(backends[named], "as the run file says")
    if recorded in backends and agreed_problem(partial(examine, backends[recorded]), ranks) is None:
        return Chosen(backends[recorded], "as before the checkpoint")
    if not measures:
        return Chosen(kind.default)
    known = remembered.recall(cache, contest.key, contest.own_names)
    problems: dict[str, str | None] = {}
    if known is None:
        found = contest.measure(examine, guard.guarded(clock))
        problems = {name: trial.problem for name, trial in found.items()}
        known = {name: trial.seconds for name, trial in found.items()}
        if _first_without_memory(problems.values()) is None:  # what holds it now may be gone the next time
            remembered.remember(cache, contest.key, known)
    slowest = ranks.most([known.get(name, 0.0) for name in contest.names])
    for backend, reason in contest.ranked(dict(zip(contest.names, slowest, strict=True))):
        if agreed_problem(partial(examine, backend), ranks) is None:
            return Chosen(backend, reason)
    _require_memory(kind.work, *problems.values())
    why = "; ".join(f"{name}: {(problem or '')[:_LETTERS]}" for name, problem in problems.items())
    raise FinalFailure(
        f"no back end computes this run's {kind.work}: {why or 'those known from before fail now'}; what works: another "
        f"precision.compute or run.device"
    )


def agreed_problem(find: Callable[[], str | None], ranks: AgreeingRanks) -> str | None:
    """The problem that the first of the ranks which have one finds; None on every rank, or the same on every rank."""
    problem = find()
    first = ranks.least(ranks.rank if problem is not None else ranks.world_size)
    return None if first == ranks.world_size else ranks.tell(problem or "", first)


def recorded_choice(newest: Path | None, key: str) -> str:
    """The choice that a checkpoint was made with; empty where it does not say, or cannot be read."""
    try:
        found = read_manifest(newest).info.get(key) if newest is not None else None
    except (OSError, ValueError, DamagedCheckpoint):
        return ""
    return found if isinstance(found, str) else ""


def _first_without_memory(problems: Iterable[str | None]) -> str | None:
    return next((text for text in problems if text is not None and is_out_of_memory(RuntimeError(text))), None)


def _require_memory(work: str, *problems: str | None) -> None:
    """Raises `MemoryError` where that is the problem: then none of the back ends is at fault."""
    found = _first_without_memory(problems)
    if found is not None:
        raise MemoryError(f"a trial of this run's {work}: {found}")
