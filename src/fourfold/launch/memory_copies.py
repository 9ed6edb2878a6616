"""The copies of a run's state in memory: their folder while the run is supervised, and the newest put on disk when it ends."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fourfold.config import RunConfig, RunFailure, UserError
from fourfold.config.remote_path import is_remote
from fourfold.launch.run_folder import RunFolder
from fourfold.rendezvous.memory_folder import TMPFS, close_memory_folder, memory_folder, open_memory_folder


@contextmanager
def memory_copies(folder: RunFolder, config: RunConfig, shared: bool, say: Callable[[str], None]) -> Iterator[None]:
    """While it is entered the run has a folder in memory, if it asks for one; afterwards a copy that is newer than all checkpoints
    becomes one, and the memory is free. `shared`: other machines take part. Raises `UserError`."""
    steps = config.checkpoint.memory_every_steps
    if steps is not None and shared:
        raise UserError(
            f"checkpoint.memory_every_steps = {steps}: copies in memory are for runs on one machine, whose supervisor starts all "
            "ranks; what works: leave it out, and set checkpoint.every_steps"
        )
    if steps is not None:
        try:
            open_memory_folder(folder.path)
        except OSError as error:
            say(f"no copies in memory: {TMPFS}: {error.strerror}; the run goes on with its checkpoints alone")
    try:
        yield
    finally:
        _keep_newest(folder, config)
        close_memory_folder(folder.path)


def _keep_newest(folder: RunFolder, config: RunConfig) -> None:
    """Raises `RunFailure` where the disk does not take it; the copy then stays in memory."""
    in_memory, root = memory_folder(folder.path), folder.checkpoint_root(config)
    saved = folder.saved_checkpoints(config)
    newest = saved[max(saved)] if saved else None
    if in_memory is None or newest is None or newest.parent != in_memory:
        return
    try:
        if is_remote(root):
            raise OSError(0, "it is no local folder")
        _copy(newest, root)
    except OSError as error:
        raise RunFailure(
            f"{newest}: the newest copy of the state cannot be put into {root}: {error.strerror}; it stays in memory until the "
            "machine ends, and the same command goes on from it"
        ) from error


def _copy(source: Path, root: Path) -> None:
    from fourfold.checkpoint import folders

    folder = root / source.name
    aside = folders.aside(folder)
    root.mkdir(parents=True, exist_ok=True)
    if aside.exists():
        folders.remove_tree(aside)
    shutil.copytree(source, aside)
    for path in (*aside.iterdir(), aside):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    folders.move_into_place(folder)
