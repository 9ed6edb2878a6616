"""Copies of checkpoints beside a run: whole or none, tried until they are there, never older than what the disk may lose."""

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st

from fourfold.api.checkpoints import verify_checkpoint
from fourfold.checkpoint import checkpoints, step_of
from fourfold.checkpoint.folders import Retention, prune, remove_checkpoint, step_folder
from fourfold.checkpoint.waiting import read_done, waits
from fourfold.config import parse_run
from fourfold.config.json_lines import read_jsonl
from fourfold.config.remote_path import place
from fourfold.config.schema import CheckpointSection
from fourfold.data.skipped import LeftOut
from fourfold.launch.copied import claimed_copies
from fourfold.launch.ready import owner_of
from fourfold.launch.run_folder import RunFolder
from fourfold.upkeep.copying import Copying
from fourfold.upkeep.work import CheckpointWork, Log
from tests.checkpoint.ranks import Run

MODEL = {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "ffn_size": 56, "vocab_size": 99}
BATCH = {"global_sequences": 8, "sequence_length": 16, "steps": 50}


class FlakyFileSystem(MemoryFileSystem):
    """A store in memory that fails when it is told to. `fails`: asked before every request that changes or reads an object;
    `spoils`: whether the next object arrives with another last byte."""

    protocol = "flaky"
    fails: Callable[[], bool] = staticmethod(lambda: False)
    spoils: Callable[[], bool] = staticmethod(lambda: False)

    def _ask(self) -> None:
        if FlakyFileSystem.fails():
            raise RuntimeError("the store does not answer")

    def open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        self._ask()
        file = super().open(path, mode, **options)
        if "w" in mode and path.endswith(".safetensors") and FlakyFileSystem.spoils():
            write = file.write
            file.write = lambda data: write(bytes(data)[:-1] + b"?")
        return file

    def cat_file(self, path: str, *arguments: Any, **options: Any) -> bytes:
        self._ask()
        return bytes(super().cat_file(path, *arguments, **options))

    def pipe_file(self, path: str, *arguments: Any, **options: Any) -> Any:
        self._ask()
        return super().pipe_file(path, *arguments, **options)


