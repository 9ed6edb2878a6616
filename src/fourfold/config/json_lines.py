"""Files of one JSON object a line, which grow while a run goes on and may end in a line cut short.

A run of months leaves a million lines, so nobody holds all of them: readers take blocks from a place on, or lines from the end.
"""

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from pydantic_core import from_json

from fourfold.config.errors import FinalFailure, unwritable

_BLOCK_BYTES = 4 * 2**20
"""Bytes that are read at once. A longer line is no row."""
_SEEN_BYTES = 64
"""Bytes before the place of a reader by which it knows the file again."""


class JsonLines:
    """Appends one JSON object a line; each is on its way to the disk when `append` returns."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("a", encoding="utf-8")

    def append(self, values: Mapping[str, Any]) -> None:
        try:
            self._file.write(json.dumps(values) + "\n")
            self._file.flush()
        except OSError as error:
            raise FinalFailure(unwritable(self._path, error)) from None

    def close(self) -> None:
        self._file.close()


class Follower:
    """Gives each complete line of a file once, block by block. A file that was replaced is read from its start again, and so is one
    that shrank, unless its reader goes `back_to` a place before."""

    def __init__(self, path: Path, begin: int = 0) -> None:
        self._path = path
        self.offset = begin
        """Where the next block begins."""
        self._inode, self._seen = 0, b""
        self._in_long_line = False
        self.restarted = False
        """Whether the last call read from the start again: what was given before no longer holds."""
        self.more = False
        """Whether the last call stopped before the end of the file."""

    def read(self, most_bytes: int = -1) -> list[dict[str, Any]]:
        """The objects of the lines that are new since the last call, of at most `most_bytes`; what is no object, or a line
        longer than that, is left out."""
        self.restarted = self.more = False
        try:
            with open(self._path, "rb") as file:
                if not self._is_same(file):
                    self.back_to(0)
                    self.restarted = True
                self._inode = os.fstat(file.fileno()).st_ino
                file.seek(self.offset)
                content = file.read(most_bytes)
        except OSError:
            return []
        self.more = len(content) == most_bytes
        end = content.rfind(b"\n") + 1
        if end == 0:
            if self.more:
                self.offset, self._in_long_line = self.offset + len(content), True
                self._seen = content[-_SEEN_BYTES:]
            return []
        self.offset += end
        self._seen = content[max(0, end - _SEEN_BYTES) : end]
        lines = content[: end - 1].split(b"\n")
        if self._in_long_line:
            lines, self._in_long_line = lines[1:], False
        return [row for line in lines if (row := json_object(line)) is not None]

    def blocks(self) -> Iterator[list[dict[str, Any]]]:
        """New rows, as `read` gives them, block by block to the end of the file."""
        yield self.read(_BLOCK_BYTES)
        while self.more:
            yield self.read(_BLOCK_BYTES)

    def unended(self) -> dict[str, Any] | None:
        """The object of a last line that has no end; None where it holds none, or may still grow to one."""
        with suppress(OSError), open(self._path, "rb") as file:
            file.seek(self.offset)
            return None if self._in_long_line else json_object(file.read(_BLOCK_BYTES))
        return None

    def has_shrunk(self) -> int | None:
        """The size of the file where it is the one that was read, cut short; else None."""
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_size if found.st_ino == self._inode and found.st_size < self.offset else None

    def back_to(self, offset: int) -> None:
        """Goes on from an earlier place, at which a line begins."""
        self.offset, self._seen, self._in_long_line = offset, b"", False

    def _is_same(self, file: IO[bytes]) -> bool:
        """Whether the file goes on behind what was read of it."""
        if self._inode not in (0, os.fstat(file.fileno()).st_ino) or file.seek(0, 2) < self.offset:
            return False
        file.seek(self.offset - len(self._seen))
        return file.read(len(self._seen)) == self._seen


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file, one a line; what is no object (a line cut short), or longer than any row, is left out. Empty where it
    is missing."""
    follower = Follower(path)
    for rows in follower.blocks():
        yield from rows
    if (row := follower.unended()) is not None:
        yield row


def newest_first(path: Path) -> Iterator[dict[str, Any]]:
    """The objects that `read_jsonl` gives, the last one first: as much of the file is read as is asked for."""
    for _, line in lines_from_end(path):
        if (row := json_object(line)) is not None:
            yield row


def lines_from_end(path: Path, block_bytes: int = 2**16) -> Iterator[tuple[int, bytes]]:
    """The lines of a file, the last one first, each with the place of its first byte; without those longer than any row. Empty
    where it is missing."""
    with suppress(OSError), open(path, "rb") as file:
        begin, rest, is_long = file.seek(0, 2), b"", False
        while begin > 0:
            size = min(begin, block_bytes, _BLOCK_BYTES)
            block_bytes *= 2
            begin -= size
            file.seek(begin)
            first, *lines = (file.read(size) + rest).split(b"\n")
            place = begin + len(first) + 1
            found = []
            for line in lines:
                found.append((place, line))
                place += len(line) + 1
            if found and is_long:
                found.pop()
            is_long = (is_long and not lines) or len(first) > _BLOCK_BYTES
            rest = b"" if is_long else first
            yield from ((at, line) for at, line in reversed(found) if line)
        if rest and not is_long:
            yield 0, rest


def finite(value: Any, digits: int | None = None) -> Any:
    """The value with null for each number that JSON has not: NaN and the infinities. `digits`: of numbers that are no integers."""
    if isinstance(value, dict):
        return {key: finite(each, digits) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each, digits) for each in value]
    if not isinstance(value, float):
        return value
    return None if not math.isfinite(value) else value if digits is None else float(f"{value:.{digits}g}")


def json_object(line: bytes) -> dict[str, Any] | None:
    """The object of a line; None where it holds none."""
    try:
        row = from_json(line)  # three times as fast as what reads all that Python takes for JSON
    except ValueError:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            return None
    return row if isinstance(row, dict) else None
