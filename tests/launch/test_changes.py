"""A repeated command: what may differ from the run that stands in its folder, and what makes it another run."""

import json
from typing import Any

import pytest

from fourfold.config import RunConfig, UserError, parse_run
from fourfold.launch.changes import allowed_changes, begin_changes
from fourfold.launch.run_folder import RunFolder

MODEL = {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "ffn_size": 56, "vocab_size": 99}


def run(**sections: Any) -> RunConfig:
    base: dict[str, Any] = {"model": MODEL, "batch": {"global_sequences": 8, "sequence_length": 16, "steps": 5}}
    return parse_run({**base, **{name: {**base.get(name, {}), **values} for name, values in sections.items()}})


@pytest.mark.parametrize(
    ("sections", "shown"),
    [
        ({"batch": {"steps": 9}}, "batch.steps = 9 (was 5)"),
        ({"layout": {"tp": 2, "zero": 3}}, "layout.zero = 3 (was 0), layout.tp = 2 (was 1)"),
        ({"layout": {"dp_shard": 4}}, "layout.dp_shard = 4 (was not stated)"),
        (
            {"run": {"evaluate_every": 3, "timeout_seconds": 9.0}},
            "run.evaluate_every = 3 (was not stated), run.timeout",
        ),
        (
            {"checkpoint": {"keep": 5, "directory": "disk"}},
            'checkpoint.keep = 5 (was 2), checkpoint.directory = "disk"',
        ),
        ({"cluster": {"preset": "dgx-h100"}}, 'cluster.preset = "dgx-h100" (was "this")'),
    ],
    ids=lambda value: str(list(value)) if isinstance(value, dict) else None,
)
def test_a_run_goes_on_under_another_layout_and_other_ways_of_running(tmp_path, sections, shown) -> None:
    changes = allowed_changes(tmp_path, run(), run(**sections), change=False)
    assert ", ".join(map(str, changes)).startswith(shown)


def test_nothing_changed_says_nothing(tmp_path) -> None:
    begin_changes(RunFolder(tmp_path), allowed_changes(tmp_path, run(), run(), False), 3)
    assert not (tmp_path / "events.jsonl").exists()


@pytest.mark.parametrize(
    ("sections", "named"),
    [
        ({"optimizer": {"lr": 0.5}}, ["optimizer.lr = 0.5", "0.0003", "optimizer.lr=0.0003", "--change"]),
        ({"optimizer": {"schedule": "wsd"}}, ['optimizer.schedule = "wsd"', "--change"]),
        ({"optimizer": {"name": "sgd"}}, ['optimizer.name = "sgd"', "optimizer.name=adamw"]),
        ({"data": {"corpus": "texts"}}, ['data.corpus = "texts"', "stdlib"]),
        ({"run": {"seed": 1}}, ["run.seed = 1"]),
        ({"model": {"num_layers": 3}}, ["model.num_layers = 3"]),
        ({"batch": {"global_sequences": 16}}, ["batch.global_sequences = 16"]),
        ({"batch": {"sequence_length": 8}}, ["batch.sequence_length = 8"]),
        ({"precision": {"master": "fp64"}}, ["precision.master"]),
    ],
    ids=str,
)
def test_another_run_is_refused_by_its_first_differing_key(tmp_path, sections, named) -> None:
    with pytest.raises(UserError) as caught:
        allowed_changes(tmp_path, run(), run(**sections), change=False)
    assert all(text in str(caught.value) for text in [*named, "--out"])


@pytest.mark.parametrize("steps", [3, 4, 9])
def test_a_run_may_end_sooner_or_later_but_not_before_what_it_has_saved(tmp_path, steps) -> None:
    new = run(batch={"steps": steps})
    assert [each.key for each in allowed_changes(tmp_path, run(), new, change=False, saved=3)] == ["batch.steps"]
    with pytest.raises(
        UserError, match=rf"batch.steps = {steps}.* {steps + 1} behind it; allowed: at least {steps + 1}"
    ):
        allowed_changes(tmp_path, run(), new, change=False, saved=steps + 1)


def test_the_learning_rate_changes_on_request_and_is_recorded(tmp_path) -> None:
    new = run(optimizer={"lr": 0.5, "schedule": "constant"}, layout={"zero": 1})
    changes = allowed_changes(tmp_path, run(), new, change=True)
    begin_changes(RunFolder(tmp_path), changes, 40)
    event = json.loads((tmp_path / "events.jsonl").read_text())
    assert (event["event"], event["step"]) == ("change", 40)
    assert event["keys"] == {
        "layout.zero": [0, 1], "optimizer.lr": [0.0003, 0.5], "optimizer.schedule": ["cosine", "constant"],
    }  # fmt: skip
    assert "optimizer.lr = 0.5 (was 0.0003)" in event["message"]


@pytest.mark.parametrize(
    "sections", [{"optimizer": {"name": "sgd"}}, {"run": {"seed": 1}}, {"model": {"num_layers": 3}}], ids=str
)
def test_no_request_makes_another_run_the_same(tmp_path, sections) -> None:
    with pytest.raises(UserError, match="holds another run"):
        allowed_changes(tmp_path, run(), run(**sections), change=True)


@pytest.mark.parametrize(
    ("sections", "stays"), [({"layout": {"zero": 1}}, False), ({"run": {"evaluate_every": 2}}, True)], ids=str
)
def test_another_layout_forgets_what_the_ranks_before_left(tmp_path, sections, stays) -> None:
    left = [tmp_path / name for name in ("progress.bin", "measured/rank-00003.json", "logs/rank-00003.log")]
    for path in left:
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
    begin_changes(RunFolder(tmp_path), allowed_changes(tmp_path, run(), run(**sections), False), 3)
    assert [path.exists() for path in left] == [stays] * 3
