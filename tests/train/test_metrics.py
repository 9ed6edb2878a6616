"""The run's record: what is written, and what a resumed run drops."""

import json
import math

import pytest

from fourfold.config import parse_run
from fourfold.runtime.sampling import LayerSample
from fourfold.train.metrics import RunLog, truncate_after

STEP = {"step": 3, "loss": 1.5, "mfu": None, "comm_bytes": {"dp_shard": 100}}


def config(**sections):
    return parse_run({"batch": {"global_sequences": 1, "sequence_length": 8, "steps": 1}, **sections})


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


def test_a_sampled_step_leaves_a_row_of_layers(tmp_path) -> None:
    """Numbers of six digits; null where a segment has none, or what it has is no number."""
    sample = LayerSample(("embed", "b0"), {"gradient_norm": [1 / 3, math.nan], "largest_score": [None, 12.3456789]})
    log = RunLog(tmp_path, config(metrics={"every_steps": 10}), 0)
    log.layers(9, sample)
    log.layers(19, sample)
    log.close()
    row = {"segments": ["embed", "b0"], "gradient_norm": [0.333333, None], "largest_score": [None, 12.3457]}
    assert [json.loads(line) for line in (tmp_path / "layers.jsonl").read_text().splitlines()] == [
        {"step": 9, **row},
        {"step": 19, **row},
    ]
    RunLog(tmp_path, config(metrics={"every_steps": 10}), 19).close()
    assert len((tmp_path / "layers.jsonl").read_text().splitlines()) == 1, "a resumed run writes it again"
