"""`fourfold doctor` names the rank, its instruction and the chain, of a run that lives and of one that does not."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
from tests.support.supervised import Supervised, write_run
from tests.support.waiting import until


def doctor(out: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fourfold", "doctor", str(out), *flags]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.rest
def test_it_names_the_rank_that_all_others_wait_for(tmp_path: Path) -> None:
    changes = ("batch.steps=100000", "faults.stall_seconds=0", "layout.pp=2", "layout.zero=0")
    with Supervised(write_run(tmp_path), tmp_path / "run", *changes, ranks=2) as run:
        run.wait_for_step(2)
        healthy = doctor(run.out)
        assert healthy.returncode == 0, healthy.stdout + healthy.stderr
        assert "all ranks get on" in healthy.stdout
        run.signal_rank(1, signal.SIGSTOP)
        until(lambda: json.loads(doctor(run.out, "--json").stdout)["chain"] == [0, 1], run.process)
        sick = doctor(run.out, "--json")
        assert sick.returncode == 1, sick.stdout + sick.stderr
        found = json.loads(sick.stdout)
        assert (found["verdict"]["rank"], found["verdict"]["cause"]) == (1, "stopped")
        assert found["verdict"]["instruction"]
        assert found["chain"] == [0, 1]
        waiting = [rank for rank in found["ranks"] if rank["rank"] != 1]
        assert any([1, group] in rank["waits_for"] for rank in waiting for _, group in rank["waits_for"])
        assert all(any("run_worker" in call for call in rank["calls"]) for rank in waiting)
        assert "rank 1 is stopped" in doctor(run.out).stdout
        os.kill(run.pids[1], signal.SIGCONT)
    dead = doctor(run.out)
    assert dead.returncode == 0
    assert "no rank of this run lives" in dead.stdout
    assert dead.stdout.count("last seen") == 1
    assert [f"rank {rank}" in dead.stdout for rank in range(2)] == [True] * 2


def test_a_folder_without_ranks_is_a_message(tmp_path: Path) -> None:
    result = doctor(tmp_path)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
