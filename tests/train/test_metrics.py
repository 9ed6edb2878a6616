"""The run's record: what is written, what a resumed run drops, and the trackers behind their one interface."""

import json
import math
import sys
import types

import pytest

from fourfold.config import UserError, parse_run
from fourfold.train.metrics import RunLog, require_sinks, truncate_after

STEP = {"step": 3, "loss": 1.5, "mfu": None, "comm_bytes": {"dp_shard": 100}}


def config(*names: str):
    return parse_run({"batch": {"global_sequences": 1, "sequence_length": 8, "steps": 1}, "run": {"log": list(names)}})


def test_a_resumed_run_drops_what_it_will_write_again(tmp_path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps({"step": n}) + "\n" for n in range(6)) + '{"step": 6, "lo')
    truncate_after(path, 4)
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "left", [b"\0" * 4096, b"\xff\xfe{", b"[" * 10**6, b"7", b'{"step": "x"}', b'{"loss": 1}', b"\xe2\x80\xa8"]
)
def test_bytes_that_a_power_cut_left_are_dropped(tmp_path, left) -> None:
    path = tmp_path / "metrics.jsonl"
    rows = [{"step": n, "loss": 1 / (n + 3), "validation_loss": None} for n in range(3)]
    lines = [json.dumps(row).encode() + b"\n" for row in rows]
    path.write_bytes(lines[0] + left + b"\n" + b"".join(lines[1:]) + left)
    truncate_after(path, 9)
    assert path.read_bytes() == b"".join(lines)


def test_steps_and_events_are_json_lines(tmp_path) -> None:
    log = RunLog(tmp_path, config(), 0)
    log.step(STEP)
    log.event("save", step=4)
    log.close()
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == STEP
    assert json.loads((tmp_path / "events.jsonl").read_text())["event"] == "save"


def test_trackers_get_the_loss_of_each_named_set(tmp_path) -> None:
    seen: list[tuple] = []
    log = RunLog(tmp_path, config(), 0)
    log._sinks = [types.SimpleNamespace(log=lambda step, values: seen.append((step, values)))]
    log.step({**STEP, "validation_losses": {"code": 2.5, "texts/web": None}})
    [(step, values)] = seen
    assert step == STEP["step"]
    assert values["validation_loss/code"] == 2.5
    assert math.isnan(values["validation_loss/texts/web"])


def test_every_tracker_gets_the_numbers(tmp_path, monkeypatch) -> None:
    seen: list[tuple] = []

    class Writer:
        def __init__(self, folder: str) -> None:
            self.add_scalar = lambda key, value, step: seen.append(("tensorboard", step, key, value))
            self.close = lambda: seen.append(("tensorboard", "closed"))

    class WandbRun:
        log = staticmethod(lambda values, step: seen.extend(("wandb", step, k, v) for k, v in values.items()))
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
    log.close()
    for name in ("tensorboard", "wandb", "mlflow"):
        assert (name, 3, "loss", 1.5) in seen
        assert (name, 3, "comm_bytes/dp_shard", 100.0) in seen
        assert (name, "closed") in seen
        assert not any(entry[0] == name and entry[2:3] == ("mfu",) for entry in seen), "a missing number is not logged"


def test_a_tracker_that_is_not_installed_is_named(monkeypatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"fourfold\[wandb\]"):
        require_sinks(["wandb"])
