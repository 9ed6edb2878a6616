"""Numbers by step in memory of one size, however long the run is: what each bin of steps has of them.

steps 0 ... 16,383     a bin a step: every value is kept
steps up to 32,767     a bin two steps, and so on: of each bin the least and the most with their steps, the sum, the count
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from statistics import median
from typing import Any

import numpy as np

from fourfold.config.run_rows import LARGEST, MOST_STEP, is_signed, quantity

BINS = 2**14
MOST_POINTS = 1200
"""Points of a curve: the least and the most of each of half as many spans of steps."""
RECENT_STEPS = 20
"""Steps that a pace is taken over, so that one slow step does not make it jump."""
_DIGITS = 7
_MOST_COLUMNS, _MOST_NAME = 64, 80
_MOST_VALUES, _TABLE_STEPS = 250_000, 4096
"""Values of a table with every step, and steps of one that is thinned."""
_MOST_READ_AGAIN = 100
"""Times that steps are read once more since a file goes back in itself, which no run's does."""
_NUMBERS = {int, float}
_PLAIN = {int, float, type(None)}
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class StepCurve:
    """Points of a number by step. `num_values`: how many values the run has of these steps."""

    steps: list[int]
    values: list[float]
    num_values: int


class Column:
    """One number. Bin by bin: its least and its most, each with its step, the sum and the count."""

    def __init__(self) -> None:
        self.least, self.most, self.total = np.full(0, np.inf), np.full(0, -np.inf), np.zeros(0)
        self.least_step, self.most_step, self.count = (np.zeros(0, np.int64) for _ in range(3))
        self.first: tuple[int, float] | None = None
        self.recent = deque[tuple[int, float]](maxlen=RECENT_STEPS)

    def add(self, bins: np.ndarray, steps: np.ndarray, values: np.ndarray) -> None:
        """Takes values of rising steps, [n] each, at least one."""
        self._reserve(int(bins[-1]) + 1)
        starts = np.flatnonzero(np.diff(bins, prepend=-1))
        at, counts = bins[starts], np.diff(starts, append=len(bins))
        owner = np.repeat(np.arange(len(starts)), counts)
        for own, own_step, reduce, sign in (
            (self.least, self.least_step, np.minimum, 1),
            (self.most, self.most_step, np.maximum, -1),
        ):
            found = reduce.reduceat(values, starts)
            equal = np.flatnonzero(values == found[owner])
            where = steps[equal[np.flatnonzero(np.diff(owner[equal], prepend=-1))]]
            better = sign * found < sign * own[at]
            own[at[better]], own_step[at[better]] = found[better], where[better]
        self.total[at] += np.add.reduceat(values, starts)
        self.count[at] += counts
        self.first = self.first or (int(steps[0]), float(values[0]))
        self.recent.extend(zip(steps[-RECENT_STEPS:].tolist(), values[-RECENT_STEPS:].tolist(), strict=True))

    @property
    def last(self) -> tuple[int, float] | None:
        """The newest value, with its step."""
        return self.recent[-1] if self.recent else None

    def forget_from(self, number: int, step: int) -> None:
        """Drops bin `number`, whose first step is `step`, and all that follow."""
        size = len(self.count)
        for name in ("least", "most", "total", "least_step", "most_step", "count"):
            setattr(self, name, getattr(self, name)[:number].copy())
        self._reserve(size)
        if self.first is not None and self.first[0] >= step:
            self.first = None
        while self.recent and self.recent[-1][0] >= step:
            self.recent.pop()
        there = np.flatnonzero(self.count)
        if not self.recent and len(there):  # of a bin the step of its newest value is not known: its most stands for it
            self.recent.append((int(self.most_step[there[-1]]), float(self.most[there[-1]])))

    def halve(self) -> None:
        """Makes one bin of two."""
        size = len(self.count)
        self._reserve(size + size % 2)
        for own, own_step, sign in ((self.least, self.least_step, 1), (self.most, self.most_step, -1)):
            later = sign * own[1::2] < sign * own[::2]
            own[: len(later)], own_step[: len(later)] = (
                np.where(later, own[1::2], own[::2]),
                np.where(later, own_step[1::2], own_step[::2]),
            )
        half = len(self.count) // 2
        self.total[:half], self.count[:half] = self.total[::2] + self.total[1::2], self.count[::2] + self.count[1::2]
        self._cut(half)
        self._reserve(size)

    def _cut(self, size: int) -> None:
        for name in ("least", "most", "total", "least_step", "most_step", "count"):
            setattr(self, name, getattr(self, name)[:size].copy())

    def _reserve(self, size: int) -> None:
        """Makes room for so many bins, and for some more."""
        have = len(self.count)
        if size <= have:
            return
        more = max(size, min(max(2 * have, 64), BINS)) - have
        empty = {"least": np.inf, "most": -np.inf, "total": 0.0, "least_step": 0, "most_step": 0, "count": 0}
        for name, value in empty.items():
            own = getattr(self, name)
            setattr(self, name, np.concatenate((own, np.full(more, value, own.dtype))))

    def points(self, low: int, high: int) -> tuple[np.ndarray, np.ndarray]:
        """Steps and values, rising, that the bins from `low` to `high` hold: where a bin is a step, all of them."""
        there = low + np.flatnonzero(self.count[low : high + 1])
        ends = [point for point in (self.first, self.last) if point is not None and len(there)]
        steps = [self.least_step[there], self.most_step[there], np.array([step for step, _ in ends], np.int64)]
        values = [self.least[there], self.most[there], np.array([value for _, value in ends])]
        found, where = np.unique(np.concatenate(steps), return_index=True)
        return found, np.concatenate(values)[where]


