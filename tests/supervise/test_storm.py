"""Kills at random times, in every phase and layout: the run is the same to the bit, and nothing grows from restart to restart."""

import os
import random
import re
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("torch")
from fourfold.results.goodput import goodput
from tests.support.supervised import Supervised, left_by, read_lines, write_run

pytestmark = pytest.mark.faults
RESTARTS = 100
LAYOUTS = {
    "zero-3": (2, ("layout.zero=3",)),
    "pipeline and tensor parallel": (4, ("layout.zero=0", "layout.pp=2", "layout.tp=2")),
    "hsdp": (4, ("layout.zero=2", "layout.dp_replicate=2", "precision.compute=bf16")),
}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_storm_of_kills_changes_nothing(tmp_path: Path, name: str) -> None:
    ranks, changes = LAYOUTS[name]
    run_file, draw = write_run(tmp_path, 120), random.Random(name)
    changes = (*changes, "faults.restarts=1000", "faults.attempts=20", "run.evaluate_every=10")
    with Supervised(run_file, tmp_path / "undisturbed", *changes, ranks=ranks) as run:
        assert run.finish() == 0, run.printed
    with Supervised(run_file, tmp_path / "storm", *changes, ranks=ranks) as run:
        run.wait_until(lambda: run.pids)
        while run.process.poll() is None:
            time.sleep(draw.expovariate(1 / 4.0))
            if pids := run.pids:
                run_or_gone(draw.choice(pids))
        assert run.finish() == 0, run.printed
        assert run.events("failure")
    assert left_by(tmp_path / "storm") == left_by(tmp_path / "undisturbed")
    events, rows = (read_lines(run.out / name) for name in ("events.jsonl", "metrics.jsonl"))
    found = goodput(events, rows, 0.0)
    share = sum(row["step_seconds"] for row in rows) / (events[-1]["time"] - events[0]["time"])
    (told,) = re.findall(r"^goodput +([0-9.]+) % of", run.printed, re.MULTILINE)
    assert float(told) / 100 == pytest.approx(share, abs=0.03), "what is reported is what the event log says"
    assert found.kept_seconds + sum(found.seconds.values()) == pytest.approx(found.total_seconds, rel=0.03)


@pytest.mark.timeout(900)
def test_nothing_grows_from_restart_to_restart(tmp_path: Path) -> None:
    changes = ("batch.steps=1000000", "faults.restarts=1000", "faults.attempts=1000")
    sizes = []
    with Supervised(write_run(tmp_path), tmp_path / "run", *changes) as run:
        run.wait_for_step(2)
        (server,) = map(int, children(run.process.pid))
        for number in range(RESTARTS):
            run.kill_rank(number % 2)
            sizes.append([(open_files(pid), resident_bytes(pid)) for pid in (run.process.pid, server)])
            assert children(run.process.pid) == [str(server)]
            assert len(children(server)) <= 2
    for (early_files, early_bytes), (files, size) in zip(sizes[5], sizes[-1], strict=True):
        assert files <= early_files + 1
        assert size <= early_bytes + 20e6
    print(f"{RESTARTS} restarts: (files, bytes) of supervisor and server of ranks, {sizes[5]} to {sizes[-1]}")


def run_or_gone(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
