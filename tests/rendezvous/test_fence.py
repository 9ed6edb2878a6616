"""Two groups of ranks both take themselves for the run's: the one that was started last alone commits."""

import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("torch")
from fourfold.checkpoint import SaveFailure, checkpoints, save_checkpoint
from fourfold.rendezvous.fence import ReplacedRanks, fenced, raise_fence
from tests.checkpoint.ranks import Run


def save(run: Run, folder: Path, step: int, number: int) -> None:
    save_checkpoint(
        folder / "checkpoints",
        step,
        run.shards(0),
        {"step": step},
        rank=0,
        synchronize=lambda: None,
        keep=5,
        fence=partial(fenced, folder, number),
    )


def test_the_number_rises_for_ever(tmp_path: Path) -> None:
    assert [raise_fence(tmp_path) for _ in range(3)] == [1, 2, 3]
    (tmp_path / ".fence").write_text("no number")
    assert raise_fence(tmp_path) == 1


def test_a_group_that_was_replaced_commits_no_step_and_the_other_does(tmp_path: Path) -> None:
    run, old = Run(), raise_fence(tmp_path)
    save(run, tmp_path, 5, old)
    new = raise_fence(tmp_path)
    with pytest.raises(SaveFailure, match="these ranks were replaced by others"):
        save(run, tmp_path, 10, old)
    save(run, tmp_path, 10, new)
    with pytest.raises(SaveFailure, match=r"replaced by others \(start 2, this is 1\)"):
        save(run, tmp_path, 10, old)
    assert [path.name for path in checkpoints(tmp_path / "checkpoints")] == ["step-000005", "step-000010"]


def test_a_deleted_number_stops_no_save_and_lets_no_former_group_in(tmp_path: Path) -> None:
    run, old = Run(), raise_fence(tmp_path)
    new = raise_fence(tmp_path)
    (tmp_path / ".fence").unlink()
    save(run, tmp_path, 5, new)
    assert (tmp_path / ".fence").read_text() == f"{new}\n"
    with pytest.raises(SaveFailure, match="these ranks were replaced by others"):
        save(run, tmp_path, 10, old)
    (tmp_path / ".fence").unlink()
    assert raise_fence(tmp_path, above=new) == new + 1


def test_nobody_takes_over_in_the_middle_of_a_commit(tmp_path: Path) -> None:
    """A real process asks for the next number while this one commits: it gets it afterwards."""
    number = raise_fence(tmp_path)
    code = "import sys, pathlib; from fourfold.rendezvous import fence; print(fence.raise_fence(pathlib.Path(sys.argv[1])))"
    with fenced(tmp_path, number):
        other = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
        time.sleep(1.5)
        assert other.poll() is None
        assert (tmp_path / ".fence").read_text() == "1\n"
    assert other.communicate()[0] == b"2\n"
    with pytest.raises(ReplacedRanks), fenced(tmp_path, number):
        pass
