"""Waits for what happens, however long the machine's load makes it take: the suite's limit of a test is the only one. And what a
process has cost, whoever else has the machine."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from subprocess import Popen
from typing import Any


def until(
    condition: Callable[[], Any], alive: Popen[Any] | None = None, message: str = "it did not come to hold"
) -> None:
    """Returns once the condition holds. `alive`: a process that brings it about; fails where that has ended without. `message`:
    printed where the wait is cut off."""
    try:
        while not condition():
            ended = alive is not None and alive.poll() is not None
            assert not ended or condition(), f"the process ended with {alive.returncode if alive else 0} before it held"
            time.sleep(0.01)
    except BaseException:
        print(message)
        raise


def processor_seconds(pid: int) -> float:
    """Seconds of a processor that a process, those that it started and theirs have taken, of those that live."""
    ticks, waiting = 0, [pid]
    while waiting:
        with suppress(OSError):  # it has ended
            place = Path(f"/proc/{waiting.pop()}")
            ticks += sum(map(int, (place / "stat").read_text().rpartition(")")[2].split()[11:13]))
            for each in place.glob("task/*/children"):
                waiting += map(int, each.read_text().split())
    return ticks / os.sysconf("SC_CLK_TCK")
