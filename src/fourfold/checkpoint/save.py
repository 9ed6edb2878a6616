"""Saving: every writer rank writes one file aside, rank 0 writes the manifest and renames the folder into place.

The ranks share nothing but the folder and a barrier, and pass the same five barriers whatever fails:

    rank 0: make the folder aside, mark it sound   | barrier |
    writers: tensor file, then its record          | barrier |
    rank 0: records -> manifest, rename into place | barrier |
    writers: read back, if one is to be deleted    | barrier |
    all: is it there?                              | barrier | rank 0: delete old ones, tidy up

A rank that fails removes the mark: deleting works where the disk is too full to write a word. A record that is missing, for
whatever reason, is a failure too.
"""

import json
import secrets
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from fourfold.checkpoint import folders
from fourfold.checkpoint.checked_file import CheckedFile, write_tensors
from fourfold.checkpoint.commit import Composer, rank_record, rank_tensors
from fourfold.checkpoint.file_bytes import drop_from_cache
from fourfold.checkpoint.folders import Retention
from fourfold.checkpoint.manifest import read_manifest
from fourfold.checkpoint.unit_shard import UnitShard, file_metadata, places
from fourfold.config import FinalFailure, RunFailure
from fourfold.config.errors import open_files_advice
from fourfold.layout import Layout

_SOUND, _FAILED, _FULL = "sound", "failed-", "full-"
_CHECKED_CHUNKS = 1024
"""Chunks that are read back before a rank says that it gets on: 256 MiB."""


class SaveFailure(RunFailure):
    """A checkpoint that was not saved; every rank of the run raises it, with the same message but for the writers' own errors."""


class FullDisk(SaveFailure, FinalFailure):
    """A checkpoint for which the disk, or a quota, has no room."""


def save_checkpoint(
    root: Path,
    step: int,
    shards: Mapping[str, UnitShard],
    info: Mapping[str, Any],
    *,
    rank: int,
    synchronize: Callable[[], None],
    keep: int | Retention,
    is_writer: bool = True,
    units: Collection[str] = (),
    extras: Mapping[str, Tensor] | None = None,
    layout: Layout | None = None,
    total_bytes: int | None = None,
    tensors: Mapping[str, Tensor] | None = None,
    fence: Callable[[], AbstractContextManager[None]] = nullcontext,
    check: Callable[[], None] | None = None,
    advance: Callable[[], None] = lambda: None,
    waits: Callable[[Path], bool] = lambda path: False,
) -> Path:
    """Saves a step's state as `root/step-NNNNNN` and returns that folder. Called by every rank.

    `shards`: by unit name, this rank's shards of the units that it holds; those whose `is_writer` is False another rank writes.
    `info`: whatever JSON the caller needs to resume; rank 0's is kept. `is_writer` False: this rank writes nothing at all.
    `units`: the names of all units of the model, which must all be written by some rank. `extras`: tensors beside the units
    that this rank, and no other, writes. `layout`: what the run is laid out as, for the manifest. `total_bytes`: of all ranks'
    files together; by default those of the units that rank 0 holds. `tensors`: copies of the tensors that this rank writes
    (`rank_tensors`), where the originals may change meanwhile. `synchronize`: a barrier over all ranks. `fence`: entered around the
    preparation and the commit; raises where other ranks took the place of these. `check`: called once this rank's
    bytes are written; raises where they are not those of the state. `advance`: called as they
    are written and read back. `waits`: as in `folders.prune`. `root` lies on a file system that all ranks share.

    Afterwards all but those that `keep` names, or as many of the newest, are deleted, once this one was read back, so the disk
    holds `keep` + 1 for a while. Raises `SaveFailure`, on every rank, when any of them could not write its part, or when parts are
    missing: then nothing has appeared, and the checkpoints before are as they were."""
    folder = folders.step_folder(root, step)
    retention = Retention(keep) if isinstance(keep, int) else keep
    needed_bytes = _total_bytes(shards) if total_bytes is None else total_bytes
    own = {unit: shard for unit, shard in shards.items() if shard.is_writer and is_writer}
    extras = extras if extras is not None and is_writer else {}
    failure = _Failure(folder, rank)
    if rank == 0:
        failure.guard(lambda: prepare(folder, needed_bytes, fence))
    synchronize()
    attempt = attempt_of(folder)
    if (own or extras) and attempt is not None:
        failure.guard(lambda: write_part(folder, step, rank, own, extras, attempt, tensors, check, advance))
    synchronize()
    if rank == 0 and attempt is not None and attempt_of(folder) == attempt:
        failure.guard(lambda: commit(folder, step, info, attempt, layout_degrees(layout), units, fence))
    synchronize()
    if (own or extras) and _is_committed(folder, attempt) and len(folders.checkpoints(root)) > retention.newest:
        failure.guard(lambda: _read_back(folder, rank, advance))  # before another is deleted
    synchronize()
    complaint = None if _is_committed(folder, attempt) else _complain(folder, failure, needed_bytes)
    synchronize()
    if rank == 0 and complaint is None:
        folders.prune(root, retention, folder, waits, needed_bytes)
    elif rank == 0:
        with suppress(OSError):
            folders.remove_tree(folders.aside(folder))
    if complaint is not None:
        raise complaint from failure.error
    return folder


