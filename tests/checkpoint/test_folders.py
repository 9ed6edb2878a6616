"""Folders of checkpoints: what is replaced or deleted, and what a full disk's message says."""

import resource
from pathlib import Path

import pytest

from fourfold.checkpoint.folders import aside, move_into_place, remove_tree, room_advice


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
