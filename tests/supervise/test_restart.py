"""Ranks that die are started again, and the run is the same to the bit; one that cannot go on stops with its first cause."""

import os
import signal
from pathlib import Path

import pytest

pytest.importorskip("torch")
from tests.support.grid import others_are_rest
from tests.support.supervised import Supervised, is_alive, left_by, read_lines, write_run
from tests.support.waiting import until

STEPS = 30


@pytest.fixture(scope="module")
def run_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("run"), STEPS)


@pytest.fixture(scope="module")
def undisturbed(run_file: Path):
    with Supervised(run_file, run_file.parent / "undisturbed") as run:
        assert run.finish() == 0, run.printed
        assert run.events("failure") == []
        return left_by(run.out)


@pytest.mark.parametrize("kills", others_are_rest([[(8, 0)], [(2, 1), (8, 0), (17, 1)]], [[(8, 0)]]), ids=len)
def test_every_rank_may_be_killed_and_the_run_is_the_same(
    run_file: Path, undisturbed, tmp_path: Path, kills: list[tuple[int, int]]
) -> None:
    with Supervised(run_file, tmp_path / "run", "run.track_memory=true") as run:
        for step, rank in kills:
            run.wait_for_step(step)
            run.kill_rank(rank)
        assert run.finish() == 0, run.printed
        killed = [(event["rank"], event["cause"]) for event in run.events("failure")]
        assert killed == [(rank, "killed") for _, rank in kills]
        assert len(run.events("restart")) == len(kills)
        assert left_by(run.out) == undisturbed
        assert len({row["peak_memory_bytes"] for row in read_lines(run.out / "metrics.jsonl")}) == 1


@pytest.mark.faults
def test_the_process_that_forks_ranks_may_be_killed_too(run_file: Path, undisturbed, tmp_path: Path) -> None:
    with Supervised(run_file, tmp_path / "run") as run:
        run.wait_for_step(6)
        os.kill(parent_of(run.pids[0]), signal.SIGKILL)
        assert run.finish() == 0, run.printed
        assert left_by(run.out) == undisturbed


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        pytest.param("error:1:7:99", "a defect in the data reader", marks=pytest.mark.faults),
        ("exit:0:7:99", "rank 0: sys.exit(0) in mid-run"),
        pytest.param("leave:1:7:99", "rank 1 ended with exit code 0 in mid-run", marks=pytest.mark.faults),
    ],
)
def test_a_fault_that_recurs_stops_the_run_with_its_first_cause(run_file, tmp_path, fault, words) -> None:
    with Supervised(run_file, tmp_path / "run", fault=fault) as run:
        assert run.finish() == 1, run.printed
        assert words in run.printed
        assert "failed at step 7 3 times in a row" in run.printed
        assert len(run.events("failure")) == 3
        assert {event["rank"] for event in run.events("failure")} == {int(fault.split(":")[1])}
        assert "goes on from step 5" in run.printed


@pytest.mark.parametrize("fault", [pytest.param("leave3", marks=pytest.mark.rest), "thread3"])
def test_an_exit_code_of_a_library_is_no_request_to_stop(run_file, undisturbed, tmp_path, fault: str) -> None:
    """3 is the code of a rank that saved and stopped because it was asked to. This one was not, and says nothing."""
    with Supervised(run_file, tmp_path / "run", fault=f"{fault}:1:7:1") as run:
        assert run.finish() == 0, run.printed
        (failure,) = run.events("failure")
        assert (failure["rank"], failure["cause"], failure["step"]) == (1, "left", 7)
        assert "rank 1 ended with exit code 3 in mid-run" in failure["message"]
        assert left_by(run.out) == undisturbed


@pytest.mark.faults
def test_a_fault_that_does_not_recur_is_survived(run_file, undisturbed, tmp_path) -> None:
    with Supervised(run_file, tmp_path / "run", fault="exit:1:7:2") as run:
        assert run.finish() == 0, run.printed
        assert len(run.events("failure")) == 2
        assert left_by(run.out) == undisturbed


@pytest.mark.rest
def test_sigterm_saves_and_loses_no_step_though_a_rank_is_stopped(run_file, undisturbed, tmp_path) -> None:
    with Supervised(run_file, tmp_path / "run", "faults.stall_seconds=60", fault="stop:1:7:1") as run:
        run.wait_for_stop(1)
        run.process.send_signal(signal.SIGTERM)
        code, seconds = run.seconds_to_finish()
        assert code == 143, run.printed
        assert seconds < 60, "nobody waits until the rank is stalled"
    at = run.events("stop")[0]["step"]
    assert f"goes on from step {at}" in run.printed
    with Supervised(run_file, tmp_path / "run") as run:
        assert run.finish() == 0, run.printed
        assert run.events("resume")[0]["step"] == at
        assert left_by(run.out) == undisturbed


@pytest.mark.faults
def test_the_second_ctrl_c_ends_at_once(run_file, tmp_path) -> None:
    with Supervised(run_file, tmp_path / "run", "batch.steps=100000", "faults.stall_seconds=60") as run:
        run.wait_for_step(3)
        pids = run.pids
        run.signal_rank(0, signal.SIGSTOP)
        os.kill(run.process.pid, signal.SIGINT)
        run.wait_until(lambda: "Ctrl-C" in run.printed)
        run.signal_rank(1, signal.SIGSTOP)
        os.kill(run.process.pid, signal.SIGINT)
        code, seconds = run.seconds_to_finish()
        assert code == 130, run.printed
        assert seconds < 3
        assert not any(map(is_alive, pids))


@pytest.mark.rest
def test_no_process_outlives_the_supervisor(run_file, tmp_path) -> None:
    with Supervised(run_file, tmp_path / "run", "batch.steps=100000") as run:
        run.wait_for_step(3)
        pids = [*run.pids, parent_of(run.pids[0])]
        run.signal_rank(1, signal.SIGSTOP)
        run.process.kill()
        run.process.wait()
    until(lambda: not any(map(is_alive, pids)))


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
