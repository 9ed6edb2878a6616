"""`ff.train`: the command's run, as an object; refusals, failures and stops are exceptions with the command's messages."""

import json
import os
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest

import fourfold as ff
from fourfold.api import training
from fourfold.config import RunFailure
from fourfold.report.page_file import is_built
from tests.cli.test_train import FAKE

torch = pytest.importorskip("torch")


@pytest.fixture
def pretend(here: Path, monkeypatch: pytest.MonkeyPatch):
    """Ranks only pretend to train, in the given mode."""

    def ranks_that(mode: str) -> None:
        worker = (sys.executable, str(FAKE), mode)
        monkeypatch.setattr(
            training, "train_locally", partial(training.train_locally, worker=worker, grace_seconds=5.0)
        )

    return ranks_that


def test_a_real_run_returns_its_metrics_and_its_folder(here: Path, capsys) -> None:
    overrides = {"layout.zero": 2, "run.sample_tokens": 0}
    result = ff.train("run.toml", overrides, ranks=2, out="runs/first", quiet=True)
    assert capsys.readouterr().out == ""
    rows = [json.loads(line) for line in (here / "runs/first/metrics.jsonl").read_text().splitlines()]
    assert list(result.metrics) == rows
    assert result.steps == 3
    assert result.losses == [row["loss"] for row in rows]
    finish = next(event for event in result.events if event["event"] == "finish")
    assert result.validation_loss == finish["validation_loss"] is not None
    assert result.config.layout.dp_shard == 2
    if is_built():
        assert (here / result.report).read_text().startswith("<!doctype html>")
    else:
        assert result.report.startswith("none: the page is not built")
    assert json.loads(json.dumps(result.to_json()))["metrics"] == rows
    assert repr(result) == f"TrainResult(runs/first: 3 steps, validation loss {result.validation_loss:.4f})"
    again = ff.train("run.toml", overrides, ranks=2, out="runs/first", quiet=True)
    assert again.metrics == result.metrics, "a run that has finished is returned as it is"
    assert ff.simulate(result.folder, cluster="dgx-h100:8").step_seconds > 0


def test_it_shows_what_the_command_shows(pretend, capsys) -> None:
    pretend("finish")
    result = ff.train("run.toml", ranks=2)
    assert result.folder == Path("runs/run")
    assert result.validation_loss == 2.25
    text = capsys.readouterr().out
    assert "preparing" in text or "tokens" in text
    assert "finished" in text


def test_a_run_of_sections_needs_a_folder(here: Path) -> None:
    with pytest.raises(ff.UserError, match="out is missing"):
        ff.train({"batch": {"global_sequences": 4, "sequence_length": 16, "steps": 1}})


def test_a_rank_that_fails_raises_its_message_and_how_to_go_on(pretend) -> None:
    pretend("fail:1:the disk is full")
    with pytest.raises(ff.RunFailure, match="the disk is full") as caught:
        ff.train("run.toml", ranks=2, quiet=True)
    assert "fourfold train runs/run/run.toml --out runs/run" in str(caught.value)


def test_a_signal_stops_the_run_and_is_raised(pretend, here: Path) -> None:
    pretend("hang")

    def interrupt() -> None:
        while not (here / "runs/run/pid-1").exists():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    with pytest.raises(KeyboardInterrupt, match="stopped at step 0 of 3"):
        ff.train("run.toml", ranks=2, quiet=True)
    thread.join()


def test_another_launchers_rank_is_refused(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "host", "MASTER_PORT": "29400"}
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    with pytest.raises(ff.UserError, match="rank 1 of 4 of another launcher"):
        ff.train("run.toml")
    assert not (here / "runs").exists()


@pytest.mark.parametrize("error", [ff.UserError("nothing was measured"), RunFailure("the trace is damaged")])
def test_a_page_that_cannot_be_made_leaves_the_run_as_it_is(tmp_path: Path, monkeypatch, error: Exception) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(training, "compare", fail)
    assert training.write_report(training.RunFolder(tmp_path)) == f"none: {error}"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), MemoryError(), KeyError("step")])
def test_whatever_a_page_fails_by_the_run_has_finished(tmp_path: Path, monkeypatch, error: Exception) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(training, "compare", fail)
    told = training.write_report(training.RunFolder(tmp_path))
    assert told.startswith(f"none: {type(error).__name__}")
    assert told.endswith(f"report {tmp_path}")
