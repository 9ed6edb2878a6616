"""How far a search is: a bar on a terminal once it takes more than a second, a line every few seconds elsewhere."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fourfold.plan.bounding import Progress as Report
from fourfold.report.console import Terminal

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
