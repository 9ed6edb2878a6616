"""A long computation's line is seen while it runs, and is gone when it ends."""

import io
import sys
import time

import pytest

from fourfold.cli.progress import Countdown


class Terminal(io.StringIO):
    """Shows what was flushed alone."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal, self.shown = terminal, ""

    def isatty(self) -> bool:
        return self.terminal

    def flush(self) -> None:
        self.shown = self.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_how_far_it_is_is_shown_at_once(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    error, now = Terminal(terminal), [0.0]
    monkeypatch.setattr(sys, "stderr", error)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with Countdown("layouts") as countdown:
        for now[0], done in ((0.5, 1), (20.0, 2), (20.1, 3), (40.0, 4)):
            countdown(done, 8)
            shown = error.shown.rpartition("\x1b[2K")[2].rstrip().rpartition("\n")[2]
            assert shown == {1: "", 4: "4 of 8 layouts, 0:40 left"}.get(done, "2 of 8 layouts, 1:00 left")
    assert error.getvalue().endswith("\r\x1b[2K") == terminal
