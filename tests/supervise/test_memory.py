"""Copies of the state in memory: ranks and machines that are lost go on from them, at most one step back, equal to the bit."""

import json
import os
from pathlib import Path

import pytest

pytest.importorskip("torch")
from fourfold.runtime.memory_file import MemoryFile
from tests.support.supervised import Supervised, free_port, left_by, on_machines, write_run

STEPS = 30
MEMORY = ("checkpoint.memory_every_steps=1", "checkpoint.every_steps=20")


@pytest.fixture(scope="module")
def run_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("run"), STEPS)


@pytest.fixture(scope="module")
def undisturbed(run_file: Path):
    with Supervised(run_file, run_file.parent / "undisturbed", *MEMORY) as run:
        assert run.finish() == 0, run.printed
    return left_by(run.out)


def memory_of(run: Supervised) -> MemoryFile:
    """The memory file that a supervisor holds open."""
    folder = Path(f"/proc/{run.process.pid}/fd")
    (found,) = [path for path in folder.iterdir() if os.readlink(path).startswith("/dev/shm/#")]
    return MemoryFile(os.open(found, os.O_RDWR))


def resumed(run: Supervised) -> list[tuple[int, str]]:
    return [(event["step"], event["source"]) for event in run.events("resume")]


def free_bytes() -> int:
    found = os.statvfs("/dev/shm")
    return found.f_bfree * found.f_frsize


def test_ranks_go_on_from_memory_at_most_one_step_back(run_file: Path, undisturbed, tmp_path: Path) -> None:
    with Supervised(run_file, tmp_path / "run", *MEMORY) as run:
        for step, rank in ((2, 1), (9, 0)):
            run.wait_for_step(step)
            run.kill_rank(rank)
        assert run.finish() == 0, run.printed
        failed = [event["step"] for event in run.events("failure")]
        assert [source for _, source in resumed(run)] == ["memory"] * 2
        assert all(0 <= at - step <= 1 for at, (step, _) in zip(failed, resumed(run), strict=True))
        assert f"resumed from step {resumed(run)[0][0]} in memory" in run.printed
        assert left_by(run.out) == undisturbed


@pytest.mark.parametrize("where", ["data", "head"])
def test_a_flipped_byte_falls_to_the_next_source(run_file: Path, undisturbed, tmp_path: Path, where: str) -> None:
    with Supervised(run_file, tmp_path / "run", *MEMORY, "checkpoint.every_steps=5") as run:
        run.wait_for_step(8)
        pids = run.pids
        for pid in pids:
            os.kill(pid, 19)
        memory = memory_of(run)
        for version in (0, 1):
            place = memory.data_start(1, version) + 5000
            if where == "head":
                place = memory.data_start(1, version) - (1 << 28) + 50
            byte = os.pread(memory.descriptor, 1, place)
            memory.write(bytes([byte[0] ^ 4]), place)
        os.close(memory.descriptor)
        os.kill(pids[1], 9)
        assert run.finish() == 0, run.printed
        (step, source), *_ = resumed(run)
        assert source == "disk"
        assert step % 5 == 0
        if where == "data":
            assert "are not those saved" in run.events("memory_refused")[0]["message"]
        rows, files = left_by(run.out)
        assert (rows, files[1]) == (undisturbed[0], undisturbed[1][1])


def test_killed_within_a_copy_the_one_before_is_taken(run_file: Path, undisturbed, tmp_path: Path) -> None:
    with Supervised(run_file, tmp_path / "run", *MEMORY, fault="copy:1:7:1") as run:
        assert run.finish() == 0, run.printed
        assert resumed(run) == [(7, "memory")], "copied after step 7 was done: the copy of 8 was torn"
        assert left_by(run.out) == undisturbed