class StepMetrics:
    """The columns of `metrics.jsonl`, and its newest row. `begin`: the first step that it has room for. `read_again`: gives the
    rows of steps from one to another, where the file is there."""

    def __init__(self, begin: int = 0, read_again: Callable[[int, int], Iterable[Rows]] | None = None) -> None:
        self.columns: dict[str, Column] = {}
        self.last_row: Mapping[str, Any] = {}
        self.last_step = -1
        self.width = 1
        """Steps of a bin."""
        self._begin, self._read_again, self._reads_left = begin, read_again, _MOST_READ_AGAIN

    def add(self, rows: Rows) -> None:
        """Takes rows in their order; what is no number that a run states is left out."""
        numbers = _column(rows, "step")
        if not rows or set(map(type, numbers)) != {int} or min(numbers) < self._begin or max(numbers) >= MOST_STEP:
            rows = [row for row in rows if type(step := row.get("step")) is int and self._begin <= step < MOST_STEP]
            numbers = [row["step"] for row in rows]
        steps = np.array(numbers, np.int64)
        falls = np.flatnonzero(np.diff(steps) <= 0) + 1
        for low, high in zip([0, *falls.tolist()], [*falls.tolist(), len(rows)], strict=True):
            if low < high:
                self._add_rising(rows[low:high], steps[low:high])

    def _add_rising(self, rows: Rows, steps: np.ndarray) -> None:
        if steps[0] <= self.last_step:
            self._rewind(int(steps[0]))
        while (steps[-1] - self._begin) // self.width >= BINS:
            self.width *= 2
            for column in self.columns.values():
                column.halve()
        bins = (steps - self._begin) // self.width
        keys: Iterable[str] = rows[0].keys()
        if any(row.keys() != keys for row in rows):
            keys = dict.fromkeys(chain.from_iterable(rows))
        for key in keys:
            if key == "step" or (
                key not in self.columns and (len(self.columns) >= _MOST_COLUMNS or len(key) > _MOST_NAME)
            ):
                continue
            values, known = _numbers(key, _column(rows, key))
            if known.all():
                self.columns.setdefault(key, Column()).add(bins, steps, values)
            elif known.any():
                self.columns.setdefault(key, Column()).add(bins[known], steps[known], values[known])
        self.last_row, self.last_step = rows[-1], int(steps[-1])

    def forget_from(self, step: int) -> int:
        """Drops the bin of a step and all that follow; its first step."""
        number = (step - self._begin) // self.width
        first = self._begin + number * self.width
        for column in self.columns.values():
            column.forget_from(number, first)
        self.last_step = min(self.last_step, first - 1)
        return first

    def _rewind(self, step: int) -> None:
        """Drops the step and all that follow: they are trained again."""
        first = self.forget_from(step)
        if first < step and self._read_again is not None and self._reads_left:
            self._reads_left -= 1
            found: dict[int, Mapping[str, Any]] = {}
            for rows in self._read_again(first, step - 1):
                found.update((row["step"], row) for row in rows)
            self.add([found[each] for each in sorted(found)])

    def curve(self, key: str, first: int, last: int, most: int = MOST_POINTS) -> StepCurve:
        """A number from step `first` to `last`. Where there are more than `most`: of every span the least and the most, so that no
        peak is lost, and the two ends."""
        column, high = self.columns[key], max(last - self._begin, -1) // self.width
        low = max(first - self._begin, 0) // self.width
        steps, values = column.points(low, high)
        inside = (steps >= first) & (steps <= last)
        steps, values = thinned(steps[inside], values[inside], most)
        num_values = max(len(steps), min(int(column.count[low : high + 1].sum()), last - first + 1))
        return StepCurve(steps.tolist(), [rounded(value) for value in values.tolist()], num_values)

    def step_times(self) -> Iterator[dict[str, Any]]:
        """Seconds of every step and of its copy to memory, bin by bin, as `results.goodput` takes them."""
        times, copies = (self.columns.get(key, Column()) for key in ("step_seconds", "memory_copy_seconds"))
        for number in np.flatnonzero(times.count).tolist():
            copied = float(copies.total[number]) if number < len(copies.count) and copies.count[number] else None
            step = self._begin + number * self.width
            yield {"step": step, "step_seconds": float(times.total[number]), "memory_copy_seconds": copied}

    def seconds_left(self, num_steps: int) -> float | None:
        """Time that the remaining steps take at the recent pace, evaluations and saves not counted."""
        seconds, left = self.latest("step_seconds", RECENT_STEPS), num_steps - self.last_step - 1
        return median(seconds) * left if seconds and left >= 0 else None

    def latest(self, key: str, count: int = 1) -> list[float]:
        """The newest values of a column, `RECENT_STEPS` at most."""
        return [value for _, value in self.columns[key].recent][-count:] if key in self.columns else []

    def means(self, key: str) -> list[float]:
        """The mean of every bin that has a value."""
        column = self.columns.get(key, Column())
        there = np.flatnonzero(column.count)
        return list((column.total[there] / column.count[there]).tolist())

    @property
    def num_steps(self) -> int:
        """Steps that have a number."""
        return max((int(column.count.sum()) for column in self.columns.values()), default=0)

    def table(self) -> dict[str, Any]:
        """`steps`, and by column its values, None where a step has none. A long run's are the steps where a column has the least or
        the most of a span; `num_steps`: how many it has."""
        keys, num_steps = list(self.columns), self.num_steps
        is_full = self.width == 1 and num_steps * len(keys) <= _MOST_VALUES
        most = BINS if is_full else max(4, _TABLE_STEPS // max(1, len(keys)))
        curves = {key: self.curve(key, self._begin, self.last_step, most) for key in keys}
        steps = sorted({step for curve in curves.values() for step in curve.steps})
        columns: dict[str, list[float | None]] = {}
        for key, curve in curves.items():
            values = dict(zip(curve.steps, curve.values, strict=True))
            columns[key] = [values.get(step) for step in steps]
        return {"steps": steps, "columns": columns, "num_steps": num_steps}


def thinned(steps: np.ndarray, values: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """The points, [n] each by rising step; where they are more than `most`, the least and the most of each of half as many spans of
    equal length, and both ends: `most` + 2 points at most."""
    count = len(steps)
    if count <= most:
        return steps, values
    edges = count * np.arange(most // 2 + 1) // (most // 2)
    chosen = [np.array([0, count - 1])]
    for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        part = values[low:high]
        chosen.append(low + np.array([part.argmin(), part.argmax()]))
    kept = np.unique(np.concatenate(chosen))
    return steps[kept], values[kept]


def _column(rows: Rows, key: str) -> list[Any]:
    """The values under a key, None where a row has none."""
    try:
        return list(map(itemgetter(key), rows))  # most rows have the same keys: twice as fast
    except KeyError:
        return [row.get(key) for row in rows]


def _numbers(key: str, values: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    """The numbers, and which of them a run may state under the key, as `quantity` has it."""
    kinds = set(map(type, values))
    if kinds.isdisjoint(_NUMBERS):
        return np.zeros(len(values)), np.zeros(len(values), bool)
    if kinds <= _PLAIN:
        try:
            found = np.array(values, np.float64)
        except OverflowError:
            pass
        else:
            known = np.abs(found) <= LARGEST  # False of NaN, which None becomes
            return found, known if is_signed(key) else known & (found >= 0)
    checked = [quantity(key, value) for value in values]
    return np.array(checked, np.float64), np.array([value is not None for value in checked])


def rounded(value: float) -> float:
    """Seven digits: as many as a curve or a person needs, in a third of the text."""
    return float(f"{value:.{_DIGITS}g}")
