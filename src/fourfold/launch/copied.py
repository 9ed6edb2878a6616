"""Going on from a run's copies where its disk is lost: the folder of the run, or its checkpoints alone."""

import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from fourfold.config import RunConfig, UserError
from fourfold.config.errors import unwritable
from fourfold.config.remote_path import is_remote, place
from fourfold.config.whole_file import write_whole
from fourfold.data import skipped
from fourfold.launch.run_folder import (
    COPIES,
    DATA_FILE,
    EVENTS,
    LAUNCHED,
    LAYERS,
    LOGS,
    METRICS,
    RUN_FILE,
    RunFolder,
    with_absolute_places,
)
from fourfold.rendezvous.ownership import Owner, Unreachable, claimed, owner_at_place
from fourfold.train.metrics import append_event

RUN_FILES = [skipped.FILE, EVENTS, METRICS, LAYERS, LAUNCHED, RUN_FILE, DATA_FILE]
"""Files of a run's folder that go with its copies, in this order."""


def copies_of(config: RunConfig) -> Path | None:
    """Where a run's checkpoints are copied to; None where they are not."""
    stated = with_absolute_places(config).checkpoint.copy_to
    return place(stated) if stated is not None else None


def fetch_from_copies(config: RunConfig, folder: RunFolder) -> None:
    """Makes the folder of a run that is not there any more from the run's copies; where the folder is there, and no checkpoint,
    lets the run go on from the copies. Says so by the event `fetch`. Raises `UserError` where the copies cannot be looked into."""
    copies = copies_of(config)
    if copies is None:
        return
    try:
        if folder.config() is None:
            if not _fetch_folder(copies, folder):
                return
            append_event(folder.path, "fetch", message=f"the run's folder was not there: it is that of {copies}")
        old = folder.launched()
        if old is None or folder.checkpoints_on_disk(old) or not folder.steps_done():
            return
        saved = [path.parent.name for path in copies.glob("step-*/manifest.json")]
    except OSError as error:
        raise UserError(_unreachable(copies, error)) from None
    if not saved or folder.data().get(COPIES) == str(copies):
        return
    write_whole(folder.data_file, json.dumps({**folder.data(), COPIES: str(copies)}, indent=1) + "\n")
    append_event(
        folder.path,
        "fetch",
        message=f"the disk holds no checkpoint of this run: it goes on from those in {copies}, the newest {max(saved)}",
    )


def _unreachable(copies: Path, error: OSError) -> str:
    return (
        f"checkpoint.copy_to = {copies}: cannot be looked into ({error.strerror or error}); allowed: a folder or URL that can be "
        f"reached; what works: the same command once it can, or without checkpoint.copy_to"
    )


def _fetch_folder(copies: Path, folder: RunFolder) -> bool:
    """Whether the copies are of the run that stood here, whose folder is there now. Raises `OSError`."""
    owner, source = owner_at_place(copies), copies / "run"
    if owner is None or owner.is_there or not owner.is_at(os.path.realpath(folder.path)):
        return False
    if not (source / DATA_FILE).is_file():
        return False
    aside = folder.path.with_name(f".{folder.path.name}.{secrets.token_hex(4)}")
    try:
        _copy(source, aside)
        (aside / LOGS).mkdir(exist_ok=True)
        with suppress(FileNotFoundError):
            (folder.path / ".lock").unlink()
        os.rename(aside, folder.path)
    except OSError as error:
        if error.filename is not None and str(error.filename).startswith(str(aside)):
            raise UserError(f"--out {unwritable(folder.path, error)}") from None
        raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return True


def _copy(source: Path, target: Path) -> None:
    target.mkdir(parents=True)
    for path in source.iterdir():
        if path.is_dir():
            _copy(path, target / path.name)
            continue
        with path.open("rb") as content, (target / path.name).open("wb") as file:
            shutil.copyfileobj(content, file, 1 << 24)


@contextmanager
def claimed_copies(config: RunConfig, own: Owner, is_known: bool) -> Iterator[str | None]:
    """Makes the place of copies this run's; a warning where it cannot be reached and the run has begun (`is_known`): copies are
    tried again later, and hold up nothing. Raises `UserError` where it is another run's, or never was reached."""
    root = copies_of(config)
    if root is None:
        yield None
        return
    saved = RunFolder(Path(own.folder)).checkpoint_root(config)
    if str(saved) == str(root) or (not is_remote(root) and os.path.realpath(saved) == os.path.realpath(root)):
        raise UserError(
            f"checkpoint.copy_to = {root}: is where the run saves its checkpoints; allowed: another place, on another disk; what "
            f"works: checkpoint.copy_to={root}-copies"
        )
    with ExitStack() as held:
        warning = None
        try:
            held.enter_context(claimed(root, own, is_known, "checkpoint.copy_to"))
        except Unreachable as error:
            if not is_known:
                raise
            warning = f"warning: {error}"
        yield warning
