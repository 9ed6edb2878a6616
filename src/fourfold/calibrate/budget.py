"""The time that measurements may take: rounds that end in time, windows of single timings, and a true account of what is left."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

MOST_ROUNDS, QUICK_SECONDS = 3, 7.0
"""How often everything is measured; once, and as little as can be, where a number of ranks has less time than that."""
WINDOWS = 260
"""Timings of one number of ranks, each a window: 5 x 5 x 5 shapes of two kinds, and attention."""
STEP_TABLES, LINK_SIZES = 6, 12
OVERTIME = 1.05
"""A round is begun that ends by so many times the seconds that are stated."""


WEIGHTS = {
    "peaks": 1.5,
    "sustained load": 1.5,
    "matmuls": 4.0,
    "fp8 matmuls": 1.0,
    "attention": 2.0,
    "memory and launches": 0.7,
    "operators": 1.0,
    "whole steps": 5.0,
    "steps to check with": 2.5,
}
"""Shares of the time."""


@dataclass(frozen=True)
class Budget:
    """Seconds of single timings of one round. `quick`: as few shapes and steps as can be."""

    kernel: float
    link: float
    steps: float
    quick: bool

    @staticmethod
    def of(seconds: float, quick: bool) -> "Budget":
        """One round of one number of ranks in about so many seconds."""
        return Budget(0.25 * seconds / WINDOWS, 0.1 * seconds / LINK_SIZES, 0.15 * seconds / STEP_TABLES, quick)


@dataclass(frozen=True)
class Measurement:
    """A round of one number of ranks. `number`: from 1, of `rounds`."""

    ranks: int
    number: int
    rounds: int
    budget: Budget


class TimeAccount:
    """Deals out rounds until the time is over: every number of ranks is measured once, and again while another round ends in
    time. `clock`: seconds, as `time.monotonic` counts them."""

    def __init__(self, seconds: float, counts: Sequence[int], clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._counts, self._clock = seconds, tuple(counts), clock
        self._opened = self._begun = clock()
        self._measures = False
        self._budgets: dict[int, Budget] = {}
        self._taken: dict[int, float] = {}
        self._done = 0

    def next_job(self) -> Measurement | None:
        """Ends the job before, and gives the one to measure now; None where all are done or another would not end in time."""
        now = self._clock()
        if self._measures:
            self._taken[self._counts[self._done % len(self._counts)]] = now - self._begun
            self._done += 1
        self._begun = now
        ahead = self._ahead()
        self._measures = bool(ahead)
        if not ahead:
            return None
        if ahead[0] not in self._budgets:
            self._budgets[ahead[0]] = self._budget()
        number, size = self._done // len(self._counts) + 1, len(self._counts)
        return Measurement(ahead[0], number, max(number, (self._done + len(ahead)) // size), self._budgets[ahead[0]])

    def left(self) -> float:
        """Seconds until the measurements end, by what the rounds have taken so far."""
        return max(0.0, sum(map(self._expected, self._ahead())) - (self._clock() - self._begun))

    @property
    def _past(self) -> float:
        """Seconds until the round began that is measured now."""
        return self._begun - self._opened

    def _ahead(self) -> list[int]:
        """The numbers of ranks of all rounds that are left: the rest of this round, and every round that ends in time."""
        place, turn = divmod(self._done, len(self._counts))
        ahead = list(self._counts[turn:]) if turn or not place else []
        end = self._past + sum(map(self._expected, ahead))
        each = sum(map(self._expected, self._counts))
        quick = any(budget.quick for budget in self._budgets.values()) or self._seconds < self._least
        for _ in range(0 if quick else MOST_ROUNDS - place - bool(ahead)):
            end += each
            if end > OVERTIME * self._seconds:
                break
            ahead += self._counts
        return ahead

    @property
    def _least(self) -> float:
        """Seconds from which on not all is quick."""
        return QUICK_SECONDS * len(self._counts)

    def _expected(self, ranks: int) -> float:
        """Seconds of a round of so many ranks: as it took, or as others took; before any, the share that is planned."""
        if ranks in self._taken:
            return self._taken[ranks]
        if self._taken:
            return sum(self._taken.values()) / len(self._taken)
        rounds = 1 if self._seconds < self._least else MOST_ROUNDS
        return (self._seconds - self._past) / len(self._counts) / rounds

    def _budget(self) -> Budget:
        """The windows of a number of ranks that is measured for the first time."""
        each = (self._seconds - self._past) / (len(self._counts) - len(self._budgets))
        quick = each < QUICK_SECONDS
        return Budget.of(max(0.5, each / (1 if quick else MOST_ROUNDS)), quick)


class Shares:
    """Deals out what is left of the time by `WEIGHTS`. `end`: when it is over, by `clock`."""

    def __init__(
        self, seconds: float, report: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._end, self._report, self._clock, self._weights = clock() + seconds, report, clock, dict(WEIGHTS)

    def left(self) -> float:
        return max(0.0, self._end - self._clock())

    def skip(self, name: str) -> None:
        """Leaves a measurement out."""
        self._weights.pop(name)

    def peek(self, name: str) -> float:
        """Seconds that a measurement would have if it began now; at least a few hundredths."""
        return max(0.05, self.left() * self._weights[name] / sum(self._weights.values()))

    def next(self, name: str) -> float:
        """Seconds of a measurement, which begins now and is not dealt with again."""
        seconds = self.peek(name)
        self._report(f"{name}, some {self.left():.0f} s left")
        self.skip(name)
        return seconds
