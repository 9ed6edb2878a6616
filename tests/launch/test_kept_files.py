"""A launch's run.toml and data.json stay what they were when it began, whatever is done to the folder meanwhile."""

import shutil
from pathlib import Path

import pytest

from fourfold.config import RunConfig, parse_run
from fourfold.launch.kept_files import KeptFiles
from fourfold.launch.run_folder import RunFolder

MODEL = {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "ffn_size": 56, "vocab_size": 99}


def run(lr: float = 3e-4) -> RunConfig:
    batch = {"global_sequences": 8, "sequence_length": 16, "steps": 5}
    return parse_run({"model": MODEL, "batch": batch, "optimizer": {"lr": lr}})


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    found = RunFolder(tmp_path / "run")
    found.write(run(), {"prepared": "p"})
    return found


def test_a_changed_file_is_set_aside_and_named(folder: RunFolder) -> None:
    kept = KeptFiles(folder)
    assert kept.put_back() == []
    text, edited = folder.run_file.read_text(), folder.run_file.read_text().replace("0.0003", "0.03")
    folder.run_file.write_text(edited)
    (told,) = kept.put_back()
    assert "run.toml was changed while the run went on" in told
    assert folder.run_file.read_text() == text
    assert (folder.path / "run.toml.edited").read_text() == edited
    assert kept.put_back() == []


def test_what_was_deleted_is_there_again(folder: RunFolder) -> None:
    kept = KeptFiles(folder)
    shutil.rmtree(folder.log(0).parent)
    folder.data_file.unlink()
    assert kept.are_there
    (told,) = kept.put_back()
    assert "data.json was deleted" in told
    assert folder.data() == {"prepared": "p"}
    assert folder.log(0).parent.is_dir()
    folder.data_file.unlink()
    folder.run_file.unlink()
    assert not kept.are_there, "the folder itself is gone"


def test_what_the_launch_itself_writes_holds_from_then_on(folder: RunFolder) -> None:
    kept = KeptFiles(folder)
    folder.write(run(), {"prepared": "q"})
    kept.take()
    assert kept.put_back() == []


def test_the_run_that_stands_in_a_folder_is_what_its_launch_wrote(folder: RunFolder) -> None:
    folder.run_file.write_text(folder.run_file.read_text().replace("0.0003", "0.03"))
    assert folder.require_config() == run(0.03)
    assert folder.launched() == run()
    (folder.path / ".launched.toml").write_text("[model")
    assert folder.launched() == run(0.03)
    (folder.path / ".launched.toml").unlink()
    assert folder.launched() == run(0.03)
