"""Code that a run file, a run's folder or a checkpoint names is imported where that is asked for, and nowhere else."""

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")
from fourfold.checkpoint import read_manifest
from fourfold.cli.app import COMMANDS
from tests.support.left_run import LOOKS, leave_run

READS = {
    **LOOKS,
    "sample": ["sample", "run", "--tokens", "1"],
    "checkpoint export": ["checkpoint", "export", "run", "--out", "exported"],
    "checkpoint reshard": ["checkpoint", "reshard", "run", "layout.zero=0", "--out", "resharded"],
    "checkpoint verify": ["checkpoint", "verify", "run", "--step", "5", "--replay", "1"],
}
"""Command lines that compile a run or build its model."""
IMPORTS_NONE = {
    "data": ["data", "run/run.toml"],
    "checkpoint list": ["checkpoint", "list", "run"],
}
"""Command lines that read a run and need no code of it."""
READS_NO_RUN = {"list", "cluster", "calibrate", "import"}
ITS_OWN = {"train", "explore"}
"""The run itself; and a server, which is given no way to import: `tests/explore/test_run.py`."""
KEYS = {
    "layout.schedule": ('schedule = "1f1b"', 'schedule = "python:probe:orders"'),
    "model.block": ("[model]", '[model]\nblock = "python:probe:BLOCK"'),
}


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return leave_run(tmp_path_factory.mktemp("left"))


@pytest.fixture(params=KEYS)
def probed(request: pytest.FixtureRequest, left: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file that a module leaves when it is imported, which run file and manifests of `run` name."""
    key, (old, new) = request.param, KEYS[request.param]
    shutil.copytree(left, "run")
    text = Path("run/run.toml").read_text()
    assert old in text
    Path("run/run.toml").write_text(text.replace(old, new, 1))
    section, name = key.split(".")
    for path in Path("run").glob("checkpoints/step-*"):
        manifest = read_manifest(path)
        manifest.info["config"][section][name] = new.split('"')[-2]
        (path / "manifest.json").write_text(manifest.to_json())
    imported = here / "imported"
    (here / "probe.py").write_text(f"open({str(imported)!r}, 'w').close()\norders = BLOCK = None\n")
    monkeypatch.syspath_prepend(str(here))
    sys.modules.pop("probe", None)
    yield imported
    sys.modules.pop("probe", None)


def test_every_command_is_one_of_these() -> None:
    named = {name.split()[0] for name in (*READS, *IMPORTS_NONE)}
    assert {*named, *READS_NO_RUN, *ITS_OWN} == set(COMMANDS)


@pytest.mark.parametrize("name", READS)
def test_code_is_imported_where_that_is_asked_for_alone(name: str, probed: Path, fourfold: Callable) -> None:
    result = fourfold(*READS[name])
    assert not probed.exists()
    assert result.code == 2
    assert "names Python code" in result.err
    assert "--trust" in result.err
    assert "names Python code" not in fourfold(*READS[name], "--trust").err
    assert probed.exists() or name not in ("show", "doctor", "report", "compare", "job")


@pytest.mark.parametrize("name", IMPORTS_NONE)
def test_what_needs_no_code_imports_none(name: str, probed: Path, fourfold: Callable) -> None:
    assert fourfold(*IMPORTS_NONE[name]).code == 0
    assert not probed.exists()


def test_a_case_names_no_code_either(probed: Path, fourfold: Callable, here: Path) -> None:
    case = """
[[case]]
cluster = "dgx-h100:2"
measured = { step_seconds = 1.0 }
[case.model]
preset = "llama3-8b"
block = "python:probe:BLOCK"
[case.batch]
global_sequences = 2
sequence_length = 16
steps = 1
"""
    (here / "cases.toml").write_text(case)
    result = fourfold("validate", "cases.toml")
    assert (result.code, probed.exists()) == (2, False)
    assert "--trust" in result.err
