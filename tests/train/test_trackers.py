"""Trackers: what each gets, and that none of them can hold up or end a run. Real packages where they are installed."""

import importlib.util
import json
import math
import sys
import threading
import types
from pathlib import Path

import pytest

from fourfold.config import UserError, parse_run
from fourfold.runtime.sampling import LayerSample
from fourfold.train import trackers
from fourfold.train.metrics import RunLog
from fourfold.train.trackers import Behind, flat_numbers, require_trackers

STEP = {"step": 3, "loss": 1.5, "mfu": None, "comm_bytes": {"dp_shard": 100}}
SAMPLE = LayerSample(("embed", "b0"), {"gradient_norm": (0.5, 0.25), "largest_score": (None, 7.0)})


def config(*names: str):
    batch = {"global_sequences": 1, "sequence_length": 8, "steps": 1}
    return parse_run({"batch": batch, "run": {"log": list(names)}, "metrics": {"every_steps": 1}})


def events(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]


def test_a_row_is_flat_with_the_loss_of_each_named_set() -> None:
    numbers = flat_numbers({**STEP, "validation_losses": {"code": 2.5, "texts/web": None}})
    assert math.isnan(numbers.pop("validation_loss/texts/web"))
    assert numbers == {"loss": 1.5, "comm_bytes/dp_shard": 100.0, "validation_loss/code": 2.5}


def test_every_tracker_gets_the_numbers(tmp_path, monkeypatch) -> None:
    seen: list[tuple] = []

    class Writer:
        def __init__(self, folder: str) -> None:
            self.add_scalar = lambda key, value, step: seen.append(("tensorboard", step, key, value))
            self.close = lambda: seen.append(("tensorboard", "closed"))

    class WandbRun:
        define_metric = staticmethod(lambda name, step_metric: None)
        log = staticmethod(lambda values: seen.extend(("wandb", values["step"], k, v) for k, v in values.items()))
        finish = staticmethod(lambda: seen.append(("wandb", "closed")))

    mlflow = types.SimpleNamespace(
        set_experiment=lambda name: None,
        start_run=lambda run_name: None,
        log_metrics=lambda values, step: seen.extend(("mlflow", step, k, v) for k, v in values.items()),
        end_run=lambda: seen.append(("mlflow", "closed")),
    )
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", types.SimpleNamespace(SummaryWriter=Writer))
    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=lambda **settings: WandbRun()))
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    log = RunLog(tmp_path, config("tensorboard", "wandb", "mlflow"), 0)
    log.step(STEP)
    log.layers(3, SAMPLE)
    log.close()
    for name in ("tensorboard", "wandb", "mlflow"):
        assert (name, 3, "loss", 1.5) in seen
        assert (name, 3, "comm_bytes/dp_shard", 100.0) in seen
        assert (name, 3, "gradient_norm/b0", 0.25) in seen
        assert (name, "closed") in seen
        assert not any(entry[0] == name and entry[2:3] == ("mfu",) for entry in seen), "a missing number is not logged"
    assert not any("largest_score/embed" in entry for entry in seen)
    assert events(tmp_path) == []


@pytest.mark.parametrize("when", ["opening", "logging", "closing"])
def test_a_tracker_that_fails_is_told_once_and_the_run_goes_on(tmp_path, monkeypatch, when) -> None:
    class Broken:
        def __init__(self, out: Path, config: object) -> None:
            self._fail("opening")

        def _fail(self, now: str) -> None:
            if now == when:
                raise OSError(28, "No space left on device")

        def log(self, step: int, values: object) -> None:
            self._fail("logging")

        def close(self) -> None:
            self._fail("closing")

    monkeypatch.setitem(trackers._TRACKERS, "mlflow", Broken)
    log = RunLog(tmp_path, config("mlflow"), 0)
    for step in range(20):
        log.step({**STEP, "step": step})
    log.close()
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 20
    [told] = events(tmp_path)
    assert told["event"] == "log_failed"
    assert "mlflow" in told["message"]
    assert "No space left on device" in told["message"]


def test_a_tracker_that_hangs_holds_up_neither_steps_nor_the_end(monkeypatch) -> None:
    """A server that does not answer: rows wait for it up to a number, and the end for some time."""
    release = threading.Event()

    class Hanging:
        def log(self, step: int, values: object) -> None:
            release.wait()

        close = log

    monkeypatch.setattr(trackers, "_MOST_WAITING", 8)
    behind = Behind("wandb", Hanging, close_seconds=0.2)
    for step in range(12):
        behind.log(step, {})
    found = behind.failure()
    behind.close()
    assert found is not None
    assert "8 rows behind" in found
    assert behind.failure() is None, "told once"
    release.set()


def test_a_tracker_that_is_not_installed_is_named(monkeypatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"fourfold\[wandb\]"):
        require_trackers(["wandb"])


def installed(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"{name} is not installed")


def write_run(out: Path, name: str) -> None:
    log = RunLog(out, config(name), 0)
    for step in range(3):
        log.step({**STEP, "step": step, "loss": 3.0 - step})
        log.layers(step, SAMPLE)
    log.close()
    assert events(out) == []


@installed("tensorboard")
def test_tensorboard_reads_back_what_was_written(tmp_path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    write_run(tmp_path, "tensorboard")
    read = EventAccumulator(str(tmp_path / "tensorboard"))
    read.Reload()
    assert [(each.step, each.value) for each in read.Scalars("loss")] == [(0, 3.0), (1, 2.0), (2, 1.0)]
    assert [each.value for each in read.Scalars("gradient_norm/b0")] == [0.25] * 3


@installed("mlflow")
def test_mlflow_reads_back_what_was_written(tmp_path, monkeypatch) -> None:
    import mlflow

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "store").as_uri())
    write_run(tmp_path, "mlflow")
    client = mlflow.MlflowClient()
    [experiment] = [each for each in client.search_experiments() if each.name == "fourfold"]
    [run] = client.search_runs([experiment.experiment_id])
    assert [(each.step, each.value) for each in client.get_metric_history(run.info.run_id, "loss")] == [
        (0, 3.0),
        (1, 2.0),
        (2, 1.0),
    ]
    assert run.info.status == "FINISHED"


@installed("wandb")
def test_wandb_takes_a_run_offline(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    write_run(tmp_path, "wandb")
    [record] = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    assert b"gradient_norm/b0" in record.read_bytes()
