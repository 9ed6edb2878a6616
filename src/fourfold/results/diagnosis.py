"""A run as `fourfold doctor` found it: every rank, and the one at fault."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Verdict:
    """The rank at fault. `cause`: stopped, looping, hung, skipped or lost. `message` names step, instruction and who waits.
    `instruction`: at which the rank stands; `completed`: the last one that it, or its device, has completed; `issued`: the one that
    the host of a device has come to. Empty: none."""

    rank: int
    cause: str
    message: str
    instruction: str
    still_seconds: float = 0.0
    completed: str = ""
    issued: str = ""


@dataclass(frozen=True)
class RankReport:
    """One rank. `seconds`: since it last got on. `waits_for`: ranks that keep it waiting, with their group."""

    rank: int
    pid: int
    state: str
    place: str
    step: int
    index: int
    instruction: str
    seconds: float
    waits_for: tuple[tuple[int, str], ...]
    calls: tuple[str, ...]
    native: str


@dataclass(frozen=True)
class Diagnosis:
    """A run as it stands. `verdict`: the rank at fault where the ranks live and none gets on. `chain`: ranks of
    which each waits for the next. `events`: the newest failures, restarts and stragglers."""

    alive: bool
    moving: bool
    ranks: tuple[RankReport, ...]
    verdict: Verdict | None
    chain: tuple[int, ...]
    events: tuple[dict[str, Any], ...]
