"""A run's private folder in the memory of its machine (a tmpfs), which outlives the run's processes.

Its name is drawn at random and stands in the run's folder. Nobody else may enter it: it is used only where it is the user's own and
closed to others.
"""

import os
import re
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from fourfold.config.whole_file import write_whole

TMPFS = Path("/dev/shm")
_FILE = ".memory"
_NAME = re.compile(r"fourfold-[A-Za-z0-9_]{8,32}")


def memory_folder(run: Path) -> Path | None:
    """The folder of the run in `run`; None where it has none, or not one of its own."""
    with suppress(OSError, ValueError):
        name = (run / _FILE).read_text(encoding="utf-8")
        if _NAME.fullmatch(name):
            found = os.lstat(TMPFS / name)
            if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077:
                return TMPFS / name
    return None


def open_memory_folder(run: Path) -> Path:
    """The folder of the run, made where there is none. Raises `OSError`."""
    found = memory_folder(run)
    if found is None:
        found = Path(tempfile.mkdtemp(prefix="fourfold-", dir=TMPFS))
        try:
            write_whole(run / _FILE, found.name)
        except OSError:
            found.rmdir()
            raise
    return found


def close_memory_folder(run: Path) -> None:
    """Frees the memory."""
    found = memory_folder(run)
    if found is not None:
        shutil.rmtree(found, ignore_errors=True)
    (run / _FILE).unlink(missing_ok=True)
