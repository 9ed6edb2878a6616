"""The files of a run as displays read them: which may be there, and what is new in them."""

import os
import stat
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fourfold.config import UserError
from fourfold.config.json_lines import Follower
from fourfold.config.run_rows import clean_row
from fourfold.launch.run_folder import DATA_FILE, EVENTS, LAYERS, METRICS, RUN_FILE, RunFolder
from fourfold.report.step_metrics import MOST_POINTS, Rows, StepCurve, StepMetrics
from fourfold.results.goodput import Launches
from fourfold.runtime.progress import FILES
from fourfold.simulate.paused_garbage_collection import without_collection
from fourfold.train.measured import FOLDER

_SMALL, _LARGE = 64 * 2**20, 4 * 2**30
_MOST_BYTES = {RUN_FILE: _SMALL, DATA_FILE: _SMALL, METRICS: _LARGE, EVENTS: _LARGE, LAYERS: _LARGE}


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


_PLACE_BYTES, _MOST_PLACES = 2**20, 1024
KEPT_EVENTS = 2_000
"""Newest events that are kept; what earlier ones say of the run's time is."""


class RunRecord:
    """The metrics and events of a run's folder, followed while the run trains: what is new is read, nothing twice. Its memory does
    not grow with the run: it has bins of metrics, and the newest events. `event`: what is kept of an event."""

    def __init__(self, folder: RunFolder, event: Callable[[Mapping[str, Any]], dict[str, Any]] = clean_row) -> None:
        self._metrics_path = folder.metrics
        self._metrics_file, self._events_file = Follower(folder.metrics), Follower(folder.events)
        self._event = event
        self.behind = False
        self._restart_metrics()
        self._restart_events()

    @without_collection()
    def refresh(self, most_blocks: int = 0) -> bool:
        """Reads what is new; whether there was anything. `most_blocks`: of some MB of metrics, so that whoever watches ranks is not
        held up by what earlier launches left; 0: all. It is `behind` while there are more."""
        if (size := self._metrics_file.has_shrunk()) is not None:
            self._go_back(size)
        found, begin = False, self._metrics_file.offset
        for number, rows in enumerate(self._metrics_file.blocks(), 1):
            if self._metrics_file.restarted:
                self._restart_metrics()
                begin = 0
            if self._skip_below:
                rows = [row for row in rows if isinstance(row.get("step"), int) and row["step"] >= self._skip_below]
            self._note_place(rows, begin)
            self.metrics.add(rows)
            begin = self._metrics_file.offset
            found |= bool(rows)
            if number == most_blocks:
                break
        self.behind = self._metrics_file.more
        for events in self._events_file.blocks():
            if self._events_file.restarted:
                self._restart_events()
            for event in map(self._event, events):
                self.take(event)
            del self.events[:-KEPT_EVENTS]
            found |= bool(events)
        return found

    def take(self, event: dict[str, Any]) -> None:
        """Adds an event, the newest."""
        self.events.append(event)
        self.num_events += 1
        self.launches.add(event)

    def curves(self, first: int, last: int) -> dict[str, StepCurve]:
        """Every number from step `first` to `last`. Where bins are too wide for that, its rows are read again."""
        metrics = self.metrics
        last = min(last, metrics.last_step)
        if metrics.width > 1 and (last - first) // metrics.width < MOST_POINTS // 2:
            metrics = StepMetrics(begin=first)
            for rows in self._rows_between(first, last):
                metrics.add(rows)
        return {key: metrics.curve(key, first, last) for key in metrics.columns}

    def _restart_metrics(self) -> None:
        self.metrics = StepMetrics(read_again=self._rows_between)
        self._places: list[tuple[int, int]] = []
        """Rising pairs of a step and where its row begins in the file, a MB apart at least."""
        self._skip_below = 0

    def _restart_events(self) -> None:
        self.events, self.num_events, self.launches = list[dict[str, Any]](), 0, Launches()

    def _note_place(self, rows: Rows, begin: int) -> None:
        """Notes where a block of rows begins."""
        step = next((step for row in rows if type(step := row.get("step")) is int), None)
        if step is None or (self._places and begin - self._places[-1][1] < _PLACE_BYTES):
            return
        while self._places and self._places[-1][0] >= step:
            self._places.pop()
        self._places.append((step, begin))
        if len(self._places) > _MOST_PLACES:
            del self._places[1::2]

    def _rows_between(self, first: int, last: int) -> Iterator[Rows]:
        """The rows of steps from `first` to `last`, as the file has them now."""
        number = bisect_right(self._places, first, key=lambda place: place[0]) - 1
        end = next((offset for step, offset in self._places if step > last), None)
        follower = Follower(self._metrics_path, self._places[number][1] if number >= 0 else 0)
        for rows in follower.blocks():
            yield [row for row in rows if type(step := row.get("step")) is int and first <= step <= last]
            if end is not None and follower.offset >= end:
                return

    def _go_back(self, size: int) -> None:
        """Drops the steps that are no longer in a file that was cut to `size` bytes."""
        stays = [step for step, offset in self._places if offset < size]
        begin = self.metrics.forget_from(stays[-1]) if stays else 0
        while self._places and self._places[-1][0] > begin:
            self._places.pop()
        if not self._places:
            self._restart_metrics()
        self._metrics_file.back_to(self._places[-1][1] if self._places else 0)
        self._skip_below = begin if self._places else 0