@pytest.fixture(autouse=True)
def flaky(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    fsspec.register_implementation("flaky", FlakyFileSystem, clobber=True)
    monkeypatch.setattr(CheckpointWork, "_wait", lambda self: None)
    yield
    FlakyFileSystem.fails = FlakyFileSystem.spoils = staticmethod(lambda: False)
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


def stands(path: Path, copies: str = "flaky://copies/run", **section: Any) -> tuple[RunFolder, Path]:
    """A run's folder, and its folder of checkpoints."""
    config = parse_run({"model": MODEL, "batch": BATCH, "checkpoint": {"copy_to": copies, **section}})
    folder = RunFolder(path)
    folder.write(config, {"owner": vars(owner_of(folder)), "prepared": "nowhere"})
    (path / "metrics.jsonl").write_text('{"step": 0}\n')
    with claimed_copies(config, owner_of(folder), False) as warning:
        assert warning is None
    return folder, path / "checkpoints"


def copy(folder: RunFolder, ends: tuple[int, ...] = (50,)) -> list[dict[str, Any]]:
    """Copies as the process beside a run does once training has ended; its events."""
    closing = threading.Event()
    closing.set()
    log = Log(folder.path)
    work = Copying(folder, folder.require_config(), ends, closing, log)
    before = len(list(read_jsonl(folder.events)))
    work.run()
    work.end()
    return list(read_jsonl(folder.events))[before:]


def steps_at(root: str | Path) -> list[int]:
    return [step_of(path) or 0 for path in checkpoints(place(root))]


def save(root: Path, step: int, keep: int = 9, seed: int = 0) -> None:
    Run(2, seed=seed).save(root, step, keep)


@pytest.mark.parametrize("where", ["flaky://copies/run", "memory://copies/run", "file://{}/copies", "{}/copies"])
def test_a_copy_is_the_checkpoint_and_the_files_of_the_run(tmp_path: Path, where: str) -> None:
    copies = where.format(tmp_path / "elsewhere")
    folder, root = stands(tmp_path / "run", copies)
    for step in (10, 20, 30):
        save(root, step)
    events = copy(folder)
    assert [(event["event"], event["step"]) for event in events] == [("copy", 30), ("copy", 20)]  # the latest two stay
    assert steps_at(copies) == [20, 30]
    for path in checkpoints(place(copies)):
        verify_checkpoint(path)
        for own in (root / path.name).iterdir():
            assert (path / own.name).read_bytes() == own.read_bytes()
    there = place(copies) / "run"
    for name in ("run.toml", "data.json", "metrics.jsonl"):
        assert (there / name).read_bytes() == (folder.path / name).read_bytes()
    assert copy(folder) == []  # nothing is left to do
    done = read_done(folder.path)
    assert sorted(done.copied) == [20, 30]
    assert done.busy == {}


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 40), st.integers(1, 7))
def test_a_store_that_fails_anywhere_delays_a_copy_and_never_leaves_half_of_one(
    tmp_path_factory: pytest.TempPathFactory, first: int, length: int
) -> None:
    MemoryFileSystem.store.clear()
    folder, root = stands(tmp_path_factory.mktemp("flaky") / "run")
    for step in (10, 20):
        save(root, step)
    asked = 0

    def fails() -> bool:
        nonlocal asked
        asked += 1
        return first <= asked < first + length

    FlakyFileSystem.fails = staticmethod(fails)
    events = copy(folder)
    FlakyFileSystem.fails = staticmethod(lambda: False)
    for path in checkpoints(place("flaky://copies/run")):
        verify_checkpoint(path)
    assert steps_at("flaky://copies/run") == [10, 20]
    told = [event for event in events if event["event"] == "copy_failed"]
    if told:
        assert "the store does not answer" in told[0]["message"]


def test_a_store_that_never_answers_ends_no_run_and_is_told_ever_more_rarely(tmp_path: Path) -> None:
    folder, root = stands(tmp_path / "run")
    save(root, 10)
    FlakyFileSystem.fails = staticmethod(lambda: True)
    events = copy(folder)
    assert [(event["event"], event["tries"]) for event in events] == [("copy_failed", tries) for tries in (1, 2, 4, 6)]
    assert events[-1]["message"].endswith("it is given up")
    FlakyFileSystem.fails = staticmethod(lambda: False)
    assert [event["event"] for event in copy(folder)] == ["copy"]


def test_bytes_that_change_on_the_way_are_sent_again(tmp_path: Path) -> None:
    folder, root = stands(tmp_path / "run")
    save(root, 10)
    left = iter([True])
    FlakyFileSystem.spoils = staticmethod(lambda: next(left, False))
    failed, done = copy(folder)
    assert "did not arrive as it was sent" in failed["message"]
    assert done["tries"] == 2
    verify_checkpoint(place("flaky://copies/run/step-000010"))


def test_a_damaged_checkpoint_is_told_and_holds_up_no_other(tmp_path: Path) -> None:
    folder, root = stands(tmp_path / "run")
    for step in (10, 20):
        save(root, step)
    file = root / "step-000020" / "rank-00001.safetensors"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    failed, done = copy(folder)
    assert (failed["event"], failed["step"], done["event"], done["step"]) == ("copy_failed", 20, "copy", 10)
    assert "rank-00001.safetensors is corrupt" in failed["message"]
    assert steps_at("flaky://copies/run") == [10]


def test_all_copies_stay_where_that_is_asked_for(tmp_path: Path) -> None:
    folder, root = stands(tmp_path / "run", copy_all=True)
    for step in (10, 20, 30):
        save(root, step)
    copy(folder)
    for step in (10, 20):
        remove_checkpoint(step_folder(root, step))
    save(root, 40)
    copy(folder)
    assert steps_at("flaky://copies/run") == [10, 20, 30, 40]


