"""A run's folder: whole or not at all, one launch at a time, resumed only as itself."""

import json
import os

import pytest

from fourfold.config import RunConfig, RunFailure, UserError, load_run, num_steps, parse_run
from fourfold.launch.resolve import resolve_run
from fourfold.launch.run_folder import RunFolder, check_same_run

MODEL = {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "ffn_size": 56, "vocab_size": 99}


def run(**sections) -> RunConfig:
    base = {"model": MODEL, "batch": {"global_sequences": 8, "sequence_length": 16, "steps": 5}}
    return parse_run({**base, **{name: {**base.get(name, {}), **values} for name, values in sections.items()}})


def test_what_is_written_is_read_back_complete(tmp_path) -> None:
    folder = RunFolder(tmp_path / "runs" / "a")
    stated = parse_run(
        {"model": {"preset": "qwen3-8b"}, "batch": {"global_sequences": 8, "sequence_length": 16, "steps": 5}}
    )
    resolved = resolve_run(stated, 4, None)
    folder.write(resolved.config, {"prepared": "p"})
    config = folder.require_config()
    assert config == resolved.config
    assert config.layout.dp_shard == 4
    assert config.model.preset is None
    again = resolve_run(config, 4, None)
    assert (again.model, again.layout) == (resolved.model, resolved.layout)
    assert folder.data() == {"prepared": "p"}
    assert os.listdir(tmp_path / "runs") == ["a"]


def test_a_folder_that_cannot_be_written_leaves_nothing(tmp_path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunFailure, match="--out"):
        RunFolder(tmp_path / "file" / "run").write(run(), {})
    assert os.listdir(tmp_path) == ["file"]


def test_the_same_run_may_grow_and_look_elsewhere(tmp_path) -> None:
    check_same_run(tmp_path, run(), run(batch={"steps": 9}, run={"evaluate_every": 3}, checkpoint={"keep": 5}))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"optimizer": {"lr": 0.5}}, ["optimizer.lr = 0.5", "0.0003", "optimizer.lr=0.0003"]),
        ({"optimizer": {"name": "sgd"}}, ['optimizer.name = "sgd"', "optimizer.name=adamw"]),
        ({"data": {"corpus": "texts"}}, ['data.corpus = "texts"', "stdlib"]),
        ({"run": {"seed": 1}}, ["run.seed = 1"]),
        ({"layout": {"dp_shard": 4}}, ["layout.dp_shard = 4", "not stated"]),
        ({"batch": {"steps": 4}}, ["batch.steps = 4", "at least 5"]),
    ],
)
def test_another_run_is_refused_by_its_first_differing_key(tmp_path, change, named) -> None:
    with pytest.raises(UserError) as caught:
        check_same_run(tmp_path, run(), run(**change))
    assert all(text in str(caught.value) for text in [*named, "--out"])


def test_one_launch_at_a_time(tmp_path) -> None:
    folder = RunFolder(tmp_path / "a")
    folder.write(run(), {})
    with folder.locked(), pytest.raises(UserError, match=f"in progress \\(process {os.getpid()}\\)"), folder.locked():
        pass
    with folder.locked():
        pass


def test_a_run_is_finished_until_it_is_continued(tmp_path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.finished_step() is None
    events = [{"event": "start", "step": 0}, {"event": "finish", "step": 5}]
    folder.events.write_text("".join(json.dumps(e) + "\n" for e in events) + '{"event": "fin')
    assert folder.finished_step() == 5
    folder.events.write_text("".join(json.dumps(e) + "\n" for e in [*events, {"event": "resume", "step": 5}]))
    assert folder.finished_step() is None


def test_only_complete_checkpoints_count(tmp_path) -> None:
    folder = RunFolder(tmp_path)
    for name in ("step-000010", "step-000200", ".tmp-step-000300", "step-000400"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
        if name != "step-000400":
            (tmp_path / "checkpoints" / name / "manifest.json").write_text("{}")
    assert folder.saved_steps(run()) == [10, 200]


def test_steps_from_tokens_round_up() -> None:
    config = parse_run({"batch": {"global_sequences": 8, "sequence_length": 16, "tokens": 129}})
    assert num_steps(config) == 2


def test_a_run_file_written_by_the_launcher_is_toml_for_everybody(tmp_path) -> None:
    folder = RunFolder(tmp_path / "a")
    folder.write(run(), {})
    assert load_run(folder.run_file) == run()


def test_the_advice_on_another_number_of_ranks_counts_every_axis(tmp_path) -> None:
    degrees = {"pp": 2, "dp_replicate": 3, "cp": 2, "tp": 5}
    old, new = (run(layout={**degrees, "dp_shard": shard}) for shard in (7, 14))
    with pytest.raises(UserError, match=r"dp_shard = 14 here, 7 there; .* use --ranks 420 to go on"):
        check_same_run(tmp_path, old, new)
