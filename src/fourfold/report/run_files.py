"""The files of a run's folder that may be somebody else's: regular files inside it, or a refusal."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from fourfold.config import UserError
from fourfold.launch.run_folder import DATA_FILE, EVENTS, METRICS, RUN_FILE
from fourfold.runtime.progress import FILES
from fourfold.train.measured import FOLDER

_SMALL, _LARGE = 64 * 2**20, 4 * 2**30
_MOST_BYTES = {RUN_FILE: _SMALL, DATA_FILE: _SMALL, METRICS: _LARGE, EVENTS: _LARGE}


def check_files(folder: Path) -> None:
    """Raises `UserError` where a file that is read is a pipe or a device, a link out of the folder, or longer than any run's."""
    inside = Path(os.path.realpath(folder))
    for path, most in _read_files(inside):
        try:
            found = os.stat(path)
        except FileNotFoundError:
            if path.is_symlink():
                raise UserError(f"{path}: is a link to nothing; what works: a folder as a run left it") from None
            continue
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {error.strerror}") from None
        if not Path(os.path.realpath(path)).is_relative_to(inside):
            raise UserError(
                f"{path}: is a link out of the run's folder, which is not followed; what works: a copy of the file"
            )
        kind = stat.S_ISDIR if path.name == FOLDER else stat.S_ISREG
        if not kind(found.st_mode):
            raise UserError(
                f"{path}: is no {'folder' if path.name == FOLDER else 'file'}; what works: a folder as a run left it"
            )
        if kind is stat.S_ISREG and found.st_size > most:
            raise UserError(f"{path}: has {found.st_size} bytes; allowed: {most}")


def _read_files(folder: Path) -> Iterator[tuple[Path, int]]:
    yield from ((folder / name, most) for name, most in _MOST_BYTES.items())
    yield from ((path, _SMALL) for path in folder.glob(FILES))
    measured = folder / FOLDER
    yield measured, 0
    if measured.is_dir():
        yield from ((path, _SMALL) for path in measured.glob("rank-*.json"))
