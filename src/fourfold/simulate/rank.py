"""A rank on its way through its program: its times, and the ends of what it shares with other ranks."""

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from fourfold.program import Program
from fourfold.program.pattern import Pattern

Place = tuple[int, int]
"""A pipeline rank and the index of an instruction of its."""


@dataclass
class RankTimes:
    """Times of one rank: when each instruction had its turn and when the rank went on; of what runs beside computation or with
    other ranks (collectives, transfers), from when to when it ran.

    `causes[i]`: what instruction i waited for, if for anything but the one before it: where several ranks meet, the one that came
    last. `joins[i]`: what the WAIT at i joined. `host[i]`: seconds in which the device waited for its host to issue instruction i.
    """

    starts: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    streams: dict[int, tuple[float, float]] = field(default_factory=dict)
    causes: dict[int, Place] = field(default_factory=dict)
    joins: dict[int, int] = field(default_factory=dict)
    host: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Times:
    """Times of all pipeline ranks. `makespan`: seconds from the first instruction to the last rank's end, streams included."""

    ranks: tuple[RankTimes, ...]
    makespan: float


class Rank:
    """A rank on its way through its program. `pending`: what is started, or entered, and not over, by its short form without the
    microbatch and the microbatch: when it ends, and the index that started it."""

    def __init__(self, index: int, program: Program) -> None:
        self.index = index
        self.steps = program.steps.steps
        self.at = 0
        self.now = 0.0
        self.times = RankTimes()
        self.free: dict[str, float] = {}
        self.pending: dict[tuple[str, int | None], tuple[float | Rendezvous, int]] = {}
        self.in_flight = 0.0
        self.network_free = 0.0
        self.on_network: set[tuple[str, int | None]] = set()
        self.ahead = 0.0
        self.ordinals: dict[str, int] = {}
        self.ends: dict[Pattern, End] = {}


class Rendezvous:
    """A transfer between two ranks, or what all pipeline ranks enter: known when everyone is there."""

    __slots__ = ("arrived", "end", "expected", "last", "start")

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self.arrived: list[tuple[float, int, int]] = []
        self.start = self.end = -1.0
        self.last: Place | None = None


@dataclass
class Channel:
    """Transfers from one pipeline rank to another. `waiting`: those that one end has started, in the order of their starts;
    `by_sender`: whether that is the sender. `free`: when the link is."""

    source: int
    target: int
    waiting: deque[Rendezvous] = field(default_factory=deque)
    by_sender: bool = False
    free: float = 0.0


class End(NamedTuple):
    """One end of the transfers of a pattern."""

    channel: Channel
    sends: bool
    seconds: float
    short: str
