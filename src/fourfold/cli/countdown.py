"""How far a long computation is, and the time left: one line rewritten on a terminal, a line now and then elsewhere; on stderr."""

import sys
import time
from types import TracebackType

from fourfold.plain_text import own_codes
from fourfold.report.units import format_seconds

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
