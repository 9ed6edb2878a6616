"""A run's folder: whole or not at all, one launch at a time."""

import json
import os

import pytest

from fourfold.config import RunConfig, RunFailure, UserError, load_run, num_steps, parse_run
from fourfold.launch.resolve import resolve_run
from fourfold.launch.run_folder import RunFolder

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


def test_checkpoints_that_were_saved_elsewhere_before_count_too(tmp_path) -> None:
    folder, elsewhere = RunFolder(tmp_path / "run"), run(checkpoint={"directory": str(tmp_path / "disk")})
    former = {"former_checkpoints": [str(folder.checkpoint_root(run()))]}
    folder.write(elsewhere, {"prepared": "p", **former})
    for path in ("run/checkpoints/step-000010", "run/checkpoints/step-000020", "disk/step-000020"):
        (tmp_path / path).mkdir(parents=True)
        (tmp_path / path / "manifest.json").write_text("{}")
    saved = folder.saved_checkpoints(elsewhere)
    assert list(saved) == [10, 20]
    assert saved[20] == tmp_path / "disk" / "step-000020"


def test_steps_from_tokens_round_up() -> None:
    config = parse_run({"batch": {"global_sequences": 8, "sequence_length": 16, "tokens": 129}})
    assert num_steps(config) == 2


def test_a_run_file_written_by_the_launcher_is_toml_for_everybody(tmp_path) -> None:
    folder = RunFolder(tmp_path / "a")
    folder.write(run(), {})
    assert load_run(folder.run_file) == run()


@pytest.mark.parametrize(("mask", "mode"), [(0o077, 0o700), (0o022, 0o755), (0o002, 0o775)])
def test_a_folder_has_the_mode_that_the_umask_says(tmp_path, mask: int, mode: int) -> None:
    before = os.umask(mask)
    try:
        RunFolder(tmp_path / "run").write(resolve_run(run(), 1, None).config, {})
    finally:
        os.umask(before)
    assert (tmp_path / "run").stat().st_mode & 0o777 == mode
    assert os.listdir(tmp_path) == ["run"]
