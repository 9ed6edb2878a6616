"""The files of a run as displays read them: which may be there, what is new in them, and a number by step."""

import os
import stat
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from fourfold.config import UserError
from fourfold.config.json_lines import json_object
from fourfold.config.run_rows import MOST_STEP, clean_row, quantity
from fourfold.launch.run_folder import DATA_FILE, EVENTS, METRICS, RUN_FILE, RunFolder
from fourfold.runtime.progress import FILES
from fourfold.train.measured import FOLDER

_BLOCK_BYTES = 8 * 2**20
RECENT_STEPS = 20
"""Steps that a pace is taken over, so that one slow step does not make it jump."""
_SMALL, _LARGE = 64 * 2**20, 4 * 2**30
_MOST_BYTES = {RUN_FILE: _SMALL, DATA_FILE: _SMALL, METRICS: _LARGE, EVENTS: _LARGE}


def check_files(folder: Path) -> None:
    """Raises `UserError` where a file that is read is a pipe or a device, a link out of the folder, or longer than any run's."""
    inside = Path(os.path.realpath(folder))
    for path, most in _read_files(inside):
        try:
            found = os.stat(path)
        except FileNotFoundError:
            if path.is_symlink():
                raise UserError(f"{path}: is a link to nothing; what works: a folder as a run left it") from None
            continue
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {error.strerror}") from None
        if not Path(os.path.realpath(path)).is_relative_to(inside):
            raise UserError(
                f"{path}: is a link out of the run's folder, which is not followed; what works: a copy of the file"
            )
        kind = stat.S_ISDIR if path.name == FOLDER else stat.S_ISREG
        if not kind(found.st_mode):
            raise UserError(
                f"{path}: is no {'folder' if path.name == FOLDER else 'file'}; what works: a folder as a run left it"
            )
        if kind is stat.S_ISREG and found.st_size > most:
            raise UserError(f"{path}: has {found.st_size} bytes; allowed: {most}")


def _read_files(folder: Path) -> Iterator[tuple[Path, int]]:
    yield from ((folder / name, most) for name, most in _MOST_BYTES.items())
    yield from ((path, _SMALL) for path in folder.glob(FILES))
    measured = folder / FOLDER
    yield measured, 0
    if measured.is_dir():
        yield from ((path, _SMALL) for path in measured.glob("rank-*.json"))


class Follower:
    """Gives each complete line once. A file that shrank or was replaced is read from its start again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._inode = 0
        self._in_long_line = False
        self.restarted = False
        """Whether the last call read from the start again: what was given before no longer holds."""
        self.more = False
        """Whether the last call stopped before the end of the file."""

    def read(self, most_bytes: int = -1) -> list[dict[str, Any]]:
        """The objects of the lines that are new since the last call, of at most `most_bytes`; what is no object, or a line
        longer than that, is left out."""
        self.restarted = self.more = False
        try:
            with open(self._path, "rb") as file:
                self._check_same(file)
                file.seek(self._offset)
                content = file.read(most_bytes)
        except OSError:
            return []
        self.more = len(content) == most_bytes
        end = content.rfind(b"\n") + 1
        if end == 0:
            if self.more:
                self._offset, self._in_long_line = self._offset + len(content), True
            return []
        self._offset += end
        lines = content[: end - 1].split(b"\n")
        if self._in_long_line:
            lines, self._in_long_line = lines[1:], False
        return [row for line in lines if (row := json_object(line)) is not None]

    def blocks(self) -> Iterator[list[dict[str, Any]]]:
        """New rows, as `read` gives them, block by block to the end of the file."""
        yield self.read(_BLOCK_BYTES)
        while self.more:
            yield self.read(_BLOCK_BYTES)

    def _check_same(self, file: Any) -> None:
        inode = self._path.stat().st_ino
        size = file.seek(0, 2)
        if self._inode not in (0, inode) or size < self._offset:
            self._offset, self._in_long_line = 0, False
            self.restarted = True
        self._inode = inode


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
        self.last_row: Mapping[str, Any] = {}
        self.last_step = -1

    def add(self, row: Mapping[str, Any]) -> None:
        """Takes a row; what is no number that a run states is left out."""
        step = row.get("step")
        if type(step) is not int or not 0 <= step < MOST_STEP:
            return
        if step <= self.last_step:
            for column in self.columns.values():
                column.forget_from(step)
        self.last_row, self.last_step = row, step
        for key, value in row.items():
            number = quantity(key, value)
            if number is None or key == "step":
                continue
            if key not in self.columns:
                if len(self.columns) >= _MOST_COLUMNS or len(key) > _MOST_NAME:
                    continue
                self.columns[key] = Column()
            column = self.columns[key]
            column.steps.append(step)
            column.values.append(number)

    def step_times(self) -> Iterator[dict[str, Any]]:
        """Seconds of every step and of its copy to memory, as `results.goodput` takes them."""
        copies, times = (self.columns.get(key, Column()) for key in ("memory_copy_seconds", "step_seconds"))
        copied = dict(zip(copies.steps, copies.values, strict=True))
        for step, seconds in zip(times.steps, times.values, strict=True):
            yield {"step": step, "step_seconds": seconds, "memory_copy_seconds": copied.get(step)}

    def seconds_left(self, num_steps: int) -> float | None:
        """Time that the remaining steps take at the recent pace, evaluations and saves not counted."""
        seconds, left = self.latest("step_seconds", RECENT_STEPS), num_steps - self.last_step - 1
        return median(seconds) * left if seconds and left >= 0 else None

    def latest(self, key: str, count: int = 1) -> list[float]:
        """The newest values of a column; 0: all."""
        return list(self.columns[key].values[-count:]) if key in self.columns else []

    def table(self) -> dict[str, Any]:
        """All steps: `steps`, and by column its values, None where a step has none."""
        steps = sorted({step for column in self.columns.values() for step in column.steps})
        found: dict[str, list[float | None]] = {}
        for key, column in self.columns.items():
            values = dict(zip(column.steps, column.values, strict=True))
            found[key] = [None if (value := values.get(step)) is None else rounded(value) for step in steps]
        return {"steps": steps, "columns": found}


class RunRecord:
    """The metrics and events of a run's folder, followed while the run trains: what is new is read, nothing twice. `event`: what is
    kept of an event; `most_events`: how many of the newest are."""

    def __init__(
        self,
        folder: RunFolder,
        event: Callable[[Mapping[str, Any]], dict[str, Any]] = clean_row,
        most_events: int = 2**62,
    ) -> None:
        self._metrics_file, self._events_file = Follower(folder.metrics), Follower(folder.events)
        self._event, self._most_events = event, most_events
        self.metrics, self.events = StepMetrics(), list[dict[str, Any]]()

    def refresh(self) -> bool:
        """Reads what is new; whether there was anything."""
        found = False
        for rows in self._metrics_file.blocks():
            if self._metrics_file.restarted:
                self.metrics = StepMetrics()
            for row in rows:
                self.metrics.add(row)
            found |= bool(rows)
        for events in self._events_file.blocks():
            if self._events_file.restarted:
                self.events.clear()
            self.events += map(self._event, events)
            del self.events[: -self._most_events]
            found |= bool(events)
        return found


def rounded(value: float) -> float:
    """Seven digits: as many as a curve or a person needs, in a third of the text."""
    return float(f"{value:.{_DIGITS}g}")
