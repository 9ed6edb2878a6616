"""Numbers of a run by step, as many as it has: a column each, and curves of them that a screen can draw."""

from array import array
from bisect import bisect_left
from collections.abc import Mapping
from typing import Any

from fourfold.config.run_rows import MOST_STEP, finite_number

MOST_POINTS = 1200
"""Points of a curve: the least and the most of each of half as many spans of steps."""
_DIGITS = 7
_MOST_COLUMNS, _MOST_NAME = 64, 80


class Column:
    """One number by step; steps rise, and those that have no such number are left out."""

    def __init__(self) -> None:
        self.steps, self.values = array("q"), array("d")

    def forget_from(self, step: int) -> None:
        """Drops the step and all that follow: they are trained again."""
        kept = bisect_left(self.steps, step)
        del self.steps[kept:], self.values[kept:]

    def curve(self, first: int, last: int, most: int = MOST_POINTS) -> dict[str, list[Any]]:
        """`steps` and `values` from step `first` to `last`. Where there are more than `most`: of every span the least and the most,
        so that no peak is lost, and the two ends."""
        begin, end = bisect_left(self.steps, first), bisect_left(self.steps, last + 1)
        if end - begin <= most:
            chosen: list[int] = list(range(begin, end))
        else:
            spans = most // 2
            chosen = [begin]
            for span in range(spans):
                low, high = (begin + (end - begin) * each // spans for each in (span, span + 1))
                part = self.values[low:high]
                chosen += sorted({low + part.index(min(part)), low + part.index(max(part))})
            chosen = sorted({*chosen, end - 1})
        return {
            "steps": [self.steps[index] for index in chosen],
            "values": [rounded(self.values[index]) for index in chosen],
        }


class StepMetrics:
    """The columns of `metrics.jsonl`, and its newest row."""

    def __init__(self) -> None:
        self.columns: dict[str, Column] = {}
        self.last_step = -1

    def add(self, row: Mapping[str, Any]) -> None:
        """Takes a row; what is no finite number is left out."""
        step = row.get("step")
        if type(step) is not int or not 0 <= step < MOST_STEP:
            return
        if step <= self.last_step:
            for column in self.columns.values():
                column.forget_from(step)
        self.last_step = step
        for key, value in row.items():
            number = finite_number(value)
            if number is None or key == "step":
                continue
            if key not in self.columns:
                if len(self.columns) >= _MOST_COLUMNS or len(key) > _MOST_NAME:
                    continue
                self.columns[key] = Column()
            column = self.columns[key]
            column.steps.append(step)
            column.values.append(number)

    def latest(self, key: str, count: int = 1) -> list[float]:
        """The newest values of a column."""
        return list(self.columns[key].values[-count:]) if key in self.columns else []

    def table(self) -> dict[str, Any]:
        """All steps: `steps`, and by column its values, None where a step has none."""
        steps = sorted({step for column in self.columns.values() for step in column.steps})
        found: dict[str, list[float | None]] = {}
        for key, column in self.columns.items():
            values = dict(zip(column.steps, column.values, strict=True))
            found[key] = [None if (value := values.get(step)) is None else rounded(value) for step in steps]
        return {"steps": steps, "columns": found}


def rounded(value: float) -> float:
    """Seven digits: as many as a curve or a person needs, in a third of the text."""
    return float(f"{value:.{_DIGITS}g}")