def test_without_room_training_goes_on(run_file: Path, undisturbed, tmp_path: Path) -> None:
    small = 'mount -t tmpfs -o size=64k tmpfs /dev/shm || exit 77; exec "$@"'
    prefix = ["unshare", "--mount", "sh", "-c", small, "sh"]
    with Supervised(run_file, tmp_path / "run", *MEMORY, prefix=prefix) as run:
        code = run.finish()
        if code == 77:
            pytest.skip("no file system can be mounted here")
        assert code == 0, run.printed
        (event, *_) = run.events("memory_failed")
        assert "/dev/shm: No space left on device" in event["message"]
        assert "65536 are free" in event["message"] or "are free" in event["message"]
        assert left_by(run.out) == undisturbed


def test_a_killed_supervisor_leaves_no_memory(run_file: Path, tmp_path: Path) -> None:
    before = free_bytes()
    with Supervised(run_file, tmp_path / "run", *MEMORY, "batch.steps=100000") as run:
        run.wait_for_step(5)
        assert os.fstat(memory_of(run).descriptor).st_mode & 0o777 == 0o600
        held = before - free_bytes()
        assert held > 100_000
        pids = run.pids
        run.process.kill()
        run.process.wait()
        for descriptor in list(Path("/proc/self/fd").iterdir()):
            if os.path.islink(descriptor) and os.readlink(descriptor).startswith("/dev/shm/#"):
                os.close(int(descriptor.name))
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        pass
    assert before - free_bytes() < held / 2


@pytest.mark.faults
@pytest.mark.parametrize("layout", [(), ("layout.dp_shard=1", "layout.dp_replicate=2")], ids=["sent", "replica"])
def test_a_machine_that_is_lost_with_its_memory(run_file: Path, tmp_path: Path, layout: tuple[str, ...]) -> None:
    with Supervised(run_file, tmp_path / "undisturbed", *MEMORY, *layout) as run:
        assert run.finish() == 0, run.printed
    port, out = free_port(), tmp_path / "run"
    with on_machines(run_file, out, *MEMORY, *layout, machine=0, port=port) as leader:
        with on_machines(run_file, out, *MEMORY, *layout, machine=1, port=port) as other:
            leader.wait_for_step(6)
            other.process.kill()
        leader.wait_until(lambda: leader.events("wait"))
        with on_machines(run_file, out, *MEMORY, *layout, machine=1, port=port) as other:
            assert leader.finish() == 0, leader.printed
            assert other.finish(10) == 0, other.printed
        ((step, source),) = resumed(leader)
        assert source == "memory", leader.printed
        assert 0 <= leader.events("failure")[0]["step"] - step <= 2
    assert left_by(out) == left_by(tmp_path / "undisturbed")


@pytest.mark.faults
def test_fewer_ranks_go_on_from_memory(tmp_path: Path) -> None:
    run_file = write_run(tmp_path, 60)
    changes = (*MEMORY, "precision.compute=fp64", "faults.elastic=true", "faults.probe_seconds=0.5", "layout.zero=3")
    with Supervised(run_file, tmp_path / "run", *changes, ranks=4, fault="device:3::") as run:
        run.wait_for_step(6)
        (tmp_path / "broken").write_text("")
        run.kill_rank_for_ever(3)
        run.wait_until(lambda: run.events("resize"))
        assert run.finish() == 0, run.printed
        assert resumed(run)[0][1] == "memory"
        assert run.events("resume")[0]["ranks"] < 4


def test_regions_are_numbered_and_heads_are_checked(tmp_path: Path) -> None:
    memory = MemoryFile(os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT))
    assert (memory.regions(), memory.lineage, memory.newest_step()) == ([], {}, 0)
    for rank, version in ((0, 1), (3, 0)):
        memory.commit(rank, version, json.dumps({"step": rank + 5}))
    assert memory.regions() == [(0, 1), (3, 0)]
    assert memory.newest_step() == 8
    memory.lineage = {"fence": 3}
    memory.begin(3, 0)
    assert memory.head(3, 0) is None
    memory.free(0, 1)
    assert (memory.head(0, 1), memory.lineage) == (None, {"fence": 3})
