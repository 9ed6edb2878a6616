"""The logs of ranks, whose standard output and error they are, kept from filling the disk.

A rank writes for as long as a run lasts, by a descriptor that stays open, so its log cannot be renamed. Once that has grown past
`LARGEST_BYTES` its text moves to a file beside it, in place of the one that was there, and the log begins anew: at most twice that.
"""

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

LARGEST_BYTES = 64 << 20


def open_log(path: Path, anew: bool) -> BinaryIO:
    """The log, to append to; empty if `anew`. Raises `OSError`."""
    if anew:
        with open(path, "wb"):
            earlier_log(path).unlink(missing_ok=True)
    return open(path, "ab")


def earlier_log(path: Path) -> Path:
    """Where the log's text goes once there is too much of it."""
    return path.with_name(f"{path.name}.1")


def bound_log(path: Path) -> bool:
    """Moves the text of a log that is too large; whether it was. Text that a rank writes between copy and cut, some
    microseconds, is lost. Where the disk is full the log is cut all the same, for that may be what filled it."""
    try:
        if os.stat(path).st_size <= LARGEST_BYTES:
            return False
    except OSError:
        return False
    with suppress(OSError):
        shutil.copyfile(path, earlier_log(path))
    with suppress(OSError):
        os.truncate(path, 0)
        return True
    return False
