"""A number that only rises, by which a group of ranks that was replaced is kept from committing a checkpoint.

Whoever starts ranks raises the number in the run's folder first, and gives it to them. A commit holds the file's lock and looks
whether the number is still its own: between that look and the rename nobody can raise it. A group that was cut off, and does not
know that another took its place, therefore commits nothing, on whatever step it is. (A fencing token: M. Kleppmann, "How to do
distributed locking", 2016.)
"""

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import BinaryIO

from fourfold.config import FinalFailure

_FILE = ".fence"


class ReplacedRanks(FinalFailure):
    """A group of ranks in whose place another was started."""


def raise_fence(folder: Path, above: int = 0) -> int:
    """A number above all earlier ones of the run in `folder`; groups that have those commit no more. `above`: one that is known
    even where the file was deleted. Raises `OSError`."""
    with _opened(folder) as file:
        number = max(_number(file), above) + 1
        _write(file, number)
        return number


def newest_fence(folder: Path) -> int:
    """The number of those who started ranks last; 0 where there is none, or it cannot be read now."""
    try:
        with open(folder / _FILE, "rb") as file:
            return _number(file)
    except OSError:
        return 0


def fenced(folder: Path, number: int | None) -> AbstractContextManager[None]:
    """While it is entered nobody raises the number. Raises `ReplacedRanks` where somebody did. None: ranks without a supervisor."""
    return nullcontext() if number is None else _fenced(folder, number)


@contextmanager
def _fenced(folder: Path, number: int) -> Iterator[None]:
    with _opened(folder) as file:
        newest = _number(file)
        if newest < number:  # somebody deleted the file: who comes next must see the number
            _write(file, number)
        if newest > number:
            raise ReplacedRanks(
                f"{folder}: these ranks were replaced by others (start {newest}, this is {number}), which alone may save"
            )
        yield


@contextmanager
def _opened(folder: Path) -> Iterator[BinaryIO]:
    """The file, which is made where it is missing, and its lock."""
    with open(os.open(folder / _FILE, os.O_RDWR | os.O_CREAT, 0o644), "r+b") as file, _locked(file):
        yield file


def _write(file: BinaryIO, number: int) -> None:
    file.seek(0)
    file.truncate()
    file.write(b"%d\n" % number)
    file.flush()
    os.fsync(file.fileno())


@contextmanager
def _locked(file: BinaryIO) -> Iterator[None]:
    """Holds the lock, which ends with the process; on a file system without locks the look alone remains."""
    try:
        fcntl.lockf(file, fcntl.LOCK_EX)
    except OSError:
        yield
        return
    try:
        yield
    finally:
        fcntl.lockf(file, fcntl.LOCK_UN)


def _number(file: BinaryIO) -> int:
    file.seek(0)
    text = file.read(32).strip()
    return int(text) if re.fullmatch(rb"[0-9]{1,18}", text) else 0
