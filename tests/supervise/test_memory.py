"""Copies of the state in memory: ranks and machines that are lost go on from them, at most one step back, equal to the bit."""

import json
import os
import signal
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

pytest.importorskip("torch")
from fourfold.checkpoint.file_bytes import CHUNK_BYTES
from fourfold.runtime.memory_file import MemoryFile
from tests.support.supervised import Supervised, free_port, left_by, on_machines, read_lines, write_run
from tests.support.waiting import until

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
    """The memory file that a supervisor holds open, among files that it opens and closes meanwhile."""
    found = []
    for path in Path(f"/proc/{run.process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            found += [path] if os.readlink(path).startswith("/dev/shm/#") else []
    (file,) = found
    return MemoryFile(os.open(file, os.O_RDWR))


def resumed(run: Supervised) -> list[tuple[int, str]]:
    return [(event["step"], event["source"]) for event in run.events("resume")]


def holders_of(name: str) -> list[int]:
    """Processes that have the file open which /proc names so."""
    found = []
    for path in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            found += [int(path.parts[2])] if os.readlink(path) == name else []
    return found


@pytest.mark.rest
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


@pytest.mark.rest
@pytest.mark.parametrize("where", ["data", "head"])
def test_a_flipped_byte_falls_to_the_next_source(run_file: Path, undisturbed, tmp_path: Path, where: str) -> None:
    """Rank 1 stops itself, and nobody minds; the other waits for it, while bytes are flipped. The save of step 5 has ended before
    step 6: beside training, a rank that is stopped would never end its part."""
    own = tmp_path / "run.toml"  # faults are counted in its folder
    own.write_text(run_file.read_text())
    changes = (*MEMORY, "checkpoint.every_steps=5", "checkpoint.asynchronous=false", "faults.stall_seconds=0")
    with Supervised(own, tmp_path / "run", *changes, fault="stop:1:9:1") as run:
        run.wait_for_stop(1)
        memory = memory_of(run)
        for version in (0, 1):
            place = memory.data_start(1, version) + 5000
            if where == "head":
                place = memory.data_start(1, version) - (1 << 28) + 50
            byte = os.pread(memory.descriptor, 1, place)
            memory.write(bytes([byte[0] ^ 4]), place)
        os.close(memory.descriptor)
        os.kill(run.pids[1], signal.SIGKILL)
        assert run.finish() == 0, run.printed
        (step, source), *_ = resumed(run)
        assert source == "disk"
        assert step % 5 == 0
        if where == "data":
            assert "are not those saved" in run.events("memory_refused")[0]["message"]
        rows, files = left_by(run.out)
        assert (rows, files[1]) == (undisturbed[0], undisturbed[1][1])


def test_every_chunk_of_a_copy_is_checked(tmp_path: Path) -> None:
    """A byte of another chunk is flipped in every region, until each chunk had one, the digests behind them too."""
    changes = ("model.hidden_size=96", "model.ffn_size=256", "batch.steps=1000000", "checkpoint.every_steps=1000000")
    with Supervised(write_run(tmp_path), tmp_path / "run", *MEMORY, *changes, "faults.restarts=1000") as run:
        chunk, size = 0, 1
        while chunk * CHUNK_BYTES < size:
            begun = [row["step"] for row in read_lines(run.out / "events.jsonl") if row["event"] in ("start", "resume")]
            run.wait_for_step(begun[-1] + 3 if begun else 3)
            pids, before, flipped = run.pids, len(run.events("memory_refused")), []
            for pid in pids:
                os.kill(pid, 19)
            memory = memory_of(run)
            for rank, version in memory.regions():
                head = memory.head(rank, version)
                if head is None or chunk * CHUNK_BYTES >= size:
                    continue
                size = json.loads(head)["file"]["size_bytes"]
                body = size - 16 * -(-size // (CHUNK_BYTES + 16))
                start, end = min(chunk * CHUNK_BYTES, body), min((chunk + 1) * CHUNK_BYTES, body)
                place = memory.data_start(rank, version) + (max(start, end - 9) if start < body else body + 3)
                memory.write(bytes([os.pread(memory.descriptor, 1, place)[0] ^ 4]), place)
                flipped.append(f"bytes {start} to {end} are" if start < body else "the digests at its end are")
                chunk += 1
            os.close(memory.descriptor)
            os.kill(pids[0], 9)
            run.wait_until(lambda pids=pids: run.has_replaced(pids))
            told = before + len(flipped)
            run.wait_until(lambda told=told: len(run.events("memory_refused")) >= told)
            messages = [event["message"] for event in run.events("memory_refused")[before:]]
            assert all(any(words in message for message in messages) for words in flipped), (flipped, messages)
        assert chunk > 4


@pytest.mark.rest
def test_killed_within_a_copy_the_one_before_is_taken(run_file: Path, undisturbed, tmp_path: Path) -> None:
    with Supervised(run_file, tmp_path / "run", *MEMORY, fault="copy:1:7:1") as run:
        assert run.finish() == 0, run.printed
        assert resumed(run) == [(7, "memory")], "copied after step 7 was done: the copy of 8 was torn"
        assert left_by(run.out) == undisturbed


@pytest.mark.rest
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


@pytest.mark.rest
def test_a_killed_supervisor_leaves_no_memory(run_file: Path, tmp_path: Path) -> None:
    """The file has no name, so that its memory is free when no process has it open: whatever else is in /dev/shm."""
    with Supervised(run_file, tmp_path / "run", *MEMORY, "batch.steps=100000") as run:
        run.wait_for_step(5)
        descriptor = memory_of(run).descriptor
        status, name = os.fstat(descriptor), os.readlink(f"/proc/self/fd/{descriptor}")
        assert status.st_mode & 0o777 == 0o600
        assert status.st_nlink == 0
        assert 512 * status.st_blocks > 100_000
        os.close(descriptor)
        assert run.process.pid in holders_of(name)
        run.process.kill()
        run.process.wait()
    until(lambda: not holders_of(name))


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
            assert other.finish() == 0, other.printed
        ((step, source),) = resumed(leader)
        assert source == "memory", leader.printed
        assert 0 <= leader.events("failure")[0]["step"] - step <= 2
    assert left_by(out) == left_by(tmp_path / "undisturbed")


LAUNCHERS = {
    "torchrun": lambda rank: {"RANK": rank, "WORLD_SIZE": 4, "LOCAL_RANK": rank % 2, "LOCAL_WORLD_SIZE": 2},
    "slurm": lambda rank: {
        "SLURM_PROCID": rank,
        "SLURM_NTASKS": 4,
        "SLURM_LOCALID": rank % 2,
        "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
        "SLURM_NODEID": rank // 2,
    },
    "kubernetes": lambda pod: {"NNODES": 4, "JOB_COMPLETION_INDEX": pod},
}


@pytest.mark.faults
@pytest.mark.parametrize(
    ("launcher", "layout"),
    [("torchrun", ()), ("slurm", ("layout.dp_shard=2", "layout.dp_replicate=2")), ("kubernetes", ())],
)
def test_a_host_of_two_supervisors_that_is_lost(
    run_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launcher: str, layout: tuple[str, ...]
) -> None:
    """Four supervisors of a rank each, on two hosts: a rank's copies lie on both."""
    out, flags = tmp_path / "run", {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    boots = [tmp_path / f"boot-{host}" for host in range(2)]
    for host, boot in enumerate(boots):
        boot.write_text(f"{host + 1:08x}-0000-4000-8000-000000000000\n")
    mount = 'mount --bind "$1" /proc/sys/kernel/random/boot_id || exit 77; shift; exec "$@"'

    def start(number: int) -> Supervised:
        for key, value in {**flags, **LAUNCHERS[launcher](number)}.items():
            monkeypatch.setenv(key, str(value))
        prefix = ["unshare", "--mount", "sh", "-c", mount, "sh", str(boots[number // 2])]
        each = {"ranks": 1, "machines": 4} if launcher == "kubernetes" else {"ranks": 4}
        return Supervised(run_file, out, *MEMORY, *layout, machine=number, prefix=prefix, **each)

    with ExitStack() as alive:
        leader, *others = [alive.enter_context(start(number)) for number in range(4)]
        while not (leader.pids and min(place.step for place in leader.positions) > 6):
            if leader.process.poll() == 77:
                pytest.skip("nothing can be mounted here")
            assert leader.process.poll() is None, leader.printed
        for other in others[1:]:
            other.process.kill()
        leader.wait_until(lambda: leader.events("wait"))
        for number in (2, 3):
            alive.enter_context(start(number))
        assert leader.finish() == 0, leader.printed
        ((step, source),) = resumed(leader)
        assert source == "memory", leader.printed
        assert 0 <= leader.events("failure")[0]["step"] - step <= 2


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
