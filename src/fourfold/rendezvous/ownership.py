"""The owner of a folder of checkpoints: one run, which alone saves there and goes on from what is there.

`owner.json` beside the checkpoints names that run and where the run's folder is. A launch holds a lock on it while it lives. A
folder `checkpoints` within a run's folder is that run's without the file; any other without it is that of the run which its newest
checkpoint names.
"""

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from fourfold.config import FinalFailure, UserError
from fourfold.config.errors import unwritable
from fourfold.config.remote_path import is_remote
from fourfold.config.whole_file import bounded

OWNER = "owner.json"
DIRECTORY = "checkpoint.directory"
KEY = "owner"
"""The key of `data.json` with the run and the place of its folder."""
_RUN_FILE, _DATA_FILE, _MANIFEST = "run.toml", "data.json", "manifest.json"
_MAX_OWNER_BYTES, _MAX_MANIFEST_BYTES = 1 << 16, 1 << 27


@dataclass(frozen=True)
class Owner:
    """A run and the place of its folder. `run`: drawn when the run began. `folder`: empty where it is not known."""

    run: str
    folder: str = ""
    host: str = ""

    @property
    def is_there(self) -> bool:
        """Whether the folder still holds this run, as far as this machine sees it."""
        return bool(self.folder) and _of_folder(Path(self.folder)).run == self.run

    def is_at(self, folder: str) -> bool:
        """Whether its folder is this one, under whatever path."""
        with suppress(OSError):
            return os.path.samefile(self.folder, folder)
        return self.folder == folder


NOBODY = Owner("")


def owner_at(run: str, folder: Path) -> Owner:
    """The owner that a launch in this folder is."""
    return Owner(run, os.path.realpath(folder), socket.gethostname())


def owner_in(table: dict[str, Any]) -> Owner:
    """The owner that a `data.json` names; one without a run where it names none."""
    return _parse(table.get(KEY)) or NOBODY


def run_in(folder: Path) -> dict[str, str]:
    """The run in a folder as the manifests of its checkpoints name it; nothing where it has no name."""
    run = _of_folder(folder).run
    return {"run": run} if run else {}


def require_original(folder: Path, own: Owner) -> None:
    """Raises `UserError` where a run's folder is a copy of one that is still there: the two would be one run in two places."""
    known = _of_folder(folder)
    if known.run == own.run and not known.is_at(own.folder) and known.is_there:
        raise UserError(
            f"--out {folder}: is a copy of the run in {known.folder}, which is still there; what works: --out {known.folder} to go "
            f"on with that run, or a new folder and checkpoint.start_from={folder} for another one that begins at its newest "
            f"checkpoint"
        )


class Unreachable(UserError):
    """A folder of checkpoints that cannot be looked into."""


def owner_at_place(root: Path) -> Owner | None:
    """The owner that the word beside some checkpoints names; None where there is none. Raises `OSError`."""
    return _parse(_read(root / OWNER)) if (root / OWNER).is_file() else None


def require_own(root: Path, own: Owner, is_known: bool = False, key: str = DIRECTORY) -> None:
    """Raises `UserError` where a folder of checkpoints is another run's. `is_known`: this run has saved there before it was asked
    whose the folder is. `key`: that names it."""
    try:
        owner = _owner_of(root)
    except OSError as error:
        raise Unreachable(
            f"{key} = {root}: cannot be looked into ({error.strerror}); allowed: a folder or URL that can be reached"
        ) from None
    if owner is None or (not owner.run and (is_known or owner.is_at(own.folder))):
        return
    if owner.run == own.run and (not owner.folder or owner.is_at(own.folder) or not owner.is_there):
        return
    if owner.run != own.run and owner.host == own.host and not owner.is_there and not _has_checkpoints(root):
        return
    where = f"the run in {owner.folder}" if owner.folder else "another run"
    copied = f", of which {own.folder} is a copy" if owner.run == own.run else ""
    raise UserError(
        f"{key} = {root}: belongs to {where}{copied}; allowed: a folder of this run's own; what works: "
        f"{key}={root}/{Path(own.folder).name}, and checkpoint.start_from={root} beside it to begin at its newest "
        f"checkpoint"
    )


@contextmanager
def claimed(root: Path, own: Owner, is_known: bool = False, key: str = DIRECTORY) -> Iterator[None]:
    """Makes a folder of checkpoints this run's, and keeps other launches out while the block runs. Where the run's folder was not
    written meanwhile, the word is taken back. Raises `UserError` where the folder is another's, or in use."""
    if not is_remote(root) and _is_inside(root, Path(own.folder)):
        if (root / OWNER).exists():  # moved to here
            (root / OWNER).write_text(_text(own), encoding="utf-8")
        yield  # the lock of the run's folder holds it too
        return
    with ExitStack() as held:
        try:
            _take(root, own, is_known, held, key)
        except OSError as error:
            raise Unreachable(f"{key} = {unwritable(root / OWNER, error)}, or name another") from None
        yield