class _Failure:
    """A save's first error on this rank, and the file by which the other ranks hear of it."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.folder, self.aside = folder, folders.aside(folder)
        self.rank = rank
        self.error: Exception | None = None

    def guard(self, phase: Callable[[], None]) -> None:
        """Runs a phase; an error is kept and announced instead of raised, so that this rank still meets every barrier."""
        try:
            phase()
        except Exception as error:
            self.error = error
            with suppress(OSError):
                (self.aside / _SOUND).unlink(missing_ok=True)
            with suppress(OSError):
                kind = _FULL if self.is_full else _FAILED
                place = self.aside if self.aside.exists() else self.folder
                (place / f"{kind}{self.rank:05d}").write_text(self.text, encoding="utf-8")

    @property
    def is_full(self) -> bool:
        return isinstance(self.error, OSError) and self.error.errno in folders.FULL_DISK

    @property
    def text(self) -> str:
        if isinstance(self.error, (OSError, RunFailure)):
            return f"rank {self.rank}: {self.error}"
        return f"rank {self.rank}: {type(self.error).__name__}: {self.error}"


def file_name(rank: int) -> str:
    return f"rank-{rank:05d}.safetensors"


def _record_name(rank: int) -> str:
    return f"rank-{rank:05d}.json"


def _total_bytes(shards: Mapping[str, UnitShard]) -> int:
    """The bytes of all ranks' files together, of the units that this rank knows."""
    total = 0
    for shard in shards.values():
        numel = max(shard.flat.padded_numel, sum(p.spec.numel for p in shard.flat.parameters))
        total += numel * sum(tensor.element_size() for tensor in shard.tensors.values())
    return total


_AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep", "etp", "zero")


def layout_degrees(layout: Layout | None) -> dict[str, int]:
    """The degrees that decide which part and shard a rank holds, by key of the run file's `[layout]`."""
    return {} if layout is None else {axis: int(getattr(layout, axis)) for axis in _AXES}


