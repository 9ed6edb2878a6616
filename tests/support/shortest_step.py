"""The shortest step by integer programming: start times, and for every two entries of a rank which goes first."""

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from fourfold.program.schedule import StageTimes

Entry = tuple[str, int, int]
"""(F, I or W; stage; microbatch)."""


class ShortestStep:
    """Variables: the start of every entry, one 0-1 variable for each pair on a rank that neither has to precede, and the
    makespan last. Microbatches are alike, so that every stage may take them in turn. `horizon`: a makespan that is reached."""

    def __init__(
        self,
        stage_ranks: Sequence[int],
        num_microbatches: int,
        times: StageTimes,
        limits: Sequence[float],
        horizon: float,
    ) -> None:
        self.stage_ranks, self.times, self.limits, self.horizon = stage_ranks, times, limits, horizon
        num_stages = len(stage_ranks)
        self.entries: list[Entry] = [
            (o, s, m) for m in range(num_microbatches) for o in "FIW" for s in range(num_stages)
        ]
        self.index = {entry: i for i, entry in enumerate(self.entries)}
        self.rows: list[dict[int, float]] = []
        self.lower: list[float] = []
        self.needs = {entry: set(self._direct_needs(entry)) for entry in self.entries}
        self._close()
        self.first: dict[tuple[Entry, Entry], int] = {}
        for pair in combinations(self.entries, 2):
            same = stage_ranks[pair[0][1]] == stage_ranks[pair[1][1]]
            if same and pair[0] not in self.needs[pair[1]] and pair[1] not in self.needs[pair[0]]:
                self.first[pair] = len(self.entries) + len(self.first)
        self.makespan = len(self.entries) + len(self.first)
        for entry in self.entries:
            for need in self._direct_needs(entry):
                self._after(need, entry)
            self._at_least({self.makespan: 1, self.index[entry]: -1}, self.duration(entry))
        self._turns()
        self._memory()

    def solve(self) -> float:
        """The least makespan."""
        number = self.makespan + 1
        at = [(i, j, v) for i, row in enumerate(self.rows) for j, v in row.items()]
        rows, columns, values = (list(column) for column in zip(*at, strict=True))
        matrix = coo_array((values, (rows, columns)), shape=(len(self.rows), number)).tocsr()
        upper, integral, cost = np.full(number, self.horizon), np.zeros(number), np.zeros(number)
        upper[len(self.entries) : self.makespan] = 1
        integral[len(self.entries) : self.makespan] = 1
        cost[self.makespan] = 1
        result = milp(
            cost,
            constraints=LinearConstraint(matrix, self.lower, np.inf),
            bounds=Bounds(np.zeros(number), upper),
            integrality=integral,
            options={"time_limit": 60},
        )
        assert result.status == 0, result.message
        return float(result.fun)

    def duration(self, entry: Entry) -> float:
        columns = {"F": self.times.forward, "I": self.times.input_gradient, "W": self.times.weight_gradient}
        return columns[entry[0]][entry[1]]

    def _at_least(self, row: dict[int, float], lower: float) -> None:
        self.rows.append(row)
        self.lower.append(lower)

    def _after(self, before: Entry, after: Entry) -> None:
        crosses = self.stage_ranks[before[1]] != self.stage_ranks[after[1]]
        lag = self.duration(before) + (self.times.transfer if crosses else 0.0)
        self._at_least({self.index[after]: 1, self.index[before]: -1}, lag)

    def _direct_needs(self, entry: Entry) -> list[Entry]:
        op, s, m = entry
        found = [(op, s, m - 1)] if m else []
        if op == "F" and s:
            found.append(("F", s - 1, m))
        if op == "I":
            found.append(("F", s, m))
            found += [("I", s + 1, m)] if s + 1 < len(self.stage_ranks) else []
        if op == "W":
            found.append(("I", s, m))
        return found

    def _close(self) -> None:
        """`needs` becomes all that has to come before, not only directly."""
        changed = True
        while changed:
            changed = False
            for entry, needs in self.needs.items():
                more = set().union(*(self.needs[need] for need in needs)) - needs
                if more:
                    self.needs[entry] |= more
                    changed = True

    def _turns(self) -> None:
        for (a, b), first in self.first.items():
            row = {self.index[b]: 1, self.index[a]: -1, first: -self.horizon}
            self._at_least(row, self.duration(a) - self.horizon)
            self._at_least({self.index[a]: 1, self.index[b]: -1, first: self.horizon}, self.duration(b))

    def _memory(self) -> None:
        """At every F: activations of F before it, less those of W before it, and its own, within the limit."""
        for entry in self.entries:
            if entry[0] != "F":
                continue
            rank, room = self.stage_ranks[entry[1]], 0.0
            row: dict[int, float] = {}
            for other in self.entries:
                if other[0] == "I" or other == entry or self.stage_ranks[other[1]] != rank:
                    continue
                size = self.times.activations[other[1]] * (1 if other[0] == "F" else -1)
                if (other, entry) in self.first:
                    row[self.first[other, entry]] = -size
                elif (entry, other) in self.first:
                    row[self.first[entry, other]] = size
                    room += size
                elif other in self.needs[entry]:
                    room += size
            self._at_least(row, self.times.activations[entry[1]] + room - self.limits[rank])
