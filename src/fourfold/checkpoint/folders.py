"""The folders of a run's checkpoints: their names, which are complete and which stay, and how one appears and goes in a single
step."""

import errno
import itertools
import os
import re
import resource
import shutil
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fourfold.config.remote_path import RemotePath, is_remote

MANIFEST = "manifest.json"
_STEP = re.compile(r"step-(\d{6,})")
_ASIDE = ".tmp-"
_REPLACED = ".old-"
FULL_DISK = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))


@dataclass(frozen=True)
class Retention:
    """`newest`: how many of the latest stay. For good: multiples of `every`, and `steps`. `best`: the step that stays whatever
    comes. `most`: how many there may be; None: any number."""

    newest: int
    every: int | None = None
    steps: frozenset[int] = frozenset()
    best: int | None = None
    most: int | None = None

    def to_delete(self, saved: Sequence[int], waiting: Collection[int] = ()) -> list[int]:
        """The steps to delete among those that are saved, rising. `waiting`: those that stay for now, where there is room; they go
        before one that is kept for good."""
        latest = set(saved[-max(self.newest, 1) :])
        safe = latest | {self.best}
        stays = [step for step in saved if step in safe or step in waiting or self._is_for_good(step)]
        spare = sorted((step for step in stays if step not in safe), key=self._is_for_good)
        beyond = max(0, len(stays) - self.most) if self.most is not None else 0
        kept = set(stays) - set(spare[:beyond])
        return [step for step in saved if step not in kept]

    def _is_for_good(self, step: int) -> bool:
        return step in self.steps or (self.every is not None and step % self.every == 0)


def most_of(max_bytes: int | None, each: int) -> int | None:
    """How many checkpoints of so many bytes there may be: one at least."""
    return None if max_bytes is None else max(1, max_bytes // max(1, each))


def stages_end(ends: Collection[int], is_kept: bool) -> frozenset[int]:
    """The steps at which a run's stages but the last end, where their checkpoints are kept."""
    return frozenset(sorted(ends)[:-1]) if is_kept else frozenset()


def step_folder(root: Path, step: int) -> Path:
    """Where the checkpoint of a step stands once it is complete."""
    return root / f"step-{step:06d}"


def aside(folder: Path) -> Path:
    """Where a folder is written before it is renamed into place: beside it, so that the rename is one atomic step. A remote folder
    is written in place: it is a checkpoint once its manifest, the last object written, is there."""
    if is_remote(folder):
        return folder
    return folder.with_name(_ASIDE + folder.name)


def step_of(folder: Path) -> int | None:
    """The step in a checkpoint folder's name, or None where `step_folder` gives no such name."""
    match = _STEP.fullmatch(folder.name)
    return int(match[1]) if match and folder.name == step_folder(folder, int(match[1])).name else None


def step_folders(root: Path) -> list[Path]:
    """The folders below `root` that are named as a checkpoint, oldest step first, whatever they hold."""
    found = []
    with suppress(FileNotFoundError, NotADirectoryError):
        found = [(step, path) for path in root.iterdir() if (step := step_of(path)) is not None and path.is_dir()]
    return [path for _, path in sorted(found)]


def checkpoints(root: Path) -> list[Path]:
    """The complete checkpoints below `root`, oldest step first. A folder without a manifest is no checkpoint."""
    return [path for path in step_folders(root) if (path / MANIFEST).is_file()]


def latest_checkpoint(root: Path) -> Path | None:
    """The complete checkpoint of the highest step, or None."""
    found = checkpoints(root)
    return found[-1] if found else None


def remove_leftovers(root: Path) -> None:
    """Removes `leftovers`, but for those that cannot be deleted: nobody reads them."""
    for path in leftovers(root):
        with suppress(OSError):
            remove_tree(path)


def leftovers(root: Path) -> list[Path]:
    """Remains below `root` of saves that crashed, and of checkpoints that were not deleted in full. Raises `OSError`."""
    entries: list[Path] = []
    with suppress(FileNotFoundError, NotADirectoryError):  # an object store has no empty folders
        entries = list(root.iterdir())

    def is_left(path: Path) -> bool:
        unfinished = is_remote(path) and step_of(path) is not None and not (path / MANIFEST).is_file()
        return path.name.startswith((_ASIDE + "step-", _REPLACED + "step-")) or unfinished

    return sorted(path for path in entries if is_left(path))


def remove_tree(path: Path) -> None:
    """Deletes a folder (or file, or link) that nobody reads any more. Raises `OSError`."""
    if isinstance(path, RemotePath):
        (path / MANIFEST).unlink(missing_ok=True)  # first: a deletion cut short must not look like a checkpoint
        path.remove_tree()
        return
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def move_into_place(folder: Path) -> None:
    """Renames `aside(folder)`, whose files are on disk, into place; what stood there before goes. Raises `OSError`."""
    if is_remote(folder):
        return
    old = _put_out_of_sight(folder) if folder.exists() else None
    try:
        os.rename(aside(folder), folder)
    except OSError:
        if old is not None:
            os.rename(old, folder)
        raise
    with suppress(OSError):  # the files are safe; only whether a power cut undoes the rename depends on this
        sync_folder(folder.parent)
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)


