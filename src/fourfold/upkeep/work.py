"""A work on a run's checkpoints that is tried until it is done, each failure an event."""

import threading
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from fourfold.checkpoint.waiting import Done, attempt_at
from fourfold.config import FinalFailure, RunConfig, RunFailure, UserError
from fourfold.config.errors import error_text
from fourfold.config.remote_path import is_remote
from fourfold.launch.run_folder import RunFolder
from fourfold.train.metrics import append_event

_PAUSE_SECONDS, _REMOTE_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.5, 10.0, 60.0
LAST_TRIES = 5
"""Failures in a row after which a work gives up once training has ended."""


class Log:
    """Events of this process, and its record of what is done, which both works share."""

    def __init__(self, out: Path) -> None:
        self._out, self._lock, self._done = out, threading.Lock(), Done()
        self.record()

    def event(self, name: str, **values: Any) -> None:
        with self._lock, suppress(RunFailure, OSError):  # a full disk: the run itself says so
            append_event(self._out, name, **values)

    def record(self, busy: tuple[str, int | None] = ("", None), **done: dict[int, str]) -> None:
        """Writes what a work is at, or what is done now. Raises `OSError`."""
        with self._lock:
            work, step = busy
            self._done.busy.pop(work, None)
            if step is not None:
                self._done.busy[work] = step
            for name, steps in done.items():
                setattr(self._done, name, steps)
            self._done.write(self._out)


class CheckpointWork:
    """One kind of work: `due` finds the checkpoint to work on, `do` works on it."""

    name = ""
    """The name of its events; of failures, `NAME_failed`."""

    def __init__(
        self, folder: RunFolder, config: RunConfig, ends: Collection[int], closing: threading.Event, log: Log
    ) -> None:
        """`ends`: of the run's stages. `closing`: set when training has ended."""
        self.folder, self.config, self.ends, self.closing, self.log = folder, config, ends, closing, log
        self.section = config.checkpoint
        self.tries = 0
        self._attempts: dict[Path, tuple[int, str | None]] = {}
        self._is_over = False

    def due(self, saved: dict[int, Path]) -> int | None:
        """The step of the checkpoint to work on; None where nothing is left. `saved`: those on the disk, by step. Raises
        `OSError`."""
        raise NotImplementedError

    def do(self, step: int, path: Path) -> dict[str, Any]:
        """Works on a checkpoint; values of the event. Raises `OSError`, `UserError`, `RunFailure`."""
        raise NotImplementedError

    def end(self) -> None:
        """Called when all works have ended."""

    def run(self) -> None:
        """Works until training has ended and nothing is left to do, or cannot be done."""
        while not self._is_over:
            closes, step, failed = (
                self.closing.is_set(),
                None,
                False,
            )  # before the look: what was saved by then is found
            try:
                saved = self.folder.checkpoints_on_disk(self.config)
                step = self.due(saved)
                if step is not None:
                    self._work_on(step, saved[step])
                    continue
                self.tries = 0
            except Exception as error:
                self._failed(step, error, closes)
                failed = True
            if closes and (not failed or self.tries > LAST_TRIES):
                return
            self._wait()

    def attempt(self, path: Path) -> str | None:
        """The name of the save that wrote a checkpoint, which is read again where its manifest changed."""
        with suppress(OSError, AttributeError):
            changed = (path / "manifest.json").stat().st_mtime_ns
            if self._attempts.get(path, (0, None))[0] != changed:
                self._attempts[path] = changed, attempt_at(path)
            return self._attempts[path][1]
        return attempt_at(path)

    def _work_on(self, step: int, path: Path) -> None:
        begun = time.monotonic()
        self.log.record((self.name, step))
        try:
            values = self.do(step, path)
        finally:
            self.log.record((self.name, None))
        tried = {"tries": self.tries + 1} if self.tries else {}
        self.tries = 0
        self.log.event(self.name, step=step, **values, seconds=time.monotonic() - begun, **tried)

    def _failed(self, step: int | None, error: Exception, closes: bool) -> None:
        """Tells the first failure in a row, and then each at twice as many."""
        self.tries += 1
        self._is_over = isinstance(error, FinalFailure)
        text = str(error) if isinstance(error, UserError | OSError) else error_text(error)
        where = {} if step is None else {"step": step}
        gives_up = self._is_over or (closes and self.tries > LAST_TRIES)
        if self.tries & (self.tries - 1) == 0 or gives_up:
            follows = "it is given up" if gives_up else "it is tried again"
            self.log.event(f"{self.name}_failed", **where, tries=self.tries, message=f"{text}; {follows}")

    def _wait(self) -> None:
        calm = _REMOTE_PAUSE_SECONDS if is_remote(self.folder.checkpoint_root(self.config)) else _PAUSE_SECONDS
        pause = min(_LONGEST_PAUSE_SECONDS, calm * 2.0**self.tries)
        if self.closing.is_set():
            time.sleep(min(pause, 8.0) if self.tries else 0.0)
        else:
            self.closing.wait(pause)
