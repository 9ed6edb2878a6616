"""A run's time line: what is not routine is on it, in order, whoever wrote it; and it does not grow without end."""

import json
from pathlib import Path

import pytest

from fourfold.api.reports import run_report
from fourfold.api.run_feed import RunFeed
from fourfold.report.history import ROUTINE, History, history_lines
from fourfold.train.metrics import append_event
from tests.report.test_comparison import as_predicted

LIFE = [
    {"event": "launch", "ranks": 2},
    {"event": "start", "step": 0},
    {"event": "machine", "peak_flops": 1e11, "step": 1},
    {"event": "attention", "backend": "flash", "message": "the only one"},
    {"event": "save", "step": 10},
    {"event": "evaluate", "step": 10, "validation_loss": 3.0},
    {"event": "failure", "step": 14, "message": "rank 1 was killed\nand its log says nothing"},
    {"event": "restart", "step": 10},
    {"event": "resume", "step": 10, "source": "disk"},
    {"event": "stage", "step": 20, "message": "long: sequence length 8192"},
    {"event": "spike", "step": 25, "message": "loss 9.1, z 12"},
    {"event": "rollback", "step": 20, "message": "to step 20; batches 20 to 27 are skipped"},
    {"event": "change", "step": 20, "message": "layout.tp = 2 (was 1)"},
    {"event": "resize", "step": 20, "message": "3 of 4 ranks"},
    {"event": "code", "step": 20, "message": "fourfold 2, code b; what was saved is of fourfold 1, code a"},
    {"event": "branch", "step": 20, "message": "run x at step-000020"},
    {"event": "stop", "step": 30},
]


def test_the_time_line_has_every_turn_of_a_run_and_no_routine(tmp_path: Path) -> None:
    folder = as_predicted(tmp_path / "run")
    for event in LIFE:
        append_event(folder.path, event["event"], **{key: value for key, value in event.items() if key != "event"})
    wanted = [event for event in LIFE if event["event"] not in ROUTINE and "backend" not in event]
    found = run_report(folder.path)
    history = found.to_json()["history"]
    assert [(each["event"], each["step"]) for each in history] == [(each["event"], each.get("step")) for each in wanted]
    assert all(each["time"] > 0 for each in history)
    assert len(json.dumps(found.to_json()))
    for each, event in zip(history, wanted, strict=True):
        assert event.get("message", "").splitlines()[:1] == [] or event["message"].splitlines()[0] in each["text"]
    lines = found.lines()
    first = lines.index("history") + 1
    assert len(lines[first : first + len(wanted)]) == len(wanted)
    for line, each in zip(lines[first:], history, strict=False):
        assert each["text"].splitlines()[0] in line
    feed = RunFeed(folder.path)
    feed.refresh()
    assert feed.document()["history"] == history


@pytest.mark.parametrize("count", [0, 1, 24, 25, 26, 60, 5_000])
def test_a_long_time_line_keeps_its_first_and_newest_and_counts_the_rest(count: int) -> None:
    history = History()
    for number in range(count):
        history.add({"time": float(number), "event": "restart", "step": number, "text": f"restart {number} of it"})
        history.add({"time": float(number), "event": "save", "step": number, "text": "saved"})
    steps = [entry.step for entry in history.entries]
    assert history.num_events == count
    assert len(steps) == min(count, 500)
    assert steps == sorted(steps)
    assert steps[:1] == [0][:count]
    assert steps[-1:] == [count - 1][:count]
    lines = history_lines(history)
    shown = [line for line in lines[1:] if " of it" in line]
    assert len(shown) == min(count, 25)
    left = [line for line in lines if "more:" in line]
    assert left == ([f"  ... {count - 25:,} more: on the page, and in events.jsonl"] if count > 25 else [])