def _is_inside(root: Path, folder: Path) -> bool:
    """Whether a folder of checkpoints stands in the run's own, by whatever links either is named."""
    return Path(os.path.realpath(folder)) in Path(os.path.realpath(root)).parents


def _take(root: Path, own: Owner, is_known: bool, held: ExitStack, key: str) -> None:
    """Writes whose the folder is, under a lock that ends with `held`. Raises `OSError` and `UserError`."""
    file = root / OWNER
    root.mkdir(parents=True, exist_ok=True)
    is_new = not file.exists()
    if is_remote(root):
        require_own(root, own, is_known, key)
        file.write_text(_text(own), encoding="utf-8")
        require_own(root, own, key=key)  # of two at once one sees the other's
    else:
        held.enter_context(_locked(file, root, key))
        if not is_new:
            require_own(root, own, is_known, key)
        file.write_text(_text(own), encoding="utf-8")
    if is_new:
        held.callback(_take_back, file, own)


def _take_back(file: Path, own: Owner) -> None:
    """Removes the word of a launch that wrote no folder of its run."""
    if not own.is_there and _parse(_read(file)) == own:
        with suppress(OSError):
            file.unlink(missing_ok=True)


def still_own(root: Path, folder: Path) -> None:
    """Raises `FinalFailure` where another run, or a copy of this one, took a folder of checkpoints since the run in `folder` was
    launched: a disk without locks, or two machines that do not see each other's folders."""
    own, owner = _of_folder(folder), _parse(_read(root / OWNER))
    if own.run and owner is not None and owner != own:
        raise FinalFailure(
            f"{root}: the run in {owner.folder} (on {owner.host}) took this folder of checkpoints over and alone may save there; "
            f"name another checkpoint.directory for one of the two"
        )


def _owner_of(root: Path) -> Owner | None:
    """The owner of a folder; None where it holds no checkpoint and nobody's word; an owner without a run where nothing tells."""
    if (told := _parse(_read(root / OWNER))) is not None:
        return told
    if not is_remote(root) and root.name == "checkpoints" and (root.parent / _RUN_FILE).is_file():
        return Owner(_of_folder(root.parent).run, os.path.realpath(root.parent), socket.gethostname())
    saved = sorted(root.glob(f"step-*/{_MANIFEST}"))
    if not saved:
        return None
    info = _read(saved[-1], _MAX_MANIFEST_BYTES).get("info")
    run = info.get("run") if isinstance(info, dict) else None
    return Owner(run if isinstance(run, str) else "")


def _has_checkpoints(root: Path) -> bool:
    return any(root.glob(f"step-*/{_MANIFEST}"))


def _of_folder(folder: Path) -> Owner:
    return owner_in(_read(folder / _DATA_FILE))


def _read(path: Path, max_bytes: int = _MAX_OWNER_BYTES) -> dict[str, Any]:
    """The object in a JSON file; empty where it is missing or damaged."""
    with suppress(OSError, ValueError, RecursionError):
        found = json.loads(bounded(path, max_bytes))
        return found if isinstance(found, dict) else {}
    return {}


def _parse(table: Any) -> Owner | None:
    values = [table.get(each.name) for each in fields(Owner)] if isinstance(table, dict) else []
    texts = [value for value in values if isinstance(value, str)]
    return Owner(*texts) if texts and len(texts) == len(values) else None


def _text(own: Owner) -> str:
    return json.dumps(asdict(own)) + "\n"


@contextmanager
def _locked(file: Path, root: Path, key: str) -> Iterator[None]:
    """Makes the file where it is missing, and holds its lock, which ends with the process. Raises `OSError`, and `UserError` where
    another launch holds it."""
    for mode in (os.O_RDONLY, os.O_RDWR):  # NFS locks what is open for writing alone; that keeps a local disk busy
        descriptor = os.open(file, mode | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            owner = _parse(_read(root / OWNER)) or NOBODY
            raise UserError(
                f"{key} = {root}: is in use by the run in {owner.folder or 'another folder'}, which is in progress; "
                f"what works: a folder of its own for each run"
            ) from None
        except OSError:  # or a file system without locks: every save looks again
            os.close(descriptor)
            continue
        try:
            yield
        finally:
            os.close(descriptor)
        return
    yield
