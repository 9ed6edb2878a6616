"""Faults of what lies around the ranks: the process that forks them, the folder, the output's reader, the machine's memory."""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("torch")
from fourfold.launch.failures import describe_failure, describe_signal
from tests.support.supervised import Supervised, left_by, write_run

FOR_EVER = "batch.steps=100000"


@pytest.fixture(scope="module")
def run_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("run"), 30)


@pytest.fixture(scope="module")
def undisturbed(run_file: Path):
    with Supervised(run_file, run_file.parent / "undisturbed") as run:
        assert run.finish() == 0, run.printed
        return left_by(run.out)


def server_of(run: Supervised) -> int:
    """The process that forks ranks."""
    return int(Path(f"/proc/{run.pids[0]}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.parametrize(
    ("number", "out_of_memory", "words"),
    [
        (signal.SIGKILL, True, "killed by the kernel (SIGKILL), whose memory was exhausted; what helps: smaller"),
        (signal.SIGKILL, False, "from outside: memory was not exhausted"),
        (signal.SIGKILL, None, "the usual cause is too little memory"),
        (signal.SIGBUS, None, "there is no room under one that it writes (the disk, /dev/shm); its calls are in a.log"),
        (signal.SIGSEGV, None, "a defect in compiled code, or bad memory; its calls are in a.log"),
        (signal.SIGUSR1, None, "rank 3 was killed by signal 10 (SIGUSR1)"),
        (64, None, "rank 3 was killed by signal 64"),
        (99, None, "rank 3 was killed by signal 99"),
    ],
)
def test_a_signal_is_named_with_its_usual_cause(number: int, out_of_memory: bool | None, words: str) -> None:
    assert words in describe_signal("rank 3", number, out_of_memory, Path("a.log"))


def test_memory_that_was_exhausted_is_a_cause_of_its_own() -> None:
    assert describe_failure(0, -signal.SIGKILL, Path("a.log"), out_of_memory=True).cause == "memory"
    assert describe_failure(0, -signal.SIGKILL, Path("a.log"), out_of_memory=False).cause == "killed"


def test_compiled_code_that_gave_up_for_want_of_a_descriptor_is_named_by_the_limit(tmp_path: Path) -> None:
    """A thread of gloo that cannot open a socket ends its process. Ranks that are started again would meet it again."""
    log = tmp_path / "rank.log"
    log.write_text(
        "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n"
        "  what():  [enforce fail at gloo/transport/tcp/listener.cc:80] rv != -1. accept: Too many open files\n"
    )
    failure = describe_failure(1, -signal.SIGABRT, log)
    assert "files and sockets here; what works: ulimit -n" in failure.message
    assert failure.is_final
    assert not describe_failure(1, -signal.SIGABRT, tmp_path / "none.log").is_final


@pytest.mark.rest
def test_small_files_of_the_folder_are_changed_and_deleted(run_file: Path, undisturbed, tmp_path: Path) -> None:
    """The run keeps what it began with, through a restart too, and ends as if nobody had touched it."""
    with Supervised(run_file, tmp_path / "run") as run:
        run.wait_for_step(6)
        (run.out / "run.toml").write_text((run.out / "run.toml").read_text().replace("lr = 0.003", "lr = 0.03"))
        for name in (".fence", "data.json"):
            (run.out / name).unlink()
        shutil.rmtree(run.out / "logs")
        run.kill_rank(1)
        assert run.finish() == 0, run.printed
        told = [event["message"] for event in run.events("restore")]
        assert len(told) == 2
        assert "run.toml was changed" in told[0]
        assert "data.json was deleted" in told[1]
        assert "run.toml.edited" in run.printed
        assert not run.events("save_failed")
        assert left_by(run.out) == undisturbed


def test_a_deleted_run_file_is_there_again_at_once(run_file: Path, tmp_path: Path) -> None:
    with Supervised(run_file, tmp_path / "run") as run:
        run.wait_for_step(2)
        (run.out / "run.toml").unlink()
        assert run.finish() == 0, run.printed
        assert [event["message"].count("run.toml was deleted") for event in run.events("restore")] == [1]


@pytest.mark.rest
def test_a_rank_that_dies_while_what_forks_ranks_is_stopped(run_file: Path, undisturbed, tmp_path: Path) -> None:
    """Nobody would learn how it ended, and the run would never end itself."""
    with Supervised(run_file, tmp_path / "run") as run:
        run.wait_for_step(6)
        os.kill(server_of(run), signal.SIGSTOP)
        run.signal_rank(1, signal.SIGKILL)
        assert run.finish() == 0, run.printed
        assert [(event["rank"], event["cause"]) for event in run.events("failure")] == [(1, "killed")]
        assert left_by(run.out) == undisturbed


@pytest.mark.faults
def test_what_forks_ranks_is_named_when_it_is_killed(run_file: Path, undisturbed, tmp_path: Path) -> None:
    with Supervised(run_file, tmp_path / "run") as run:
        run.wait_for_step(6)
        os.kill(server_of(run), signal.SIGKILL)
        assert run.finish() == 0, run.printed
        (failure,) = run.events("failure")
        assert failure["cause"] == "server"
        assert "the process that forks ranks was killed by signal 9 (SIGKILL)" in failure["message"]
        assert left_by(run.out) == undisturbed


@pytest.mark.parametrize(
    "removed", [pytest.param(True, marks=pytest.mark.faults), pytest.param(False, marks=pytest.mark.rest)]
)
def test_a_run_whose_folder_is_gone_ends_and_says_so(run_file: Path, tmp_path: Path, removed: bool) -> None:
    """Ranks of a lost folder would go on to the end, and save nothing."""
    out, moved = tmp_path / "run", tmp_path / "moved"
    with Supervised(run_file, out, FOR_EVER) as run:
        run.wait_until(lambda: run.events("save"))  # a checkpoint is there to go on from
        pids = run.pids
        out.rename(moved)
        if removed:
            shutil.rmtree(moved)
        assert run.finish() == 1
        assert f"{out}: " in run.printed
        assert "removed" in run.printed
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    if not removed:
        shutil.rmtree(out, ignore_errors=True)  # what ranks left there since
        moved.rename(out)
        with Supervised(run_file, out, FOR_EVER) as run:
            run.wait_until(lambda: run.events("resume"))


@pytest.mark.faults
def test_of_two_runs_in_one_folder_the_later_goes_on(run_file: Path, tmp_path: Path) -> None:
    """Only where somebody deleted the lock, or a file system has none."""
    with Supervised(run_file, tmp_path / "run", FOR_EVER) as first:
        first.wait_for_step(6)
        (first.out / ".lock").unlink()
        (tmp_path / "again").symlink_to(first.out)
        with Supervised(run_file, tmp_path / "again", FOR_EVER) as second:
            assert first.finish() == 1
            assert "another fourfold train took this run over (start 2, this is 1)" in first.printed
            second.wait_for_step(20)
            second.process.terminate()
            assert second.finish() == 143, second.printed


@pytest.mark.faults
def test_a_folder_in_place_of_a_file_is_named_at_once(run_file: Path, tmp_path: Path) -> None:
    with Supervised(run_file, tmp_path / "run") as run:
        run.wait_for_step(6)
        (run.out / "metrics.jsonl").rename(run.out / "aside")
        (run.out / "metrics.jsonl").mkdir()
        run.signal_rank(1, signal.SIGKILL)
        assert run.finish() == 1
        assert len(run.events("failure")) == 2, "the death, and one start that cannot succeed"
        assert "metrics.jsonl: Is a directory; somebody put a folder or file there" in run.printed
    (run.out / "metrics.jsonl").rmdir()
    (run.out / "aside").rename(run.out / "metrics.jsonl")
    with Supervised(run_file, run.out) as run:
        assert run.finish() == 0, run.printed


@pytest.mark.faults
@pytest.mark.parametrize("damage", ["replaced", "cut short"])
def test_other_tokens_under_the_same_name_are_not_trained_on(run_file: Path, tmp_path: Path, damage: str) -> None:
    tokens, steps = tmp_path / "tokens", ("batch.steps=60", f"data.directory={tmp_path / 'tokens'}")
    with Supervised(run_file, tmp_path / "undisturbed", *steps) as run:
        assert run.finish() == 0, run.printed
    with Supervised(run_file, tmp_path / "run", *steps) as run:
        run.wait_for_step(6)
        file = next(tokens.rglob("train.bin"))
        content, aside = file.read_bytes(), file.with_name("aside")
        aside.write_bytes(content[1000:] + content[:1000] if damage == "replaced" else content[:1000])
        aside.replace(file)
        run.signal_rank(1, signal.SIGKILL)
        assert run.finish() == 1
        assert f"delete {file.parents[1]}, and the same command prepares it again" in run.printed
        assert run.printed.count("error: ") == 1
    with Supervised(run_file, tmp_path / "run", *steps) as run:
        assert run.finish() == 1
        assert f"delete {file.parents[1]}" in run.printed
    shutil.rmtree(file.parents[1])
    with Supervised(run_file, tmp_path / "run", *steps) as run:
        assert run.finish() == 0, run.printed
    assert left_by(tmp_path / "run") == left_by(tmp_path / "undisturbed")


@pytest.mark.faults
def test_a_rank_whose_place_is_no_longer_known_is_started_again(run_file: Path, tmp_path: Path) -> None:
    """Without `progress.bin` no hang would be noticed any more."""
    with Supervised(run_file, tmp_path / "run", FOR_EVER, "faults.stall_seconds=1") as run:
        run.wait_for_step(6)
        (run.out / "progress.bin").unlink()
        run.wait_until(lambda: run.events("failure"))
        assert "removed or replaced progress.bin" in run.events("failure")[0]["message"]
        run.wait_until(lambda: run.events("resume"))


@pytest.mark.faults
@pytest.mark.parametrize("kind", ["gil", "fifo"])
def test_a_wait_that_no_signal_ends_is_named(run_file: Path, undisturbed, tmp_path: Path, kind: str) -> None:
    """A dead lock that holds the interpreter, and a reader of a file that never comes."""
    with Supervised(run_file, tmp_path / "run", fault=f"{kind}:1:7:1") as run:
        assert run.finish() == 0, run.printed
        (failure,) = run.events("failure")
        assert (failure["rank"], failure["step"], failure["cause"]) == (1, 7, "hung")
        assert failure["instruction"] == "reading the data"
        assert left_by(run.out) == undisturbed


@pytest.mark.faults
def test_a_run_goes_on_when_the_reader_of_its_output_is_gone(run_file: Path, undisturbed, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fourfold", "train", str(run_file), "--ranks", "2", "--out", str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        printed = process.stderr.read().decode()
    assert process.returncode == 0, printed
    assert printed.count("the run goes on") == 1
    assert left_by(tmp_path / "run") == undisturbed


@pytest.fixture
def little_memory() -> Iterator[Path]:
    """A control group (version 1 or 2) whose processes get 64 MB."""
    root = Path("/sys/fs/cgroup")
    group = (root / "memory" if (root / "memory").is_dir() else root) / f"fourfold-test-{os.getpid()}"
    try:
        group.mkdir()
        limit = next(group / n for n in ("memory.max", "memory.limit_in_bytes") if (group / n).exists())
        limit.write_text(str(64 << 20))
    except (OSError, StopIteration):
        pytest.skip("no control group can be made here")
    yield group
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            group.rmdir()
        except OSError:
            time.sleep(0.1)
        else:
            return


@pytest.mark.faults
def test_a_rank_that_the_kernel_kills_for_want_of_memory(
    run_file: Path, undisturbed, tmp_path: Path, little_memory: Path
) -> None:
    with Supervised(run_file, tmp_path / "run", fault="memory:1:7:1") as run:
        run.wait_until(lambda: run.pids)
        (little_memory / "cgroup.procs").write_text(str(run.pids[1]))
        assert run.finish() == 0, run.printed
        (failure,) = run.events("failure")
        assert (failure["rank"], failure["cause"]) == (1, "memory")
        assert "rank 1 was killed by the kernel" in failure["message"]
        assert left_by(run.out) == undisturbed


PTRACE_SEIZE, PTRACE_INTERRUPT, WALL = 0x4206, 0x4207, 0x40000000


def hold(pid: int) -> None:
    """Stops a process as a debugger does: nothing but its death ends that."""
    trace = ctypes.CDLL(None, use_errno=True).ptrace
    for request in (PTRACE_SEIZE, PTRACE_INTERRUPT):
        assert trace(request, pid, None, None) == 0, os.strerror(ctypes.get_errno())

    def reap() -> None:
        with suppress(ChildProcessError):
            while not os.WIFSIGNALED(os.waitpid(pid, WALL)[1]):
                pass

    threading.Thread(target=reap, daemon=True).start()


@pytest.mark.faults
def test_a_rank_that_does_not_end_when_it_is_killed(run_file: Path, undisturbed, tmp_path: Path) -> None:
    """A debugger holds the process that forks ranks, which therefore never learns that a rank has died. The run ends and says so,
    where it would wait for ever; the same command goes on once the debugger is gone."""
    out = tmp_path / "run"
    with Supervised(run_file, out) as run:
        run.wait_for_step(6)
        hold(server_of(run))
        run.signal_rank(1, signal.SIGKILL)
        assert run.finish() == 1
        assert "has not ended 30 s after SIGKILL" in run.printed
        assert "a debugger has stopped it or the process that forks ranks" in run.printed
    with Supervised(run_file, out) as run:
        assert run.finish() == 0, run.printed
        assert left_by(out) == undisturbed
