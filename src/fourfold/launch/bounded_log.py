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


def bound_log(path: Path) -> int:
    """Moves the text of a log that is too large; how many bytes, 0 where it is not. Text that a rank writes between copy and cut,
    some microseconds, is lost. Where the disk is full the log is cut all the same, for that may be what filled it."""
    try:
        size = os.stat(path).st_size
        if size <= LARGEST_BYTES:
            return 0
    except OSError:
        return 0
    with suppress(OSError):
        shutil.copyfile(path, earlier_log(path))
        size = os.stat(earlier_log(path)).st_size
    with suppress(OSError):
        os.truncate(path, 0)
        return size
    return 0


def read_log_end(path: Path, since: int, most: int) -> bytes:
    """The last bytes of a log, at most so many. `since`: from which byte of the log on; below 0 it is so many bytes back in what
    was moved. Raises `OSError`."""
    end = _read_end(path, max(since, 0), most)
    if since >= 0 or len(end) == most:
        return end
    with suppress(OSError):
        earlier = earlier_log(path)
        end = _read_end(earlier, max(0, os.stat(earlier).st_size + since), most - len(end)) + end
    return end


def _read_end(path: Path, since: int, most: int) -> bytes:
    with open(path, "rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(since, file.tell() - most))
        return file.read(most)
