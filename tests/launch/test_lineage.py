"""Where a run's state goes and comes from: nobody's folders but its own, unless it is asked to begin from another's."""

import os
import shutil
from pathlib import Path

import pytest

from fourfold.config import FinalFailure, RunConfig, RunFailure, UserError, parse_run
from fourfold.config.remote_path import place
from fourfold.config.stages import course_of
from fourfold.launch.ready import first_step, owner_of, require_own_places, step_to_go_on_from, with_decay
from fourfold.launch.run_folder import RunFolder, with_absolute_places

MODEL = {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "ffn_size": 56, "vocab_size": 99}


def run(**checkpoint) -> RunConfig:
    batch = {"global_sequences": 8, "sequence_length": 16, "steps": 5}
    return parse_run({"model": MODEL, "batch": batch, "checkpoint": checkpoint})


def stands(path: Path, config: RunConfig, **more: object) -> RunFolder:
    """A run's folder, with the name of its run in it."""
    folder = RunFolder(path)
    folder.write(config, {"owner": vars(owner_of(folder)), **more})
    return folder


def test_folders_of_checkpoints_are_the_same_wherever_the_command_is_repeated(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = with_absolute_places(run(directory="saved", start_from="runs/a")).checkpoint
    assert (found.directory, found.start_from) == (str(tmp_path / "saved"), str(tmp_path / "runs/a"))
    urls = run(directory="s3://bucket/run")
    assert with_absolute_places(urls) == urls
    assert with_absolute_places(run()) == run()


def test_a_run_keeps_its_name(tmp_path) -> None:
    folder = RunFolder(tmp_path / "a")
    assert owner_of(folder).run != owner_of(folder).run
    folder.write(run(), {"owner": vars(owner_of(folder))})
    assert owner_of(folder).run == owner_of(folder).run


def test_a_former_folder_of_checkpoints_must_be_the_runs_own_too(tmp_path) -> None:
    old = stands(tmp_path / "old", run())
    (tmp_path / "old/checkpoints/step-000003").mkdir(parents=True)
    folder = stands(tmp_path / "new", run(), former_checkpoints=[str(tmp_path / "old/checkpoints")])
    with pytest.raises(UserError, match=f"{tmp_path}/old/checkpoints: belongs to the run in {tmp_path}/old"):
        require_own_places(folder, run(), run(), owner_of(folder))
    require_own_places(folder, run(), None, owner_of(folder))
    require_own_places(old, run(), run(), owner_of(old))


def test_a_copied_folder_is_refused_and_left_as_it_is(tmp_path) -> None:
    stands(tmp_path / "a", run())
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    folder = RunFolder(tmp_path / "copy")
    with pytest.raises(UserError, match="is a copy of the run in"):
        require_own_places(folder, run(), run(), owner_of(folder))


def test_a_folder_that_came_to_be_meanwhile_is_left_to_its_launch(tmp_path) -> None:
    folder, before = RunFolder(tmp_path / "a"), {"prepared": "first"}
    with folder.created(run(), before):
        texts = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir() if path.is_file()}
        for again in (lambda: folder.created(run(keep=9), {}), folder.locked):
            with pytest.raises(UserError, match="is in progress"), again():
                pytest.fail("the block runs")
        assert {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir() if path.is_file()} == texts
    assert os.listdir(tmp_path) == ["a"]
    with folder.locked():
        pass


def test_a_folder_with_nothing_but_a_lock_is_new(tmp_path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / ".lock").write_text("")
    folder = RunFolder(tmp_path / "a")
    with folder.created(run(), {"prepared": "p"}), pytest.raises(UserError, match="in progress"), folder.locked():
        pass
    assert folder.data() == {"prepared": "p"}


