"""SHA-256 of large files: over every byte once, then by what the file system says of them."""

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

from fourfold.config import RunFailure
from fourfold.config.whole_file import bounded, write_whole


def file_digests(paths: Sequence[Path], record: Path) -> list[str]:
    """SHA-256 of each file, in hexadecimal.

    `record` is a JSON file that keeps digests with the size, inode, and times of change that each file had: where these are as
    they were, the digest is taken from it, and else made anew over every byte and written there, if that can be written. Files
    below the record's folder are known by their path from there, so that a folder may be moved with it.
    Raises `RunFailure` for a file that cannot be read, or that changes while it is read.
    """
    known = _read(record)
    found: dict[str, list[Any]] = {}
    for path in paths:
        name = _name(path, record)
        try:
            state = _state(path)
            old = known.get(name)
            found[name] = old if isinstance(old, list) and old[:-1] == state else [*state, _digest(path)]
            if _state(path) != state:
                raise RunFailure(f"{path}: changes while it is read; wait until it has been written")
        except OSError as error:
            raise RunFailure(f"{path}: cannot be read: {error.strerror}") from None
    if any(known.get(name) != entry for name, entry in found.items()):
        with suppress(OSError):
            record.parent.mkdir(parents=True, exist_ok=True)
            write_whole(record, json.dumps({**known, **found}, indent=1))
    return [str(found[_name(path, record)][-1]) for path in paths]


def _name(path: Path, record: Path) -> str:
    full = path.absolute()
    folder = record.absolute().parent
    return full.relative_to(folder).as_posix() if full.is_relative_to(folder) else str(full)


def _state(path: Path) -> list[int]:
    """Size, inode, and the times at which content and attributes changed: somebody may set back the first of these."""
    state = os.stat(path)
    return [state.st_size, state.st_ino, state.st_mtime_ns, state.st_ctime_ns]


def _digest(path: Path) -> str:
    with open(path, "rb") as stream:
        return file_digest(stream, sha256).hexdigest()


def _read(record: Path) -> dict[str, Any]:
    try:
        table = json.loads(bounded(record))
    except (OSError, ValueError, RecursionError):
        return {}
    return table if isinstance(table, dict) else {}
