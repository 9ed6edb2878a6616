"""A text file that is there in full or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO


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
