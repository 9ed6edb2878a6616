"""A save that fails leaves nothing behind and fails on every rank; what stood before stands."""

import errno
import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fourfold.checkpoint import folders, latest_checkpoint, load_checkpoint, read_parameters, save, save_checkpoint
from fourfold.config import RunFailure
from tests.checkpoint.ranks import Run, entries


class Crash(BaseException):
    """The process is gone: nothing handles it."""


def full_disk(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def check_all_failed(results: list, root: Path, *words: str) -> None:
    """Every rank raised a `RunFailure` with these words, and the checkpoint before is all that there is."""
    for result in results:
        assert isinstance(result, RunFailure), result
        for word in (
            str(root / "step-000002"),
            "need",
            "are free",
            "newest complete checkpoint is step-000001",
            *words,
        ):
            assert word in str(result), f"{word!r} not in {result}"
    assert entries(root) == ["step-000001"]
    read_parameters(root / "step-000001")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    Run(3).save(tmp_path, 1)
    return tmp_path


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_full_disk_in_one_ranks_tensors(root: Path, monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    original = save.write_tensors

    def write(path: Path, *rest: Any) -> Any:
        if f"{rank:05d}" not in path.name:
            return original(path, *rest)
        path.write_bytes(b"half")
        return full_disk()

    monkeypatch.setattr(save, "write_tensors", write)
    check_all_failed(Run(3, replicas=2).save(root, 2), root, f"rank {rank}: ", "No space left on device")


@pytest.mark.parametrize("name", ["rank-00001.json", "manifest.json", "sound"])
def test_a_full_disk_in_a_small_file(root: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    original = folders.write_text
    monkeypatch.setattr(
        folders, "write_text", lambda path, text: full_disk() if path.name == name else original(path, text)
    )
    check_all_failed(Run(3, replicas=2).save(root, 2), root, "No space left on device")


def test_a_disk_too_full_for_the_word_that_it_is_full(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(save, "write_tensors", full_disk)
    monkeypatch.setattr(Path, "write_text", full_disk)
    results = Run(3).save(root, 2)
    check_all_failed(results, root, "larger disk")
    assert any("No space left on device" in str(result) for result in results), "a rank knows its own error"


def test_one_rank_mute_and_the_others_well(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither record nor word nor removed mark: the record that is missing is the signal."""
    original = save.write_part
    monkeypatch.setattr(
        save, "write_part", lambda folder, step, rank, *rest: rank == 1 or original(folder, step, rank, *rest)
    )
    check_all_failed(Run(3).save(root, 2), root, "no rank wrote shard 1 of unit embed")


def test_an_error_that_is_no_disks(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_all_failed(Run(3).save(root, 2, info={"bad": object()}), root, "rank 0: TypeError: Object of type object")


def test_a_disk_that_cannot_hold_it_is_seen_before_writing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "free_bytes", lambda _: 1000)
    monkeypatch.setattr(save, "write_tensors", lambda *_: pytest.fail("wrote to a disk that is too small"))
    check_all_failed(Run(3).save(root, 2), root, "rank 0: ", "No space left on device")


def test_a_rank_that_does_not_share_the_folder(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    results = Run(3).save(root, 2, roots={2: elsewhere})
    assert all(isinstance(result, RunFailure) for result in results)
    assert "no rank wrote shard 2" in str(results[0])
    assert entries(root) == ["step-000001"]
    assert entries(elsewhere) == []


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for result in Run(2).save(tmp_path / "file", 1):
        assert isinstance(result, RunFailure)
        assert "file" in str(result)


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB, where mounting one is allowed."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(tmp_path)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a tmpfs is not allowed here")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.parametrize("look_first", [True, False])
def test_a_disk_that_is_really_full(tiny_disk: Path, monkeypatch: pytest.MonkeyPatch, look_first: bool) -> None:
    run = Run(2, replicas=2)
    assert run.save(tiny_disk, 1, keep=1)[0] == tiny_disk / "step-000001"
    (tiny_disk / "filler").write_bytes(bytes(folders.free_bytes(tiny_disk) - 20000))
    if not look_first:
        monkeypatch.setattr(folders, "require_space", lambda *_: None)
    for result in run.save(tiny_disk, 2, keep=1):
        assert isinstance(result, RunFailure)
        assert "No space left on device" in str(result)
        assert "It needs" in str(result)
    assert entries(tiny_disk) == ["filler", "step-000001"]
    (tiny_disk / "filler").unlink()
    assert run.save(tiny_disk, 2, keep=1) == [tiny_disk / "step-000002"] * 4
    assert entries(tiny_disk) == ["step-000002"]


def test_a_disk_without_room_for_another_file(tiny_disk: Path) -> None:
    """Bytes are free; its file system has no place for the name of a file."""
    Run(2).save(tiny_disk, 1)
    subprocess.run(["mount", "-o", "remount,nr_inodes=20", str(tiny_disk)], check=True)
    for number in range(os.statvfs(tiny_disk).f_favail):
        (tiny_disk / f"filler-{number}").touch()
    for result in Run(2).save(tiny_disk, 2):
        assert isinstance(result, RunFailure)
        assert "its file system takes no more files (it has 20): delete some there" in str(result)
    assert latest_checkpoint(tiny_disk) == tiny_disk / "step-000001"


def test_a_limit_of_a_files_length(root: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, before[1]))
    try:
        results = Run(3).save(root, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    for result in results:
        assert "File too large" in str(result)
        assert "a file of this process may have 3.00 kB: what works: ulimit -f unlimited" in str(result)
    assert entries(root) == ["step-000001"]


@pytest.mark.parametrize("barrier", [1, 2, 3, 4, 5])
def test_a_crash_at_any_barrier(tmp_path: Path, barrier: int) -> None:
    """The latest checkpoint afterwards is complete: the old one, or the new one. The next save tidies up."""
    old, new = Run(1, seed=1), Run(1, seed=2)
    old.save(tmp_path, 1)
    passed = 0

    def synchronize() -> None:
        nonlocal passed
        passed += 1
        if passed == barrier:
            raise Crash

    with pytest.raises(Crash):
        save_checkpoint(
            tmp_path, 2, new.shards(0), {"step": 2}, rank=0, is_writer=True, synchronize=synchronize, keep=2
        )
    latest = latest_checkpoint(tmp_path)
    assert latest is not None
    info = load_checkpoint(latest, new.shards(0))
    assert (latest.name, info["step"]) == (("step-000002", 2) if barrier > 2 else ("step-000001", 1))
    new.save(tmp_path, 3)
    assert [name for name in entries(tmp_path) if name.startswith(".")] == []


def test_a_crash_in_the_middle_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(1)
    run.save(tmp_path, 1)

    def crash(path: Path, *_: Any) -> Any:
        path.write_bytes(b"half a file")
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(save, "write_tensors", crash)
        with pytest.raises(Crash):
            save_checkpoint(tmp_path, 2, run.shards(0), {}, rank=0, is_writer=True, synchronize=lambda: None, keep=1)
    assert entries(tmp_path) == [".tmp-step-000002", "step-000001"]
    assert latest_checkpoint(tmp_path) == tmp_path / "step-000001"
    run.save(tmp_path, 3, keep=1)
    assert entries(tmp_path) == ["step-000003"]


def test_a_deletion_cut_short_is_finished_by_the_next_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(1)
    run.save(tmp_path, 1, keep=1)
    with monkeypatch.context() as patch:
        patch.setattr(folders.shutil, "rmtree", full_disk)
        run.save(tmp_path, 2, keep=1)
    assert entries(tmp_path) == [".old-step-000001", "step-000002"]
    run.save(tmp_path, 3, keep=1)
    assert entries(tmp_path) == ["step-000003"]


def test_a_checkpoint_that_reads_back_otherwise_is_none_and_the_one_before_stays(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk lies: a bit is flipped after the write."""
    original = save.drop_from_cache

    def flip(path: Path) -> None:
        if path.name == "rank-00001.safetensors":
            data = bytearray(path.read_bytes())
            data[-4000] ^= 1
            path.write_bytes(data)
        original(path)

    monkeypatch.setattr(save, "drop_from_cache", flip)
    results = Run(3).save(root, 2, keep=1)
    assert all(isinstance(result, RunFailure) and "is corrupt" in str(result) for result in results), results
    assert latest_checkpoint(root) == root / "step-000001"
    monkeypatch.undo()
    assert Run(3).save(root, 3, keep=1) == [root / "step-000003"] * 3
