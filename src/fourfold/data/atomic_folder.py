"""A folder that is there in full or not at all, whoever else builds it and whenever it is interrupted."""

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from fourfold.config import RunFailure


def ensure_folder(folder: Path, build: Callable[[Path], None]) -> bool:
    """Makes `folder` by `build(temporary folder)` and a rename, unless it is there. Returns whether it was built here.

    One process builds while others that want the same folder wait for it; where the file system has no locks both
    build and the first rename counts. The next build removes what an interrupted one left behind. Raises
    `RunFailure` when the disk refuses.
    """
    if folder.is_dir():
        return False
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.parent / f".{folder.name}.lock") as alone:
            if folder.is_dir():
                return False
            if alone:
                for leftover in folder.parent.glob(f".{folder.name}.building-*"):
                    shutil.rmtree(leftover, ignore_errors=True)
            with tempfile.TemporaryDirectory(prefix=f".{folder.name}.building-", dir=folder.parent) as outer:
                # A temporary folder is its owner's alone; one made inside it has the usual permissions.
                inner = Path(outer, folder.name)
                inner.mkdir()
                build(inner)
                return _rename(inner, folder)
    except OSError as error:
        raise RunFailure(f"data.directory = {str(folder.parent)!r}: cannot be written: {error}") from None


def _rename(temporary: Path, folder: Path) -> bool:
    try:
        temporary.rename(folder)
    except OSError:
        if folder.is_dir():
            return False
        raise
    return True


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Holds an advisory lock, which the system drops when the process ends. Yields False where there are no locks."""
    with open(path, "w") as stream:
        yield _lock(stream)


def _lock(stream: IO[str]) -> bool:
    try:
        import fcntl

        fcntl.flock(stream, fcntl.LOCK_EX)
    except (ImportError, OSError):
        return False
    return True
