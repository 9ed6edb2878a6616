"""The launcher's side of the process beside a run."""

import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from fourfold.config import RunConfig
from fourfold.train.metrics import append_event

LOG = "logs/upkeep.log"
_TOLD_SECONDS = 2.0


class Upkeep:
    """The process of one launch, where its run asks for copies or exports."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self, config: RunConfig) -> None:
        """Starts the process, once the run's folder is written; again where it died. Whatever fails is an event."""
        section = config.checkpoint
        if section.copy_to is None and section.export_every_steps is None and not section.export_stage_ends:
            return
        if self._process is not None and self._process.poll() is None:
            return
        try:
            with open(self._out / LOG, "ab" if self._process is not None else "wb") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "fourfold.upkeep", str(self._out)],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            self._tell(f"it could not be started: {error.strerror}")

    def end(self, tell: Callable[[str], None]) -> None:
        """Returns when nothing is left to do, or cannot be done; a line of `tell` where that takes longer. Ctrl-C leaves it to the
        process, which then ends by itself."""
        process, self._process = self._process, None
        if process is None:
            return
        try:
            with suppress(OSError):
                if process.stdin is not None:
                    process.stdin.close()
            try:
                process.wait(_TOLD_SECONDS)
            except subprocess.TimeoutExpired:
                tell("copies and exports of checkpoints are not done yet; Ctrl-C leaves them to their own process")
                process.wait()
        except KeyboardInterrupt:
            return
        if process.returncode:
            self._tell(f"it ended with code {process.returncode}: see {LOG}")

    def _tell(self, what: str) -> None:
        with suppress(Exception):
            append_event(self._out, "copy_failed", message=f"the process of copies and exports: {what}")
