"""The end of a run after its last save, the sample above all, never makes it a failure, however large the model."""

import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fourfold.config import ModelConfig, RunFailure
from fourfold.config.schema import RunConfig
from fourfold.launch.processes import LocalRanks
from fourfold.launch.run_folder import RunFolder
from fourfold.model.counts import num_parameters
from fourfold.report.run_state import describe_event
from fourfold.runtime.progress import ENDED, ProgressBoard, read_positions
from fourfold.train import ending, sample
from fourfold.train.ending import UNASKED_PARAMETERS, end_training, sample_at_end, tokens_at_end
from fourfold.train.exit_record import ExitRecordFile
from fourfold.train.metrics import RunLog
from fourfold.train.trackers import Behind
from tests.support.forking import forking_context
from tests.support.training_ranks import start_training
from tests.train.test_training import corpus, finish, lines, make_run  # noqa: F401

SMALL = ModelConfig(2, 32, 4, 2, 8, 56, 100)
LARGE = replace(SMALL, num_layers=40, hidden_size=8192, num_heads=64, head_dim=128, ffn_size=28672)


def config(**run: Any) -> RunConfig:
    return RunConfig.model_validate({"batch": {"global_sequences": 1, "sequence_length": 8, "steps": 1}, "run": run})


def test_a_large_model_is_read_again_only_where_somebody_asks() -> None:
    assert num_parameters(SMALL) < UNASKED_PARAMETERS < num_parameters(LARGE)
    assert tokens_at_end(config(), SMALL) == (200, "")
    assert tokens_at_end(config(sample_tokens=7), LARGE) == (7, "")
    assert tokens_at_end(config(sample_tokens=0), SMALL) == (0, "")
    tokens, reason = tokens_at_end(config(), LARGE)
    assert tokens == 0
    assert "run.sample_tokens = 200 asks for it" in reason


def no_memory(*args: Any, **values: Any) -> str:
    raise torch.OutOfMemoryError("CUDA out of memory")


def fail_at_sampling() -> None:
    sample.generate = no_memory


def test_a_run_whose_sample_fails_has_finished(tmp_path: Path, corpus: Path) -> None:  # noqa: F811
    out = make_run(tmp_path / "run", corpus, batch={"steps": 2})
    codes, errors = finish(start_training(out, 2, harm=fail_at_sampling))
    assert codes == [0, 0], errors
    end, told = lines(out / "events.jsonl")[-2:]
    assert (end["event"], told["event"]) == ("finish", "sample")
    assert told["message"] == f"OutOfMemoryError: CUDA out of memory; this writes one: fourfold sample {out}"
    assert "no sample: OutOfMemoryError" in describe_event(told)


def test_a_model_above_the_limit_says_which_command_samples(
    tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:  # fmt: skip
    out = make_run(tmp_path / "run", corpus, run={"sample_tokens": None})
    monkeypatch.setattr(ending, "UNASKED_PARAMETERS", 10)
    monkeypatch.setattr(sample, "generate", no_memory)  # would say so
    sample_at_end(out)
    (told,) = lines(out / "events.jsonl")
    assert told["message"].endswith(f"this writes one: fourfold sample {out}")
    assert "run.sample_tokens = 200" in told["message"]


def hang(out: Path) -> None:
    ending.run_stage = lambda *args, **values: time.sleep(600)
    ending.SAMPLE_SECONDS = 0.05
    sample_at_end(out)
    os._exit(7)


def test_a_sample_that_hangs_ends_the_process_as_finished(tmp_path: Path) -> None:
    process = forking_context().Process(target=hang, args=(tmp_path,))
    process.start()
    process.join(60)
    assert process.exitcode == 0


def test_a_run_says_that_it_finished_before_it_samples(tmp_path: Path) -> None:
    """So that no peer, no supervisor and no display waits for a sample; and late copies are a message."""

    class LateCopies:
        def wait(self) -> None:
            raise RunFailure("rank 3 is gone")

    board, log = ProgressBoard(tmp_path, 0), RunLog(tmp_path, config(), 0)
    end_training(log, board, LateCopies(), 4, 2.5)  # type: ignore[arg-type]
    log.close()
    done, late = lines(tmp_path / "events.jsonl")
    assert (done["event"], done["step"], done["validation_loss"]) == ("finish", 4, 2.5)
    assert "rank 3 is gone" in late["message"]
    assert [each.kind for each in read_positions(tmp_path)] == [ENDED]


class Process:
    """A rank's process that has ended by SIGKILL, as after a lack of memory."""

    pid = os.getpid()

    def poll(self) -> int:
        return -signal.SIGKILL


@pytest.mark.parametrize(("told", "failures"), [(0, 0), (None, 1), (1, 1)])
def test_what_ends_a_process_after_its_run_finished_is_no_failure(
    tmp_path: Path, told: int | None, failures: int
) -> None:
    class Spawner:
        exit_code = None

        def spawn(self, environment: Any, log: Any) -> Process:
            return Process()

    (tmp_path / "logs").mkdir()
    record = ExitRecordFile(tmp_path, 0)
    ranks = LocalRanks(RunFolder(tmp_path), Spawner())  # type: ignore[arg-type]
    ranks.start({0: 0}, 1, 1, 0, {})
    if told is not None:
        record.say(told, "why")
    ranks.collect()
    assert len(ranks.failures) == failures
    assert (ranks.exit_codes[0] == 0) == (failures == 0)


def test_a_tracker_that_does_not_answer_at_the_end_is_no_failure(tmp_path: Path) -> None:
    class Tracker:
        def log(self, step: int, values: Any) -> None: ...

        def close(self) -> None:
            raise ConnectionError("no route to host")

    log = RunLog(tmp_path, config(), 0)
    log._trackers = [Behind("tracker", Tracker)]
    log.close()
    (told,) = (json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines())
    assert told["event"] == "log_failed"
    assert told["message"].startswith("tracker: ")
    assert "no route to host" in told["message"]
