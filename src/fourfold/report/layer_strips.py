"""Numbers of every layer over a run's sampled steps, in memory of one size: strips of bins, each with its extreme.

A number of bins is kept whatever the run's length: where there would be more, neighbours become one. A bin holds the most of its
steps, or the least, where that is the sign of trouble.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fourfold.config.json_lines import Follower
from fourfold.config.run_rows import LARGEST, MOST_STEP
from fourfold.results.run import LayersDocument

_MOST_BINS, _MOST_CELLS, _MOST_SEGMENTS = 256, 2**14, 2**12
_MOST_QUANTITIES, _MOST_NAME, _DIGITS = 16, 80, 4
_LEAST = ("expert_load_min", "expert_entropy")
"""Quantities of which a bin holds the least."""


class LayerStrips:
    """Follows `layers.jsonl`. By quantity: [bins, segments], NaN where there is no number."""

    def __init__(self, path: Path) -> None:
        self._file = Follower(path)
        self._restart()

    def _restart(self) -> None:
        self.segments: list[str] = []
        self.values: dict[str, np.ndarray] = {}
        self.steps: list[int] = []
        """The last sampled step of each bin, rising."""
        self.counts: list[int] = []
        self._together = 1

    def refresh(self) -> None:
        """Reads what is new; all again where the file has become shorter, as a run that goes back leaves it."""
        if self._file.has_shrunk() is not None:
            self._file.back_to(0)
            self._restart()
        for rows in self._file.blocks():
            if self._file.restarted:
                self._restart()
            self.add(rows)

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Takes rows in their order; what is no row of this kind is left out."""
        for row in rows:
            step, segments = row.get("step"), _names(row.get("segments"))
            if type(step) is not int or not 0 <= step < MOST_STEP or not segments:
                continue
            if segments != self.segments:
                self._restart()
                self.segments = segments
            if self.steps and step <= self.steps[-1]:
                self._forget_from(step)
            self._append(step, row)

    def _append(self, step: int, row: Mapping[str, Any]) -> None:
        size = len(self.segments)
        most = max(2, min(_MOST_BINS, _MOST_CELLS // size))
        if len(self.counts) >= most and self.counts[-1] >= self._together:
            self._halve()
        if not self.counts or self.counts[-1] >= self._together:
            self.steps.append(step)
            self.counts.append(0)
            self.values = {key: np.vstack((each, np.full(size, np.nan))) for key, each in self.values.items()}
        self.steps[-1] = step
        self.counts[-1] += 1
        for key, numbers in row.items():
            if key in ("step", "segments") or not isinstance(numbers, list) or len(numbers) != size:
                continue
            if key not in self.values:
                if len(self.values) >= _MOST_QUANTITIES or len(key) > _MOST_NAME:
                    continue
                self.values[key] = np.full((len(self.counts), size), np.nan)
            own = self.values[key]
            own[-1] = _extreme(key)(own[-1], np.array([_number(each) for each in numbers]))

    def _halve(self) -> None:
        """Makes one bin of two."""
        starts = range(0, len(self.counts), 2)
        for key, each in self.values.items():
            self.values[key] = np.vstack([_extreme(key).reduce(each[start : start + 2]) for start in starts])
        self.steps = [self.steps[start : start + 2][-1] for start in starts]
        self.counts = [sum(self.counts[start : start + 2]) for start in starts]
        self._together *= 2

    def _forget_from(self, step: int) -> None:
        """Drops the bins that end at the step or later: they are sampled again."""
        kept = sum(each < step for each in self.steps)
        self.steps, self.counts = self.steps[:kept], self.counts[:kept]
        self.values = {key: each[:kept] for key, each in self.values.items()}

    @property
    def num_samples(self) -> int:
        """Sampled steps."""
        return sum(self.counts)

    def record(self) -> LayersDocument:
        """The strips: by quantity, for each segment, a number a bin."""
        return LayersDocument(
            segments=self.segments,
            steps=self.steps,
            num_samples=self.num_samples,
            values={key: [_written(column) for column in each.T] for key, each in self.values.items()},
        )


def _extreme(key: str) -> Any:
    return np.fmin if key in _LEAST else np.fmax


def _names(found: Any) -> list[str]:
    """The names of segments; empty where they are none."""
    if not isinstance(found, list) or len(found) > _MOST_SEGMENTS:
        return []
    return found if all(isinstance(each, str) and len(each) <= _MOST_NAME for each in found) else []


def _number(value: Any) -> float:
    fits = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST
    return float(value) if fits else np.nan


def _written(column: np.ndarray) -> list[float | None]:
    return [None if np.isnan(value) else float(f"{value:.{_DIGITS}g}") for value in column.tolist()]
