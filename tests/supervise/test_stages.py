"""A run of four stages that is killed at random, under another layout in each: what it leaves is an undisturbed run's, to the
bit."""

import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.supervised import RUN, Supervised, free_port, left_by, on_machines, read_lines

STAGES = """
[spikes]
window = 8
threshold = 4.0
[[stage]]
until_steps = {first}
[[stage]]
until_steps = {second}
[stage.batch]
sequence_length = 64
[stage.layout]
tp = 2
[[stage]]
until_steps = {third}
[stage.data]
corpus = [{{path = "{corpus}", weight = 1.0}}, {{path = "{corpus}/1*.txt", weight = 2.0}}]
[stage.layout]
tp = 1
zero = 3
[[stage]]
[stage.optimizer]
schedule = "decay"
min_lr_ratio = 0.0
[stage.layout]
pp = 2
zero = 1
"""
PATIENT = ("faults.attempts=50", "faults.restarts=200", "checkpoint.keep_stage_ends=false")


def write_staged(folder: Path, steps: int) -> Path:
    corpus = folder / "corpus"
    corpus.mkdir()
    for number in range(60):
        (corpus / f"{number}.txt").write_text(f"document {number} " + "of many words " * (number % 7 + 3))
    quarter = steps // 4
    text = RUN.format(corpus=corpus, steps=steps).replace(
        "steps = ", "ramp = [{ global_sequences = 4, until_steps = 3 }]\nsteps = ", 1
    )
    ends = {"first": quarter, "second": 2 * quarter, "third": 3 * quarter}
    (folder / "run.toml").write_text(text + STAGES.format(corpus=corpus, **ends))
    return folder / "run.toml"


@pytest.mark.parametrize(
    ("kills", "steps"), [pytest.param(3, 24, marks=pytest.mark.rest), pytest.param(20, 120, marks=pytest.mark.faults)]
)
def test_a_run_of_stages_that_is_killed_at_random_is_an_undisturbed_one(tmp_path: Path, kills: int, steps: int) -> None:
    run_file, draw, done = write_staged(tmp_path, steps), random.Random(kills), 0
    with Supervised(run_file, tmp_path / "calm", *PATIENT, ranks=4) as calm:
        assert calm.finish(600) == 0, calm.printed
    with Supervised(run_file, tmp_path / "storm", *PATIENT, ranks=4) as storm:
        deadline = time.monotonic() + 1200
        while done < kills and storm.process.poll() is None and time.monotonic() < deadline:
            time.sleep(draw.uniform(0.1, 2.0))
            pids = storm.pids
            if pids:
                with suppress(ProcessLookupError):
                    os.kill(draw.choice(pids), signal.SIGKILL)
                    done += 1
        assert storm.finish(1200) == 0, storm.printed
    assert len(storm.events("failure")) >= 1
    assert left_by(tmp_path / "storm") == left_by(tmp_path / "calm")
    assert [row["step"] for row in read_lines(tmp_path / "storm" / "metrics.jsonl")] == list(range(steps))


@pytest.mark.rest
def test_machines_go_from_stage_to_stage_together(tmp_path: Path) -> None:
    run_file = write_staged(tmp_path, 12)
    with Supervised(run_file, tmp_path / "one", *PATIENT, ranks=4) as one:
        assert one.finish(600) == 0, one.printed
    port = free_port()
    leads = on_machines(run_file, tmp_path / "two", *PATIENT, machine=0, ranks=2, port=port)
    follows = on_machines(run_file, tmp_path / "two", *PATIENT, machine=1, ranks=2, port=port)
    with leads as first, follows as second:
        assert first.finish(600) == 0, first.printed
        assert second.finish(60) == 0, second.printed
    assert left_by(tmp_path / "two") == left_by(tmp_path / "one")
