"""A failure that would come again ends the run at once, with exit code 1: no rank is started again after it."""

import errno
from pathlib import Path

import pytest

pytest.importorskip("torch")
from fourfold.launch.failures import FINAL, RankFailure
from fourfold.train import worker
from tests.support.supervised import Supervised, write_run


def test_a_diverged_run_is_not_started_again(tmp_path: Path) -> None:
    changes = ("optimizer.lr=1e30", "optimizer.clip_norm=0", "optimizer.warmup_steps=0", "run.max_skipped_steps=4")
    with Supervised(write_run(tmp_path), tmp_path / "run", *changes) as run:
        assert run.finish() == 1, run.printed
        assert "diverged: the gradients of 4 steps in a row" in run.printed
        assert "times in a row and was not started" not in run.printed
        assert len(run.events("failure")) == 1
        assert run.events("restart") == []


@pytest.mark.rest
def test_a_run_whose_checkpoints_are_all_damaged_is_not_started_again(tmp_path: Path) -> None:
    run_file = write_run(tmp_path, 10)
    with Supervised(run_file, tmp_path / "run") as run:
        assert run.finish() == 0, run.printed
    for path in (tmp_path / "run" / "checkpoints").glob("step-*/*.safetensors"):
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    with Supervised(run_file, tmp_path / "run", "batch.steps=20") as run:
        assert run.finish() == 1, run.printed
        assert "none of its checkpoints can be read" in run.printed
        assert len(run.events("failure")) == 1
        assert run.events("restart") == []


@pytest.mark.parametrize(("number", "is_final"), [(errno.ENOSPC, True), (errno.EIO, False)])
def test_a_full_disk_is_final_and_an_error_of_it_is_not(monkeypatch, tmp_path, capsys, number, is_final) -> None:
    def fail(out: Path) -> int:
        raise OSError(number, "as a disk says", str(out))

    monkeypatch.setattr(worker, "_train", fail)
    monkeypatch.setenv("FOURFOLD_GENERATION", "0")
    code = worker.run_worker(tmp_path)
    assert (code == FINAL, RankFailure(0, code, "").is_final) == (is_final, is_final)
    monkeypatch.delenv("FOURFOLD_GENERATION")
    assert worker.run_worker(tmp_path) == 1, "another launcher knows no such code"
