"""A run that goes on under another layout: the same samples, the same losses, the same parameters as if it had not changed."""

import json
import shutil
import signal
from pathlib import Path

import pytest
import torch

from fourfold.checkpoint import read_parameters
from fourfold.config import dump_run, load_run
from tests.support.grid import others_are_rest
from tests.train.test_training import EXPERTS, corpus, finish, lines, make_run, start_training, wait_for_step

__all__ = ["corpus"]
FP64 = {"precision": {"compute": "fp64"}}
OFFLOADED = {"offload": "activations", "offload_optimizer": True}
MUON = {"optimizer": {"name": "muon", "lr": 0.02}}
CHANGES = [
    (2, {"zero": 3}, 2, {"pp": 2}, {}),
    (2, {"zero": 3}, 4, {"pp": 2, "tp": 2, "sequence_parallel": True}, {}),
    (4, {"pp": 2, "schedule": "zb_v", "zero": 1}, 3, {"dp_replicate": 1}, {}),
    (4, {"pp": 2, "cp": 2, "ep": 2, "zero": 1}, 2, {"tp": 2, "etp": 2}, {"model": EXPERTS}),
    (2, {"zero": 3}, 4, {"pp": 2, "dp_replicate": 2, "zero": 0}, MUON),
    (4, {"dp_replicate": 2, "zero": 1}, 2, {"ep": 2, "zero": 2}, {"model": EXPERTS, **MUON}),
    (2, {"zero": 1, **OFFLOADED}, 2, {"pp": 2, **OFFLOADED}, {}),
]


@pytest.mark.parametrize(
    ("ranks", "before", "more", "after", "stated"),
    others_are_rest(CHANGES, CHANGES[:1]),
    ids=str,
)
def test_losses_and_parameters_are_those_of_an_undisturbed_run(
    tmp_path, corpus, ranks, before, more, after, stated
) -> None:
    sections = {"layout": before, "batch": {"global_sequences": 12}, **FP64, **stated}
    full = make_run(tmp_path / "full", corpus, **sections)
    codes, errors = finish(start_training(full, ranks))
    assert codes == [0] * ranks, errors
    changed = make_run(tmp_path / "changed", corpus, **sections)
    processes = start_training(changed, ranks)
    wait_for_step(changed, 2)
    processes[0].send_signal(signal.SIGTERM)
    assert finish(processes)[0] == [3] * ranks
    stopped = len(lines(changed / "metrics.jsonl"))
    assert 2 < stopped < 12
    config = load_run(changed / "run.toml")
    layout = type(config.layout)(**after)
    (changed / "run.toml").write_text(dump_run(config.model_copy(update={"layout": layout})))
    codes, errors = finish(start_training(changed, more))
    assert codes == [0] * more, errors
    expected, actual = lines(full / "metrics.jsonl"), lines(changed / "metrics.jsonl")
    for key in ("step", "tokens", "lr"):
        assert [line[key] for line in actual] == [line[key] for line in expected], key
    for key in ("loss", "grad_norm"):
        assert [line[key] for line in actual] == pytest.approx([line[key] for line in expected], rel=1e-9, abs=1e-9), (
            key
        )
    last, again = (read_parameters(folder / "checkpoints" / "step-000012") for folder in (full, changed))
    for name, tensor in last.items():
        assert torch.allclose(tensor, again.get(name), rtol=0, atol=1e-9), name


def test_a_run_that_saves_elsewhere_from_now_on_goes_on_from_where_it_saved_before(
    tmp_path: Path, corpus: Path
) -> None:
    out = make_run(tmp_path / "run", corpus, batch={"steps": 4})
    assert finish(start_training(out, 1))[0] == [0]
    config, data = load_run(out / "run.toml"), json.loads((out / "data.json").read_text())
    changed = {"batch": {"steps": 6}, "checkpoint": {"directory": str(tmp_path / "disk")}}
    update = {name: getattr(config, name).model_copy(update=values) for name, values in changed.items()}
    (out / "run.toml").write_text(dump_run(config.model_copy(update=update)))
    (out / "data.json").write_text(json.dumps({**data, "former_checkpoints": [str(out / "checkpoints")]}))
    assert finish(start_training(out, 1))[0] == [0]
    assert [line["step"] for line in lines(out / "metrics.jsonl")] == list(range(6))
    assert [path.name for path in (tmp_path / "disk").iterdir()] == ["step-000006"]


@pytest.mark.parametrize("leaf", ["", "checkpoints", "checkpoints/step-000004"], ids=["run", "checkpoints", "one"])
def test_a_new_run_begins_at_the_newest_checkpoint_of_another_where_it_is_asked_to(
    tmp_path: Path, corpus: Path, leaf: str
) -> None:
    first = make_run(tmp_path / "first", corpus, batch={"steps": 6}, checkpoint={"every_steps": 4})
    assert finish(start_training(first, 1))[0] == [0]
    shutil.rmtree(first / "checkpoints" / "step-000006")
    section = {"start_from": str(first / leaf)}
    second = make_run(tmp_path / "second", corpus, batch={"steps": 6}, checkpoint=section)
    assert finish(start_training(second, 1))[0] == [0]
    rows, expected = (lines(out / "metrics.jsonl") for out in (second, first))
    assert [row["step"] for row in rows] == [4, 5]
    assert [row["loss"] for row in rows] == [row["loss"] for row in expected[4:]]
    assert sorted(path.name for path in (first / "checkpoints").iterdir()) == ["step-000004"]
    assert sorted(path.name for path in (second / "checkpoints").iterdir()) == ["step-000006"]


@pytest.mark.rest
def test_a_run_saves_to_a_url_and_goes_on_from_it(tmp_path: Path, corpus: Path) -> None:
    url = f"file://{tmp_path}/remote"
    out = make_run(tmp_path / "run", corpus, checkpoint={"directory": url, "every_steps": 2}, batch={"steps": 4})
    assert finish(start_training(out, 2))[0] == [0, 0]
    config = load_run(out / "run.toml")
    longer = config.model_copy(update={"batch": config.batch.model_copy(update={"steps": 6})})
    (out / "run.toml").write_text(dump_run(longer))
    assert finish(start_training(out, 2))[0] == [0, 0]
    assert [line["step"] for line in lines(out / "metrics.jsonl")] == list(range(6))
    assert [event.get("step") for event in lines(out / "events.jsonl") if event["event"] == "resume"] == [4]
    assert sorted(path.name for path in (tmp_path / "remote").iterdir()) == ["step-000004", "step-000006"]
    assert not (out / "checkpoints").exists()
