"""The layouts whose bounds are best, of all that were bounded; and where the others went."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from fourfold.plan.bound import Bounds
from fourfold.plan.request import Candidate, Request

KEPT = 4_000
"""Layouts whose bounds are kept for simulation."""
LEAN = (0.4,)
"""Shares of the memory limit for which a layout that holds no more is looked for."""


@dataclass
class Counts:
    """Where the layouts went. `not_searched`: their bounds are better than the best, but others looked better still."""

    layouts: int = 0
    too_large: int = 0
    worse_bound: int = 0
    simulated: int = 0
    simulated_too_large: int = 0
    like_a_simulated_one: int = 0
    timelines: int = 0
    refused: int = 0
    not_searched: int = 0
    shapes_not_priced: int = 0


@dataclass
class Pool:
    """The best bounds so far."""

    request: Request
    counts: Counts
    tables: dict[int, Bounds] = field(default_factory=dict)
    """Those that rows in `origin` stand in, by the order in which they came."""
    seconds: list[np.ndarray] = field(default_factory=list)
    memory: list[np.ndarray] = field(default_factory=list)
    origin: list[np.ndarray] = field(default_factory=list)
    smallest: tuple[Candidate, float] | None = None
    lean: list[tuple[float, float, Candidate]] = field(default_factory=list)
    """For each share of the memory limit in `LEAN`, the layout with the best bound of those that hold no more by their bounds."""
    _added: int = 0

    def add(self, bounds: Bounds) -> None:
        counts = self.counts
        counts.layouts += len(bounds)
        fits = bounds.memory_bytes <= self.request.memory_bytes
        counts.too_large += int((~fits).sum())
        if not fits.any():
            least = int(bounds.memory_bytes.argmin())
            if self.smallest is None or bounds.memory_bytes[least] < self.smallest[1]:
                self.smallest = (bounds.candidate(least), float(bounds.memory_bytes[least]))
            return
        rows = np.flatnonzero(fits)
        self._keep_lean(bounds)
        self.seconds.append(bounds.seconds[rows])
        self.memory.append(bounds.memory_bytes[rows])
        self.origin.append(np.stack([np.full(len(rows), self._added), rows]))
        self.tables[self._added] = bounds
        self._added += 1
        if sum(map(len, self.seconds)) > 4 * KEPT:
            self._trim()

    def _keep_lean(self, bounds: Bounds) -> None:
        if not self.lean:
            self.lean = [(float("inf"), 0.0, bounds.candidate(0))] * len(LEAN)
        for place, share in enumerate(LEAN):
            seconds = np.where(bounds.memory_bytes <= share * self.request.memory_bytes, bounds.seconds, np.inf)
            row = int(seconds.argmin())
            if seconds[row] < self.lean[place][0]:
                self.lean[place] = (float(seconds[row]), share, bounds.candidate(row))

    def _trim(self) -> None:
        seconds, memory, origin = self.columns()
        keep = np.argsort(seconds, kind="stable")[:KEPT]
        self.counts.worse_bound += len(seconds) - len(keep)
        self.seconds, self.memory, self.origin = [seconds[keep]], [memory[keep]], [origin[:, keep]]
        self.tables = {int(place): self.tables[int(place)] for place in np.unique(self.origin[0][0])}

    def columns(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        if not self.seconds:
            return np.zeros(0), np.zeros(0), np.zeros((2, 0), dtype=int)
        return np.concatenate(self.seconds), np.concatenate(self.memory), np.concatenate(self.origin, axis=1)

    def candidate(self, origin: np.ndarray) -> Candidate:
        return self.tables[int(origin[0])].candidate(int(origin[1]))

    def parts(self, origin: np.ndarray) -> "Parts":
        """Of a layout's bound."""
        table, row = self.tables[int(origin[0])], int(origin[1])
        return Parts(
            float(table.compute_seconds[row]), float(table.beside_seconds[row]), float(table.after_seconds[row])
        )


class Parts(NamedTuple):
    """Of a bound: what the pipeline computes, traffic that this may hide, what comes after."""

    compute: float
    beside: float
    after: float
