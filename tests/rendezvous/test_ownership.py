"""A folder of checkpoints is one run's: another run, a copy of it, or a second launch is refused before anything is written."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest

from fourfold.config import FinalFailure, UserError
from fourfold.config.remote_path import place
from fourfold.rendezvous.ownership import KEY, OWNER, Owner, claimed, owner_at, require_original, require_own, still_own


def begin(folder: Path, run: str) -> Owner:
    """The folder of a run, as a launch writes it."""
    folder.mkdir(parents=True)
    owner = owner_at(run, folder)
    write(folder, owner)
    return owner


def write(folder: Path, owner: Owner) -> None:
    (folder / "run.toml").write_text("")
    (folder / "data.json").write_text(json.dumps({KEY: asdict(owner)}))


def save(root: Path, step: int, run: str | None = None) -> None:
    checkpoint = root / f"step-{step:06d}"
    checkpoint.mkdir(parents=True)
    info = {"run": run} if run is not None else {}
    (checkpoint / "manifest.json").write_text(json.dumps({"info": info}))


@pytest.fixture(params=["disk", "memory"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / "disk" if request.param == "disk" else place(f"memory://{tmp_path}/saved")


def test_who_saved_there_first_is_the_owner_and_another_is_refused(root: Path, tmp_path: Path) -> None:
    one, other = begin(tmp_path / "a", "1"), begin(tmp_path / "b", "2")
    with claimed(root, one):
        pass
    before = (root / OWNER).read_bytes()
    with pytest.raises(
        UserError, match=rf"belongs to the run in {tmp_path / 'a'}.*directory={root}/b.*start_from={root}"
    ):
        require_own(root, other)
    with pytest.raises(UserError, match="belongs to"), claimed(root, other):
        pytest.fail("the block runs")
    assert (root / OWNER).read_bytes() == before
    with claimed(root, one):
        pass


def test_a_deleted_run_leaves_a_folder_that_is_free_while_it_has_saved_nothing(tmp_path: Path) -> None:
    root, other = tmp_path / "disk", begin(tmp_path / "b", "2")
    with claimed(root, begin(tmp_path / "a", "1")):
        pass
    shutil.rmtree(tmp_path / "a")
    require_own(root, other)
    require_own(root, begin(tmp_path / "a", "3"))
    (root / "step-000005").mkdir()
    (root / "step-000005" / "manifest.json").write_text("{}")
    for owner in (other, owner_at("3", tmp_path / "a")):
        with pytest.raises(UserError, match="belongs to the run in"):
            require_own(root, owner)


def test_two_launches_of_one_run_exclude_each_other(tmp_path: Path) -> None:
    root, own = tmp_path / "disk", begin(tmp_path / "a", "1")
    with claimed(root, own), pytest.raises(UserError, match=r"is in use by the run in .*/a"), claimed(root, own):
        pytest.fail("the block runs")


def test_a_launch_that_writes_no_folder_of_its_run_takes_its_word_back(tmp_path: Path) -> None:
    root = tmp_path / "disk"
    with pytest.raises(UserError, match="the data"), claimed(root, owner_at("1", tmp_path / "never")):
        raise UserError("the data are missing")
    assert list(root.iterdir()) == []


def test_a_copy_is_refused_while_the_original_is_there_and_a_moved_run_goes_on(root: Path, tmp_path: Path) -> None:
    own = begin(tmp_path / "a", "1")
    with claimed(root, own):
        pass
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    copy = owner_at("1", tmp_path / "copy")
    with pytest.raises(UserError, match=rf"is a copy of the run in {tmp_path / 'a'}.*start_from={tmp_path / 'copy'}"):
        require_original(tmp_path / "copy", copy)
    with pytest.raises(UserError, match=f"of which {tmp_path / 'copy'} is a copy"):
        require_own(root, copy)
    shutil.rmtree(tmp_path / "a")
    require_original(tmp_path / "copy", copy)
    with claimed(root, copy):
        pass
    assert json.loads((root / OWNER).read_text())["folder"] == str(tmp_path / "copy")


def test_a_folder_under_two_names_is_no_copy(tmp_path: Path) -> None:
    begin(tmp_path / "a", "1")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    require_original(tmp_path / "link", owner_at("1", tmp_path / "link"))


def test_checkpoints_within_a_runs_folder_are_that_runs(tmp_path: Path) -> None:
    own, other = begin(tmp_path / "a", "1"), begin(tmp_path / "b", "2")
    require_own(tmp_path / "a" / "checkpoints", own)
    with pytest.raises(UserError, match=f"belongs to the run in {tmp_path / 'a'}"):
        require_own(tmp_path / "a" / "checkpoints", other)


def test_checkpoints_without_a_word_are_those_of_the_run_that_they_name(root: Path, tmp_path: Path) -> None:
    save(tmp_path / "moved", 5, "1")
    require_own(tmp_path / "moved", begin(tmp_path / "a", "1"))
    with pytest.raises(UserError, match="belongs to another run"):
        require_own(tmp_path / "moved", begin(tmp_path / "b", "2"))
    save(tmp_path / "older", 5)
    require_own(tmp_path / "older", owner_at("1", tmp_path / "a"), is_known=True)
    with pytest.raises(UserError, match="belongs to another run"):
        require_own(tmp_path / "older", owner_at("1", tmp_path / "a"))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"run": 3}', '{"run": "1", "folder": null, "host": "h"}'])
def test_a_word_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / OWNER).write_text(text)
    require_own(tmp_path / "disk", begin(tmp_path / "a", "1"))


def test_nothing_is_committed_where_another_took_over(tmp_path: Path) -> None:
    root, own = tmp_path / "disk", begin(tmp_path / "a", "1")
    with claimed(root, own):
        still_own(root, tmp_path / "a")
        (root / OWNER).write_text(json.dumps(asdict(Owner("1", "/elsewhere/a", "another-host"))))
        with pytest.raises(FinalFailure, match=r"the run in /elsewhere/a \(on another-host\) took"):
            still_own(root, tmp_path / "a")
        (root / OWNER).unlink()
        still_own(root, tmp_path / "a")
