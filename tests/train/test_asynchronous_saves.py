"""Saves beside training: the same bytes as a save that training waits for, one at a time, none lost at the end."""

import errno
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import HashStore

from fourfold.checkpoint import SaveFailure, checkpoints, read_manifest, read_parameters, save
from fourfold.config import parse_run
from fourfold.rendezvous.barrier import StoreBarrier
from fourfold.runtime.routers import Routers
from fourfold.runtime.units import build_units
from fourfold.train import state
from fourfold.train.saver import SaveEnd, Saver
from tests.support.programs import DIMENSIONS, make_view
from tests.train.test_training import corpus, finish, lines, make_run, start_training

__all__ = ["corpus"]
CPU = torch.device("cpu")
ALONE = StoreBarrier(HashStore(), "save", 1, 600.0)


def events(out: Path, name: str) -> list[dict[str, Any]]:
    return [event for event in lines(out / "events.jsonl") if event["event"] == name]


@pytest.fixture
def saver(tmp_path: Path) -> tuple[Saver, dict]:
    batch = {"global_sequences": 1, "sequence_length": 20}
    config = parse_run({"model": DIMENSIONS, "batch": batch, "checkpoint": {"every_steps": 1, "keep": 9}})
    view = make_view()
    units = build_units(view, 0, config.optimizer, CPU, state.no_fill)
    return Saver(config, tmp_path, view, units, Routers(view, [], CPU), 0, ALONE), units


def slow_writes(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    original = save.write_tensors

    def write(*given: Any) -> Any:
        time.sleep(seconds)
        return original(*given)

    monkeypatch.setattr(save, "write_tensors", write)


def test_what_is_saved_is_the_state_at_the_save(saver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, units = saver
    slow_writes(monkeypatch, 0.3)
    for step in (1, 2):
        for unit in units.values():
            unit.master.fill_(step)
        own.begin(step, {"step": step})
        for unit in units.values():  # training goes on
            unit.master.fill_(-1)
    own.wait()
    for step in (1, 2):
        reader = read_parameters(tmp_path / "checkpoints" / f"step-00000{step}")
        assert all((tensor == step).all() for _, tensor in reader.items())


def test_a_slow_disk_holds_up_the_save_after_not_the_step(saver, monkeypatch: pytest.MonkeyPatch) -> None:
    own, _ = saver
    slow_writes(monkeypatch, 2.0)
    own.begin(1, {"step": 1})
    assert own.ended() == [], "it goes on beside training"
    own.begin(2, {"step": 2})
    first = own.ended()
    own.wait()
    second = own.ended()
    assert [end.step for end in (*first, *second)] == [1, 2]
    assert first[0].held_seconds < 1.0 < 2.0 <= first[0].seconds
    assert second[0].waited_seconds > 0.2, "at most one save is under way"


def test_a_step_that_was_saved_beside_training_is_not_saved_again(saver) -> None:
    own, _ = saver
    own.begin(4, {"step": 4})
    own.save(4, {"step": 4}, lambda: pytest.fail("saved again"), lambda: None)
    assert [end.step for end in own.ended()] == [4]


def test_an_error_beside_training_is_that_of_a_save_which_training_waits_for(
    saver, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, _ = saver

    def full(*given: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(save, "write_tensors", full)
    own.begin(1, {"step": 1})
    own.wait()
    (beside,) = own.ended()
    own.save(1, {"step": 1}, lambda: None, lambda: None)
    (waited,) = own.ended()
    assert isinstance(beside.error, SaveFailure)
    assert str(beside.error) == str(waited.error)
    assert "No space left on device" in beside.event()["message"]


def test_an_error_that_no_other_rank_hears_of_is_raised(saver, monkeypatch: pytest.MonkeyPatch) -> None:
    own, _ = saver

    def lost(*_: Any, **__: Any) -> Any:
        raise RuntimeError("connection closed by peer")

    monkeypatch.setattr(state, "save", lost)
    own.begin(1, {"step": 1})
    own.wait()
    with pytest.raises(RuntimeError, match="closed by peer"):
        own.ended()


@pytest.mark.rest
def test_saves_beside_training_have_the_bytes_of_those_that_it_waits_for(tmp_path: Path, corpus: Path) -> None:
    found = []
    for asynchronous in (True, False):
        checkpoint = {"every_steps": 3, "keep": 9, "asynchronous": asynchronous}
        out = make_run(tmp_path / str(asynchronous), corpus, layout={"zero": 0}, checkpoint=checkpoint)
        assert finish(start_training(out, 2))[0] == [0, 0]
        saved = checkpoints(out / "checkpoints")
        assert [path.name for path in saved] == [f"step-0000{step:02d}" for step in (3, 6, 9, 12)]
        assert [event["step"] for event in events(out, "save")] == [3, 6, 9, 12]
        found.append([read_manifest(path).files for path in saved])
        assert all(len(files) == 2 for files in found[-1]), "both ranks write, also under ZeRO-0"
    assert found[0] == found[1]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system that holds one checkpoint, where mounting one is allowed."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=700k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a tmpfs is not allowed here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_training_goes_on_when_a_save_fails_and_the_older_checkpoint_stays(
    tmp_path: Path, corpus: Path, small_disk: Path
) -> None:
    out = make_run(tmp_path / "run", corpus, checkpoint={"keep": 1, "directory": str(small_disk)})
    codes, errors = finish(start_training(out, 2))
    assert [path.name for path in checkpoints(small_disk)] == ["step-000004"]
    assert [event["step"] for event in events(out, "save")] == [4]
    assert [event["step"] for event in events(out, "save_failed")] == [8, 12]
    assert all("No space left on device" in event["message"] for event in events(out, "save_failed"))
    assert len(lines(out / "metrics.jsonl")) == 12, "training goes on"
    assert codes == [1, 1], "the state at the end must be saved"
    assert all("step-000012 was not saved" in error for error in errors)


def test_the_save_under_way_is_awaited_by_the_last(saver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, _ = saver
    slow_writes(monkeypatch, 0.4)
    own.begin(1, {"step": 1})
    own.save(2, {"step": 2}, lambda: None, lambda: None)
    assert [end.path.name for end in own.ended()] == ["step-000001", "step-000002"]
    assert len(checkpoints(tmp_path / "checkpoints")) == 2


def test_a_save_names_what_could_not_be_deleted(tmp_path: Path) -> None:
    assert "message" not in SaveEnd(10, tmp_path / "step-000010").event()
    (tmp_path / ".old-step-000005").mkdir()
    told = SaveEnd(10, tmp_path / "step-000010").event()
    assert told["message"] == f"{tmp_path}/.old-step-000005 could not be deleted; it takes room until it is"
    (tmp_path / ".old-step-000004").mkdir()
    assert "could not be deleted (and 1 more)" in SaveEnd(10, tmp_path / "step-000010").event()["message"]


def test_a_save_says_that_it_gets_on_with_every_piece(
    saver: tuple[Saver, dict], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks that wait for this one wait as long as it says so, however large the state and slow the storage."""
    monkeypatch.setattr("fourfold.checkpoint.tensor_file.PIECE_BYTES", 1 << 10)
    own, units = saver
    pieces: list[int] = []
    own.save(1, {"step": 1}, lambda: None, lambda: pieces.append(1))
    assert len(pieces) >= sum(x.nbytes for unit in units.values() for x in unit.states.values()) >> 10