@pytest.mark.parametrize(
    ("is_run", "text", "named"),
    [
        (False, None, "holds no checkpoint that can be read"),
        (False, "{", "manifest.json is not readable JSON"),
        (True, None, "holds no checkpoint that can be read"),
    ],
    ids=str,
)
def test_a_start_that_is_none_is_refused(tmp_path, is_run: bool, text: str | None, named: str) -> None:
    pytest.importorskip("torch")
    if is_run:
        stands(tmp_path / "a", run(start_from=str(tmp_path / "a")))
    if text is not None:
        (tmp_path / "a" / "step-000003").mkdir(parents=True)
        (tmp_path / "a" / "step-000003" / "manifest.json").write_text(text)
    with pytest.raises(UserError, match=named):
        first_step(run(start_from=str(tmp_path / "a")))


def test_a_run_goes_on_from_the_newest_manifest_that_can_be_read_and_from_no_other_version(tmp_path) -> None:
    pytest.importorskip("torch")
    from tests.checkpoint.ranks import Run

    folder, root = stands(tmp_path / "a", run()), tmp_path / "a" / "checkpoints"
    assert step_to_go_on_from(folder, run()) is None
    for step in (3, 4):
        Run(1).save(root, step)
    assert step_to_go_on_from(folder, run()) == 4
    manifest = root / "step-000004" / "manifest.json"
    text = manifest.read_text()
    manifest.write_text("{")
    assert step_to_go_on_from(folder, run()) == 3
    manifest.write_text(text.replace('"version": 3', '"version": 2'))
    with pytest.raises(FinalFailure, match=r"version = 2 .* to resume from step-000003"):
        step_to_go_on_from(folder, run())
    for path in root.glob("*/manifest.json"):
        path.write_text("{")
    assert step_to_go_on_from(folder, run()) == 4, "the ranks say why they do not"


def test_a_store_that_does_not_answer_is_no_run_without_checkpoints(tmp_path, monkeypatch) -> None:
    pytest.importorskip("fsspec")
    config, folder = run(directory="memory://nowhere/saved"), stands(tmp_path / "a", run())
    system = type(place("memory://nowhere")._system)  # type: ignore[attr-defined]

    def fail(*given: object, **more: object) -> None:
        raise LookupError("no credentials")

    for method in ("glob", "cat_file"):
        monkeypatch.setattr(system, method, fail)
    with pytest.raises(
        RunFailure, match=r"memory:///?nowhere/saved: cannot be looked into \(LookupError: no credentials\)"
    ):
        folder.saved_steps(config)
    with pytest.raises(UserError, match=r"checkpoint.directory = .*LookupError: no credentials"):
        require_own_places(folder, config, None, owner_of(folder))


def test_a_decay_may_be_followed_by_another_and_given_again(tmp_path) -> None:
    """Each begins at the rate that the one before it had come to; what is behind the run stays."""
    pytest.importorskip("torch")
    from tests.checkpoint.ranks import Run

    def saved(step: int, config: RunConfig) -> None:
        folder.write(config, {"owner": vars(owner_of(folder))})
        Run(1).save(folder.path / "checkpoints", step)

    batch, optimizer = {"global_sequences": 8, "sequence_length": 16, "steps": 40}, {"lr": 1.0, "schedule": "wsd"}
    plain = parse_run({"model": MODEL, "batch": batch, "optimizer": optimizer})
    folder = RunFolder(tmp_path / "a")
    saved(20, plain)
    once = with_decay(plain, folder, 10)
    assert [course_of(once).learning_rate(step) for step in (19, 20, 29)] == [1.0, 1.0, 0.0]
    saved(24, once)
    assert course_of(with_decay(plain, folder, 10)).steps == 30  # the same command again
    twice = with_decay(plain, folder, 12)
    saved(28, twice)
    again = with_decay(plain, folder, 12)
    assert course_of(twice).steps == course_of(again).steps == 36
    for step in range(36):
        assert course_of(twice).learning_rate(step) == course_of(again).learning_rate(step)
        if step < 24:
            assert course_of(twice).learning_rate(step) == course_of(once).learning_rate(step)
    assert course_of(twice).learning_rate(24) == course_of(once).learning_rate(24)
    saved(36, twice)
    with pytest.raises(UserError, match="has come to 0 at step 36"):
        with_decay(plain, folder, 4)