def test_copies_for_good_stay(tmp_path: Path) -> None:
    folder, root = stands(tmp_path / "run", keep=1, keep_every_steps=20)
    for step in (10, 20, 30, 50):
        save(root, step)
        copy(folder, (30, 50))
    assert steps_at("flaky://copies/run") == [20, 30, 50]


def test_what_the_run_went_back_from_goes_before_the_list_of_what_it_left_out_comes(tmp_path: Path) -> None:
    folder, root = stands(tmp_path / "run", copy_all=True)
    for step in (10, 20, 30):
        save(root, step)
    copy(folder)
    for step in (20, 30):
        remove_checkpoint(step_folder(root, step))
    left_out = LeftOut(rollbacks=1).model_dump_json()
    (folder.path / "skipped_data.json").write_text(left_out)
    save(root, 15, seed=1)
    copy(folder)
    assert steps_at("flaky://copies/run") == [10, 15]
    assert json.loads(place("flaky://copies/run/run/skipped_data.json").read_bytes())["rollbacks"] == 1
    save(root, 20, seed=2)
    copy(folder)
    assert (
        place("flaky://copies/run/step-000020/manifest.json").read_bytes()
        == (root / "step-000020" / "manifest.json").read_bytes()
    )


def test_copies_that_the_disk_lost_stay_until_the_run_came_past_them(tmp_path: Path) -> None:
    folder, root = stands(tmp_path / "run", copy_all=True)
    for step in (10, 20, 30):
        save(root, step)
    copy(folder)
    for step in (20, 30):
        remove_checkpoint(step_folder(root, step))
    copy(folder)
    assert steps_at("flaky://copies/run") == [10, 20, 30]
    save(root, 25, seed=1)
    copy(folder)
    assert steps_at("flaky://copies/run") == [10, 20, 25]


def test_the_place_of_another_run_is_left_alone(tmp_path: Path) -> None:
    folder, root = stands(tmp_path / "run")
    save(root, 10)
    place("flaky://copies/run/owner.json").write_text('{"run": "other", "folder": "/other", "host": "there"}')
    [failed] = copy(folder)
    assert "took this folder of checkpoints over" in failed["message"]
    assert steps_at("flaky://copies/run") == []


def test_a_checkpoint_waits_on_the_disk_until_it_is_copied_while_there_is_room(tmp_path: Path) -> None:
    folder, root = stands(tmp_path / "run", copy_all=True)
    waiting = waits(folder.require_config().checkpoint, (50,), folder.path)
    for step in (10, 20, 30, 40):
        save(root, step)
        prune(root, Retention(1), step_folder(root, step), waiting)
    assert steps_at(root) == [10, 20, 30, 40]
    prune(root, Retention(1, most=3), step_folder(root, 40), waiting)  # checkpoint.max_bytes
    assert steps_at(root) == [20, 30, 40]
    prune(root, Retention(1), step_folder(root, 40), waiting, 2**70)  # no room for the next
    assert steps_at(root) == [40]
    save(root, 45)
    copy(folder)
    prune(root, Retention(1), step_folder(root, 45), waiting)
    assert steps_at(root) == [45]


def test_nothing_waits_where_nothing_is_copied_or_exported(tmp_path: Path) -> None:
    save(tmp_path, 10)
    assert not waits(CheckpointSection(), (50,), tmp_path)(tmp_path / "step-000010")
    assert not waits(CheckpointSection(export_every_steps=20), (50,), tmp_path)(tmp_path / "step-000010")
    assert waits(CheckpointSection(export_every_steps=10), (50,), tmp_path)(tmp_path / "step-000010")
    assert waits(CheckpointSection(export_stage_ends=True), (10, 50), tmp_path)(tmp_path / "step-000010")