def prepare(folder: Path, needed_bytes: int, fence: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
    """Makes the folder aside and draws the name of this save. Raises `OSError`."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with fence():  # what others left may be a save of those who took the place of these ranks
        folders.remove_leftovers(folder.parent)
        if folders.aside(folder) == folder:
            folders.remove_tree(folder)
        folders.aside(folder).mkdir()
    folders.require_space(folder.parent, needed_bytes)
    folders.write_text(folders.aside(folder) / _SOUND, secrets.token_hex(8))


def attempt_of(folder: Path) -> str | None:
    """The name of this save, which rank 0 drew; None where it could not."""
    with suppress(OSError, ValueError):
        return (folders.aside(folder) / _SOUND).read_text(encoding="utf-8") or None
    return None


def write_part(
    folder: Path,
    step: int,
    rank: int,
    shards: Mapping[str, UnitShard],
    extras: Mapping[str, Tensor],
    attempt: str,
    tensors: Mapping[str, Tensor] | None,
    check: Callable[[], None] | None = None,
    advance: Callable[[], None] = lambda: None,
) -> None:
    """This rank's tensors, then the record of them. Raises what `check` raises, and leaves no record."""
    tensors = rank_tensors(shards, extras) if tensors is None else tensors
    path = folders.aside(folder) / file_name(rank)
    try:
        file = write_tensors(path, tensors, file_metadata(step, places(shards)), None, advance)
    except OSError:
        path.unlink(missing_ok=True)  # makes room for the word that it failed
        raise
    if check is not None:
        check()
    folders.write_text(folders.aside(folder) / _record_name(rank), rank_record(shards, extras, file, attempt))


def commit(
    folder: Path,
    step: int,
    info: Mapping[str, Any],
    attempt: str,
    layout: Mapping[str, int],
    units: Collection[str],
    fence: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> None:
    """Composes the manifest from the records, and renames the folder into place when nothing is missing."""
    aside = folders.aside(folder)
    composer = Composer(attempt)
    records = sorted(aside.glob("rank-*.json"))
    for path in records:
        composer.add(path.stem + ".safetensors", path.read_text(encoding="utf-8"))
    manifest = composer.manifest(step, info, layout, units)
    for path in (*records, aside / _SOUND):
        path.unlink()
    with fence():
        folders.write_text(aside / folders.MANIFEST, manifest.to_json())
        folders.sync_folder(aside)
        folders.move_into_place(folder)


def _read_back(folder: Path, rank: int, advance: Callable[[], None]) -> None:
    """Checks this rank's file as the disk has it. Where it is not as it was written, the folder is no checkpoint any more."""
    path = folder / file_name(rank)
    try:
        drop_from_cache(path)
        file = CheckedFile(path, read_manifest(folder).files[path.name], "it was written a moment ago")
        for start in range(0, len(file.all_chunks), _CHECKED_CHUNKS):
            file.verify(file.all_chunks[start : start + _CHECKED_CHUNKS])
            advance()
    except RunFailure:
        with suppress(OSError):
            (folder / folders.MANIFEST).rename(folder / "damaged-manifest.json")
        raise


def _is_committed(folder: Path, attempt: str | None) -> bool:
    """Whether what stands in place is this very save, not an older one of the same step."""
    with suppress(OSError, ValueError):
        document = json.loads((folder / folders.MANIFEST).read_bytes())
        return attempt is not None and document.get("attempt") == attempt
    return False


def _complain(folder: Path, failure: _Failure, needed_bytes: int) -> SaveFailure:
    """One error for all ranks: which failed and why, the bytes needed and free, what stands, what helps."""
    texts = [failure.text] if failure.error is not None else []
    full, held_bytes = failure.is_full, 0
    aside = folders.aside(folder)
    with suppress(OSError):
        for path in sorted((aside if aside.exists() else folder).iterdir()):
            if path.name.startswith((_FAILED, _FULL)):
                texts.append(path.read_text(encoding="utf-8"))
                full = full or path.name.startswith(_FULL)
            held_bytes += path.stat().st_size
    texts = sorted(set(filter(None, texts)))
    if not texts:
        texts, full = (
            ["a rank failed and could not write why, as on a full disk or where somebody removed the folder"],
            True,
        )
    try:
        free = f"{folders.format_bytes(folders.free_bytes(folder.parent) + held_bytes)} are free"
    except OSError:
        free = "how many are free is unknown"
    latest = folders.latest_checkpoint(folder.parent)
    standing = f"the newest complete checkpoint is {latest.name}" if latest else "there is no earlier checkpoint"
    cure = folders.room_advice(folder.parent, needed_bytes)
    if not full:
        cure = open_files_advice("; ".join(texts)) or (
            "if the folder is at fault, set checkpoint.directory to one that all ranks share and can write"
        )
    return (FullDisk if full else SaveFailure)(
        f"checkpoint {folder} was not saved: {'; '.join(texts)}. It needs {folders.format_bytes(needed_bytes)}, and {free} "
        f"in {folder.parent}; {standing}; {cure}"
    )
