"""Lost ranks come back from copies in memory: at most one step is lost, the run is equal to the bit, memory is free at the end."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")
from fourfold.rendezvous.memory_folder import close_memory_folder, memory_folder, open_memory_folder
from tests.support.supervised import Supervised, left_by, write_run

STEPS = 40
COPIES = ("checkpoint.memory_every_steps=1", "checkpoint.every_steps=20")


@pytest.fixture(scope="module")
def run_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("run"), STEPS)


@pytest.fixture(scope="module")
def undisturbed(run_file: Path):
    with Supervised(run_file, run_file.parent / "undisturbed", "checkpoint.every_steps=20") as run:
        assert run.finish() == 0, run.printed
        return left_by(run.out)


@pytest.fixture
def out(tmp_path: Path) -> Iterator[Path]:
    """A run's folder, whose memory is freed whatever happens."""
    yield tmp_path / "run"
    close_memory_folder(tmp_path / "run")


def stopped_with_a_copy(run: Supervised, step: int) -> Path:
    """Stops all ranks past a step; the newest copy in memory, which is whole."""
    run.wait_for_step(step)
    folder = memory_folder(run.out)
    assert folder is not None
    for rank in range(run.ranks):
        run.signal_rank(rank, signal.SIGSTOP)
    return max(path.parent for path in folder.glob("step-*/manifest.json"))


def test_at_most_one_step_is_lost(run_file, undisturbed, out) -> None:
    with Supervised(run_file, out, *COPIES) as run:
        for step, rank in ((5, 1), (12, 0), (27, 1)):
            run.wait_for_step(step)
            run.kill_rank(rank)
        assert run.finish() == 0, run.printed
        failures, resumes = run.events("failure"), run.events("resume")
        assert len(failures) == len(resumes) == 3
        for failure, resume in zip(failures, resumes, strict=True):
            assert resume["in_memory"]
            assert failure["step"] - resume["step"] <= 1
        assert "resumed at step" in run.printed
        assert " from memory" in run.printed
        assert "copied to memory" not in run.printed
        assert left_by(out) == undisturbed
        assert memory_folder(out) is None


def test_a_corrupt_copy_falls_to_the_disk(run_file, undisturbed, out) -> None:
    with Supervised(run_file, out, *COPIES) as run:
        copy = stopped_with_a_copy(run, 22)
        damaged = copy / "rank-00001.safetensors"
        data = bytearray(damaged.read_bytes())
        data[len(data) // 2] ^= 1
        damaged.write_bytes(data)
        run.kill_rank(0)
        assert run.finish() == 0, run.printed
        (refused,), (resume,) = run.events("refuse"), run.events("resume")
        assert damaged.name in refused["message"]
        assert (resume["step"], resume.get("in_memory")) == (20, None)
        assert left_by(out) == undisturbed


@pytest.mark.faults
def test_a_rank_may_be_killed_while_it_copies(run_file, undisturbed, out) -> None:
    with Supervised(run_file, out, *COPIES) as run:
        for step in (3, 6, 9, 14, 24, 30, 33):
            run.wait_for_step(step)
            folder = memory_folder(out)
            assert folder is not None
            run.wait_until(lambda folder=folder: any(folder.glob(".tmp-step-*/rank-*")))
            run.kill_rank(step % 2)
        assert run.finish() == 0, run.printed
        for failure, resume in zip(run.events("failure"), run.events("resume"), strict=True):
            assert failure["step"] - resume["step"] <= 2  # the copy under way, and that of the step before
        assert left_by(out) == undisturbed


def test_the_next_command_goes_on_from_memory_where_the_supervisor_was_killed(run_file, undisturbed, out) -> None:
    with Supervised(run_file, out, *COPIES) as run:
        copy = stopped_with_a_copy(run, 23)
        pids = run.pids
        run.process.kill()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
    with Supervised(run_file, out, *COPIES) as run:
        assert run.finish() == 0, run.printed
        assert [f"step-{event['step']:06d}" for event in run.events("resume")] == [copy.name]
        assert left_by(out) == undisturbed
        assert not copy.parent.exists()


def test_a_run_that_fails_leaves_its_newest_copy_on_the_disk(run_file, out) -> None:
    with Supervised(run_file, out, *COPIES, fault="error:1:27:99") as run:
        assert run.finish() == 1, run.printed
        newest = max((out / "checkpoints").glob("step-*/manifest.json")).parent.name
        assert newest in ("step-000026", "step-000027")  # the copy before step 27 may have been under way
        assert f"goes on from step {newest[-2:]}" in run.printed
        assert memory_folder(out) is None


@pytest.mark.faults
def test_full_memory_is_reported_and_training_goes_on(run_file, undisturbed, out) -> None:
    place = None
    try:
        with Supervised(run_file, out, *COPIES) as run:
            run.wait_until(lambda: memory_folder(out))
            place = memory_folder(out)
            mount = ["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs", str(place)]
            if subprocess.run(mount, capture_output=True, check=False).returncode:
                pytest.skip("mounting a tmpfs is not allowed here")
            assert run.finish() == 0, run.printed
            assert "No space left on device" in run.events("copy_failed")[0]["message"]
            assert left_by(out) == undisturbed
    finally:
        subprocess.run(["umount", str(place)], capture_output=True, check=False)
        shutil.rmtree(str(place), ignore_errors=True)


def test_a_folder_that_others_may_enter_is_not_used(tmp_path) -> None:
    folder = open_memory_folder(tmp_path)
    try:
        assert folder.stat().st_mode & 0o777 == 0o700
        assert memory_folder(tmp_path) == folder == open_memory_folder(tmp_path)
        folder.chmod(0o755)
        assert memory_folder(tmp_path) is None
        (tmp_path / ".memory").write_text("../etc")
        assert memory_folder(tmp_path) is None
    finally:
        folder.rmdir()
