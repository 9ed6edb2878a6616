"""A network that parts: never two groups that commit, a run that recovers, and nothing lost by two seconds without frames."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("torch")
from fourfold.checkpoint import read_manifest
from tests.supervise.test_elastic import exact, losses
from tests.support.namespaces import ADDRESSES, TwoMachines, two_machines
from tests.support.supervised import Supervised, left_by, write_run

pytestmark = pytest.mark.faults
CHANGES = ("precision.compute=fp64", "checkpoint.keep=100", "faults.attempts=10")


@pytest.fixture(scope="module")
def machines() -> Iterator[TwoMachines]:
    with two_machines(f"ff{os.getpid()}-") as found:
        yield found


@pytest.fixture(scope="module")
def run_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("run"), 200)


@pytest.fixture(scope="module")
def undisturbed(run_file: Path) -> Path:
    with Supervised(run_file, run_file.parent / "undisturbed", *CHANGES) as run:
        assert run.finish() == 0, run.printed
    return run.out


@contextmanager
def supervised(
    machines: TwoMachines, run_file: Path, out: Path, *changes: str
) -> Iterator[tuple[Supervised, Supervised]]:
    def start(number: int) -> Supervised:
        flags = ["--nodes", "2", "--node-rank", str(number), "--master", f"{ADDRESSES[0]}:29600"]
        more = {"flags": flags, "prefix": machines.command(number), "machine": number, "machines": 2}
        return Supervised(run_file, out, *CHANGES, *changes, ranks=1, **more)

    try:
        with start(1) as other, start(0) as leader:
            yield leader, other
    finally:
        machines.join()


def committed_once(out: Path, leader: Supervised) -> None:
    """Every step was committed by one group, and later steps by no earlier group."""
    saves = [event["step"] for event in leader.events("save")]
    assert len(saves) == len(set(saves))
    fences = [read_manifest(path).info["fence"] for path in sorted((out / "checkpoints").glob("step-*"))]
    assert fences == sorted(fences)


def gone(pids: list[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_two_seconds_without_frames_cost_nothing(machines, run_file, undisturbed, tmp_path) -> None:
    with supervised(machines, run_file, tmp_path / "run") as (leader, other):
        leader.wait_for_step(20)
        machines.part()
        time.sleep(2.0)
        machines.join()
        assert leader.finish() == 0, leader.printed
        assert other.finish() == 0, other.printed
        assert leader.events("failure") == []
    assert left_by(tmp_path / "run") == left_by(undisturbed)


def test_a_run_waits_until_the_partition_heals(machines, run_file, undisturbed, tmp_path) -> None:
    with supervised(machines, run_file, tmp_path / "run") as (leader, other):
        leader.wait_for_step(20)
        theirs = leader.pids[1:]
        machines.part()
        leader.wait_until(lambda: leader.events("wait"))
        other.wait_until(lambda: "machine 0 has not answered" in other.printed)
        other.wait_until(lambda: gone(theirs))
        time.sleep(5.0)
        assert leader.pids == [], "nobody trains"
        machines.join()
        assert leader.finish() == 0, leader.printed
        assert other.finish() == 0, other.printed
        (failure,) = leader.events("failure")
        assert failure["cause"] == "machine"
        assert "has not answered for 5" in failure["message"]
        committed_once(tmp_path / "run", leader)
    assert left_by(tmp_path / "run") == left_by(undisturbed)


def test_the_side_that_leads_goes_on_alone_and_takes_the_other_in_again(
    machines, run_file, undisturbed, tmp_path
) -> None:
    elastic = ("faults.elastic=true", "run.timeout_seconds=120")
    with supervised(machines, run_file, tmp_path / "run", *elastic) as (leader, other):
        leader.wait_for_step(20)
        theirs = leader.pids[1:]
        machines.part()
        leader.wait_until(lambda: leader.events("resize"))
        leader.ranks = 1
        other.wait_until(lambda: gone(theirs))
        at = leader.events("resize")[0]["step"]
        leader.wait_for_step(at + 30)
        machines.join()
        leader.wait_until(lambda: len(leader.events("resize")) == 2)
        assert leader.finish() == 0, leader.printed
        assert other.finish() == 0, other.printed
        assert [event["ranks"] for event in leader.events("resize")] == [1, 2]
        assert "machine 1" in leader.events("resize")[0]["message"]
        committed_once(tmp_path / "run", leader)
    assert exact(tmp_path / "run") == losses(undisturbed)
