"""Disks that fail while a run goes on: training goes on, all ranks say the same, older checkpoints stay, and nothing is lost."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")
from fourfold.checkpoint import checkpoints
from tests.support.supervised import Supervised, left_by, write_run


@pytest.fixture(scope="module")
def run_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("run"), 18)


@pytest.fixture(scope="module")
def undisturbed(run_file: Path):
    with Supervised(run_file, run_file.parent / "undisturbed") as run:
        assert run.finish() == 0, run.printed
    return left_by(run.out)


@pytest.mark.rest
def test_a_disk_with_errors(run_file: Path, undisturbed, tmp_path: Path) -> None:
    """The kernel answers one rank's syncs with EIO from step 7 on. The last save must succeed: all start again, and it does."""
    with Supervised(run_file, tmp_path / "run", fault="disk:1:7:1") as run:
        assert run.finish() == 0, run.printed
        failed = run.events("save_failed")
        assert [event["step"] for event in failed] == [10, 15, 18]
        for event in failed:
            assert "rank 1: [Errno 5] Input/output error" in event["message"]
            assert "newest complete checkpoint is step-000005" in event["message"]
        (failure,) = run.events("failure")
        assert "step-000018 was not saved: rank 1: " in failure["message"]
        assert [event["step"] for event in run.events("resume")] == [5]
        assert left_by(run.out) == undisturbed


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(disk)], capture_output=True, check=False).returncode:
        pytest.skip("mounting a tmpfs is not allowed here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.rest
def test_a_disk_that_is_read_only_for_a_while(run_file: Path, undisturbed, tmp_path: Path, disk: Path) -> None:
    with Supervised(run_file, tmp_path / "run", f"checkpoint.directory={disk / 'saved'}") as run:
        run.wait_until(lambda: run.events("save"))
        remount(disk, "ro")
        run.wait_until(lambda: run.events("save_failed"))
        assert [path.name for path in checkpoints(disk / "saved")] == ["step-000005"]
        remount(disk, "rw")
        assert run.finish() == 0, run.printed
        assert "Read-only file system" in run.events("save_failed")[0]["message"]
        assert run.events("failure") == []
        assert run.events("save")[-1]["step"] == 18
    (run.out / "checkpoints").symlink_to(disk / "saved")
    assert left_by(run.out) == undisturbed


def remount(disk: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(disk)], check=True)
