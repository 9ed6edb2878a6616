"""Files read or written in one piece: never half of one, and never without end."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from fourfold.config.remote_path import RemotePath

MAX_BYTES = 64 * 2**20


def bounded(path: Path, max_bytes: int = MAX_BYTES) -> bytes:
    """The bytes of a regular file. Raises `OSError`, and `ValueError` where it is none or longer than it may be."""
    if path.exists() and not path.is_file():
        raise ValueError("it is not a file")
    if isinstance(path, RemotePath):
        data = path.read_range(0, max_bytes + 1)
    else:
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ValueError(f"it is longer than {max_bytes} bytes")
    return data


@contextmanager
def whole_file(path: Path) -> Iterator[TextIO]:
    """A file to write, aside, that takes the place of `path` when the block ends; where the block fails, `path` is as it was.
    Raises `OSError` where the disk refuses."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with aside.open("w", encoding="utf-8") as file:
            yield file
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def write_whole(path: Path, text: str) -> None:
    """Writes a small file in one piece. Raises `OSError`."""
    with whole_file(path) as file:
        file.write(text)
