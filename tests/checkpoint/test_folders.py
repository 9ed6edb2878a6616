"""Folders of checkpoints: what is replaced or deleted, and what a full disk's message says."""

import errno
import os
import resource
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from fourfold.checkpoint.folders import (
    MANIFEST,
    Retention,
    aside,
    checkpoints,
    leftovers,
    move_into_place,
    prune,
    remove_leftovers,
    remove_tree,
    room_advice,
    step_folder,
    sync_folder,
    write_text,
)
from fourfold.checkpoint.tensor_file import DamagedCheckpoint


@pytest.mark.parametrize("kind", ["folder", "file", "link to a folder"])
def test_what_is_removed_is_gone_and_what_it_points_to_is_not(tmp_path: Path, kind: str) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("kept")
    old = tmp_path / "old"
    if kind == "folder":
        (old / "inner").mkdir(parents=True)
    elif kind == "file":
        old.write_text("old")
    else:
        old.symlink_to(kept)
    remove_tree(old)
    assert not old.exists()
    assert not old.is_symlink()
    assert (kept / "file").read_text() == "kept"


def test_what_stood_there_is_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "step-000005"
    for place, text in ((folder, "before"), (aside(folder), "after")):
        place.mkdir()
        (place / "file").write_text(text)
    move_into_place(folder)
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]
    assert (folder / "file").read_text() == "after"


def test_what_stood_there_comes_back_where_nothing_takes_its_place(tmp_path: Path) -> None:
    folder = tmp_path / "step-000005"
    folder.mkdir()
    (folder / "file").write_text("before")
    with pytest.raises(FileNotFoundError):
        move_into_place(folder)
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]
    assert (folder / "file").read_text() == "before"


@pytest.mark.parametrize(("needed", "word"), [(1000, "a larger disk"), (1001, "ulimit -f unlimited")])
def test_a_limit_on_files_is_named_where_it_is_what_is_too_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, needed: int, word: str
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1000, resource.RLIM_INFINITY))
    assert word in room_advice(tmp_path, needed)


def test_a_small_file_and_its_folder_are_on_disk_when_the_call_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []

    def fsync(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        synced.append((path, path.read_text() if path.is_file() else None))

    monkeypatch.setattr(os, "fsync", fsync)
    write_text(tmp_path / "file", "text")
    sync_folder(tmp_path)
    assert synced == [(tmp_path / "file", "text"), (tmp_path, None)]


@pytest.mark.parametrize(("number", "is_raised"), [(errno.EINVAL, False), (errno.ENOTSUP, False), (errno.EIO, True)])
def test_a_folder_that_cannot_be_synced_is_an_error_unless_none_there_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, is_raised: bool
) -> None:
    def fsync(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="Input/output") if is_raised else nullcontext():
        sync_folder(tmp_path)


def test_a_damaged_checkpoint_has_its_message_with_the_advice_and_without() -> None:
    error = DamagedCheckpoint("step-000005 is truncated", "what works: an older one")
    assert (str(error), error.problem) == (
        "step-000005 is truncated; what works: an older one",
        "step-000005 is truncated",
    )


def test_what_cannot_be_deleted_stops_no_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files as after `chattr +i`, or while a network's file system keeps a file that is open: deleting is a courtesy."""
    for step in (5, 10, 15):
        step_folder(tmp_path, step).mkdir()
        (step_folder(tmp_path, step) / MANIFEST).write_text("{}")
    really = shutil.rmtree

    def rmtree(path: Path, *given: Any, **more: Any) -> None:
        if "000005" in str(path):
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(path))
        really(path, *given, **more)

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    prune(tmp_path, Retention(1), step_folder(tmp_path, 15))
    assert checkpoints(tmp_path) == [step_folder(tmp_path, 15)]
    left = tmp_path / ".old-step-000005"
    assert leftovers(tmp_path) == [left]
    remove_leftovers(tmp_path)
    assert leftovers(tmp_path) == [left]
    monkeypatch.undo()
    remove_leftovers(tmp_path)
    assert leftovers(tmp_path) == []


def test_what_cannot_be_deleted_stops_no_save_of_the_same_step(tmp_path: Path) -> None:
    folder, stuck = tmp_path / "step-000005", tmp_path / ".old-step-000005"
    for place, text in ((folder, "before"), (aside(folder), "after"), (stuck, "stuck")):
        place.mkdir()
        (place / "file").write_text(text)
    move_into_place(folder)
    assert (folder / "file").read_text() == "after"
    assert leftovers(tmp_path) == [stuck]
    prune(tmp_path, Retention(1), folder)
    assert (stuck / "file").read_text() == "stuck"


def test_nothing_is_left_where_there_is_no_folder(tmp_path: Path) -> None:
    assert leftovers(tmp_path / "gone") == []