def _put_out_of_sight(folder: Path) -> Path:
    """Renames a folder to what it is deleted as, beside one that could not be: a deletion cut short must not look like a
    checkpoint. Raises `OSError`."""
    names = (f"{_REPLACED}{folder.name}{f'.{number}' if number else ''}" for number in itertools.count())
    old = next(path for name in names if not os.path.lexists(path := folder.with_name(name)))
    os.rename(folder, old)
    return old


def prune(
    root: Path,
    retention: Retention,
    written: Path,
    waits: Callable[[Path], bool] = lambda path: False,
    next_bytes: int = 0,
) -> None:
    """Deletes checkpoints up to `written` that do not stay. One that cannot be deleted is left for the next save.

    One of a later step is no part of this run's past (a copy, or one too damaged to resume): it neither goes nor counts. `waits`:
    whether one that does not stay is read by others first; the oldest of these go where there may be no more, or the disk has no
    room for the next one, of `next_bytes`.
    """
    past = {step_of(path) or 0: path for path in checkpoints(root) if (step_of(path) or 0) <= (step_of(written) or 0)}
    waiting = [step for step in retention.to_delete(list(past)) if waits(past[step])]
    goes = retention.to_delete(list(past), waiting)
    for step in goes:
        with suppress(OSError):
            remove_checkpoint(past[step])
    for step in (each for each in waiting if each not in goes):
        with suppress(OSError):
            if is_remote(root) or free_bytes(root) >= next_bytes:
                return
            remove_checkpoint(past[step])


def remove_checkpoint(path: Path) -> None:
    """Deletes a checkpoint: what a deletion that is cut short leaves looks like none. Raises `OSError`."""
    if is_remote(path):
        remove_tree(path)
    else:
        shutil.rmtree(_put_out_of_sight(path))


def write_text(path: Path, text: str) -> None:
    """Writes a small file and waits until it is on disk. Raises `OSError`."""
    if is_remote(path):
        path.write_text(text, encoding="utf-8")
        return
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a small local file as `write_text`."""
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Waits until the folder's entries are on disk. Raises `OSError`, but not where a folder cannot be synced at all."""
    if is_remote(folder):
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def free_bytes(folder: Path) -> int:
    """Bytes that may still be written to the disk of `folder`, which need not exist yet. Raises `OSError`."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free


def room_advice(folder: Path, needed_bytes: int) -> str:
    """The advice that makes room for so many bytes where a folder takes no more. Bytes may be free and yet no file, or not so many
    in one file."""
    elsewhere = "set checkpoint.directory to a folder on another disk"
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if limit != resource.RLIM_INFINITY and limit < needed_bytes:
        return f"a file of this process may have {format_bytes(limit)}: what works: ulimit -f unlimited"
    with suppress(OSError):
        found = os.statvfs(folder)
        if found.f_files and not found.f_favail:
            return f"its file system takes no more files (it has {found.f_files}): delete some there, or {elsewhere}"
    return f"free space there, or {elsewhere.replace('another', 'a larger')}"


def require_space(folder: Path, needed_bytes: int) -> None:
    """Raises the `OSError` of a full disk before anything is written, where the disk cannot hold `needed_bytes`."""
    if not is_remote(folder) and free_bytes(folder) < needed_bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


def format_bytes(count: int) -> str:
    """`4860000000` -> `4.86 GB`, 1 GB = 1e9 bytes."""
    for unit, size in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count} bytes"
