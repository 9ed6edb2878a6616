"""Supervisors on several machines: one rank's death starts all ranks again, and the run is the same to the bit."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("torch")
from tests.support.supervised import Supervised, free_port, left_by, on_machines, read_lines, write_run
from tests.support.waiting import until

STEPS = 30


@pytest.fixture(scope="module")
def run_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("run"), STEPS)


@pytest.fixture(scope="module")
def undisturbed(run_file: Path):
    with Supervised(run_file, run_file.parent / "undisturbed") as run:
        assert run.finish() == 0, run.printed
        return left_by(run.out)


@contextmanager
def two_machines(run_file: Path, out: Path, *changes: str, **more) -> Iterator[tuple[Supervised, Supervised]]:
    port = free_port()
    with (
        on_machines(run_file, out, *changes, machine=1, port=port, **more) as other,
        on_machines(run_file, out, *changes, machine=0, port=port, **more) as leader,
    ):
        yield leader, other


@pytest.mark.rest
def test_a_rank_of_either_machine_may_die(run_file: Path, undisturbed, tmp_path: Path) -> None:
    with two_machines(run_file, tmp_path / "run") as (leader, other):
        leader.wait_for_step(3)
        leader.kill_rank(1)
        leader.wait_for_step(12)
        leader.kill_rank(0)
        assert leader.finish() == 0, leader.printed
        assert other.finish() == 0, other.printed
        assert [(event["rank"], event["cause"]) for event in leader.events("failure")] == [(1, "killed"), (0, "killed")]
        assert left_by(leader.out) == undisturbed


@pytest.mark.faults
def test_a_machine_that_comes_back_takes_part_again(run_file: Path, undisturbed, tmp_path: Path) -> None:
    port, out = free_port(), tmp_path / "run"
    with on_machines(run_file, out, machine=0, port=port) as leader:
        with on_machines(run_file, out, machine=1, port=port) as other:
            leader.wait_for_step(6)
            other.process.kill()
        leader.wait_until(lambda: leader.events("wait"))
        with on_machines(run_file, out, machine=1, port=port) as other:
            assert leader.finish() == 0, leader.printed
            assert other.finish() == 0, other.printed
        named = [(event["rank"], event["cause"]) for event in leader.events("failure")]
        assert named == [(1, "machine")], "rank 0 alone was there to notice"
        assert left_by(out) == undisturbed


@pytest.mark.faults
@pytest.mark.parametrize("rank", [0, 1])
def test_a_stopped_rank_of_either_machine_is_named(run_file: Path, undisturbed, tmp_path: Path, rank: int) -> None:
    with two_machines(run_file, tmp_path / "run", fault=f"stop:{rank}:7:1") as (leader, other):
        assert leader.finish() == 0, leader.printed
        assert other.finish() == 0, other.printed
        (failure,) = leader.events("failure")
        assert (failure["rank"], failure["cause"]) == (rank, "stopped")
        assert f"rank {1 - rank} waits at" in failure["message"]
        assert left_by(leader.out) == undisturbed


@pytest.mark.faults
@pytest.mark.parametrize("fault", ["loop:1:7:1", "sleep:1:7:1"])
def test_a_rank_of_another_machine_that_hangs_is_named(run_file: Path, undisturbed, tmp_path: Path, fault: str) -> None:
    with two_machines(run_file, tmp_path / "run", fault=fault) as (leader, other):
        assert leader.finish() == 0, leader.printed
        assert other.finish() == 0, other.printed
        (failure,) = leader.events("failure")
        assert (failure["rank"], failure["cause"]) == (1, "looping" if fault.startswith("loop") else "hung")
        assert left_by(leader.out) == undisturbed


@pytest.mark.faults
@pytest.mark.parametrize("asked", [(0,), (1,), (0, 1), (1, 0)])
def test_sigterm_on_any_machine_saves_and_stops_all(
    run_file: Path, undisturbed, tmp_path: Path, asked: tuple[int, ...]
) -> None:
    """A batch system asks all supervisors at once."""
    with two_machines(run_file, tmp_path / "run") as machines:
        machines[0].wait_for_step(6)
        for machine in asked:
            machines[machine].process.send_signal(signal.SIGTERM)
        assert [machine.finish() for machine in machines] == [143, 143], machines[0].printed
        assert machines[0].events("stop")
        assert "--nodes 2 --node-rank 0 --master 127.0.0.1:" in machines[0].printed, "the command that goes on"
    with two_machines(run_file, tmp_path / "run") as machines:
        assert [machine.finish() for machine in machines] == [0, 0], machines[0].printed
    assert left_by(tmp_path / "run") == undisturbed


@pytest.mark.faults
def test_a_fault_that_recurs_stops_all_machines_with_its_cause(run_file: Path, tmp_path: Path) -> None:
    with two_machines(run_file, tmp_path / "run", fault="exit:1:7:99") as (leader, other):
        assert leader.finish() == 1, leader.printed
        assert other.finish() == 1, other.printed
        assert "rank 1: sys.exit(0) in mid-run" in leader.printed
        assert "failed at step 7 3 times in a row" in leader.printed
        assert "rank 1: sys.exit(0) in mid-run" in other.printed


@pytest.mark.faults
def test_no_process_outlives_a_leader_that_is_killed(run_file: Path, tmp_path: Path) -> None:
    with two_machines(run_file, tmp_path / "run", "batch.steps=100000") as (leader, other):
        leader.wait_for_step(3)
        pids = leader.pids
        leader.process.kill()
        other.wait_until(lambda: "machine 0 has not answered" in other.printed)
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


@pytest.mark.faults
def test_under_torchrun_ranks_are_supervised_too(run_file: Path, undisturbed, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ["torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port()), "-m", "fourfold"]
    train = ["train", str(run_file), "--out", str(out)]
    seen = Supervised.__new__(Supervised)  # looks, and starts nothing
    seen.out, seen.ranks = out, 2
    with open(tmp_path / "printed", "w") as printed:
        process = subprocess.Popen([sys.executable, "-m", *words, *train], stdout=printed, stderr=printed)
    try:
        until(lambda: seen.pids and min(p.step for p in seen.positions) > 6, process)
        os.kill(seen.pids[1], signal.SIGKILL)
        assert process.wait() == 0, (tmp_path / "printed").read_text()
    finally:
        process.kill()
        process.wait()
    (failure,) = [row for row in read_lines(out / "events.jsonl") if row["event"] == "failure"]
    assert failure["message"].startswith("rank 1 was killed by signal 9")
    assert left_by(out) == undisturbed


@pytest.mark.faults
def test_a_spare_machine_takes_the_place_of_one_that_leaves(run_file: Path, undisturbed, tmp_path: Path) -> None:
    port, out = free_port(), tmp_path / "run"
    with (
        on_machines(run_file, out, machine=2, port=port) as spare,
        on_machines(run_file, out, machine=0, port=port) as leader,
    ):
        with on_machines(run_file, out, machine=1, port=port) as other:
            leader.wait_for_step(6)
            assert not (out / "progress-2.bin").exists(), "a spare machine trains nothing"
            other.process.kill()
        assert leader.finish() == 0, leader.printed
        assert spare.finish() == 0, spare.printed
        assert (out / "progress-2.bin").exists()
        assert leader.events("wait") == []
    assert left_by(out) == undisturbed


@pytest.mark.faults
def test_two_supervisors_that_claim_one_number_end_the_run(run_file: Path, tmp_path: Path) -> None:
    with two_machines(run_file, tmp_path / "run", "batch.steps=100000") as (leader, other):
        leader.wait_for_step(3)
        words = [word for word in other.process.args if isinstance(word, str)]
        twin = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            assert leader.finish() == 1, leader.printed
            assert "say that they are machine 1" in leader.printed
            assert other.finish() == 1, other.printed
        finally:
            twin.kill()
            twin.wait()
