"""How far a long command is, on stderr: a bar of a search, a line with the time left of a computation."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fourfold.plain_text import own_codes
from fourfold.plan.search import Progress as Report
from fourfold.report.display import Terminal
from fourfold.report.units import format_seconds

SILENT_SECONDS = 1.0
LINE_SECONDS = 5.0


@contextmanager
def showing(silent: bool) -> Iterator[Report]:
    """Gives the function that a search reports to. It writes to stderr."""
    console = Terminal(errors=True)
    if silent or not console.is_terminal:
        yield _lines(silent)
        return
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn(), console=console,
        transient=True,
    )  # fmt: skip
    started = time.monotonic()
    task = bar.add_task("")

    def report(what: str, share: float) -> None:
        if time.monotonic() - started > SILENT_SECONDS:
            bar.start()
            bar.update(task, description=what, completed=100 * share)

    try:
        yield report
    finally:
        bar.stop()


def _lines(silent: bool) -> Report:
    last = time.monotonic()

    def report(what: str, share: float) -> None:
        nonlocal last
        if not silent and time.monotonic() - last > LINE_SECONDS:
            last = time.monotonic()
            print(f"{what}: {100 * share:.0f} %", file=sys.stderr, flush=True)

    return report


_QUIET_SECONDS = 1.0
_LINE_SECONDS = 10.0


class Countdown:
    """Called with (done, total). Says nothing in the first second; nothing at all where it is done by then."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._begun = self._last = time.monotonic()
        self._terminal = sys.stderr.isatty()
        self._shown = False

    def __enter__(self) -> "Countdown":
        return self

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        pause = (0.2 if self._shown else _QUIET_SECONDS) if self._terminal else _LINE_SECONDS
        if now - self._last < pause or not done:
            return
        self._last, self._shown = now, True
        left = (now - self._begun) / done * (total - done)
        line = f"{done} of {total} {self._what}, {format_seconds(left)} left"
        end, file = "" if self._terminal else "\n", own_codes(sys.stderr)
        print(f"\r\x1b[2K{line}" if self._terminal else line, end=end, file=file, flush=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._terminal and self._shown:
            print("\r\x1b[2K", end="", file=own_codes(sys.stderr), flush=True)
