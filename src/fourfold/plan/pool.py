"""The layouts whose bounds are best, of all that were bounded; and where the others went."""

from dataclasses import dataclass, field

import numpy as np

from fourfold.plan.bound import Bounds, Parts
from fourfold.plan.candidate import Candidate
from fourfold.plan.request import Request

KEPT = 4_000
"""Layouts whose bounds are kept for simulation."""


@dataclass
class Counts:
    """Where the layouts went. `not_searched`: their bounds are better than the best, but others looked better still.
    `end_ranks_too_large`: the programs of the first two pipeline ranks and the last were lowered, and hold too much.
    `least_memory`: layouts that were simulated for their memory, where none of the fastest fits."""

    layouts: int = 0
    too_large: int = 0
    worse_bound: int = 0
    simulated: int = 0
    simulated_too_large: int = 0
    end_ranks_too_large: int = 0
    like_a_simulated_one: int = 0
    timelines: int = 0
    refused: int = 0
    not_searched: int = 0
    shapes_not_priced: int = 0
    least_memory: int = 0


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
    least: list[tuple[float, Candidate]] = field(default_factory=list)
    """The layout of each shape with the least bound of memory, where that fits, with the bound."""
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
        least = int(bounds.memory_bytes.argmin())
        self.least.append((float(bounds.memory_bytes[least]), bounds.candidate(least)))
        rows = np.flatnonzero(fits)
        self.seconds.append(bounds.seconds[rows])
        self.memory.append(bounds.memory_bytes[rows])
        self.origin.append(np.stack([np.full(len(rows), self._added), rows]))
        self.tables[self._added] = bounds
        self._added += 1
        if sum(map(len, self.seconds)) > 4 * KEPT:
            self._trim()

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

    def parts(self, origin: np.ndarray) -> Parts:
        """The parts of a layout's bound."""
        return self.tables[int(origin[0])].parts(int(origin[1]))
