"""When the sbatch script starts a job again: srun and scontrol are stand-ins here. `make test-slurm` runs it on a real Slurm."""

import os
import subprocess
from pathlib import Path

import pytest

from fourfold.config import parse_run
from fourfold.jobs import TARGETS, Job, Site
from fourfold.train.metrics import RunLog

START, RESUME, SAVE = "start", "resume", "save"
EVENTS = "runs/tiny/events.jsonl"


def recorded(folder: Path, events: list[str]) -> str:
    """Lines as a run records its events."""
    folder.mkdir(exist_ok=True)
    (folder / "events.jsonl").unlink(missing_ok=True)
    log = RunLog(folder, parse_run({"batch": {"global_sequences": 1, "sequence_length": 2}}), 0)
    for name in events:
        log.event(name, step=0)
    log.close()
    return (folder / "events.jsonl").read_text()


@pytest.fixture
def launch(tmp_path: Path):
    """Runs the script over events of earlier starts; srun adds its own and ends with `code`. Returns (exit code, requeued?)."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (tmp_path / "runs" / "tiny").mkdir(parents=True)
    script = tmp_path / "job.sh"
    script.write_text(
        TARGETS["slurm"].write(Job("tiny", "fourfold", "/r.toml", (), "", str(tmp_path), 2, 2, None), Site())
    )

    def run(before: list[str], added: list[str], code: int) -> tuple[int, bool]:
        events = tmp_path / EVENTS
        events.unlink(missing_ok=True)
        if before:
            events.write_text(recorded(tmp_path / "before", before))
        lines = f"cat <<'END' >> {EVENTS}\n{recorded(tmp_path / 'added', added)}END\n" if added else ""
        (programs / "srun").write_text(f"#!/bin/bash\n{lines}exit {code}\n")
        (programs / "scontrol").write_text('#!/bin/bash\necho "$@" > asked\n')
        for program in programs.iterdir():
            program.chmod(0o755)
        asked = tmp_path / "asked"
        asked.unlink(missing_ok=True)
        environment = {"PATH": f"{programs}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
        done = subprocess.run(["bash", str(script)], env=environment, cwd="/", capture_output=True, text=True)
        assert not asked.exists() or asked.read_text() == "requeue 7\n"
        assert done.stderr == ""
        return done.returncode, asked.exists()

    return run


def test_a_run_that_ends_well_ends_the_job(launch) -> None:
    assert launch([], [START, SAVE], 0) == (0, False)


def test_ranks_that_failed_start_again(launch) -> None:
    assert launch([], [START], 1) == (1, True)
    assert launch([START, SAVE], [RESUME], 137) == (137, True)


def test_a_save_before_the_end_of_the_time_starts_again(launch) -> None:
    assert launch([START, START], [RESUME, SAVE], 143) == (143, True)


def test_a_run_that_cannot_begin_does_not(launch) -> None:
    assert launch([], [], 2) == (2, False)
    assert launch([START, SAVE, RESUME], [], 1) == (1, False)


def test_the_third_start_without_a_save_is_the_last(launch) -> None:
    assert launch([START, SAVE, RESUME], [RESUME], 1) == (1, True)
    assert launch([START, SAVE, RESUME, RESUME], [RESUME], 1) == (1, False)
