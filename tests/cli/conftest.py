"""A current folder with a small corpus and a run file, and the command run in it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from fourfold.cli.app import run as run_command

RUN = """
[model]
num_layers = 2
hidden_size = 32
num_heads = 4
ffn_size = 56
[data]
corpus = "texts"
tokenizer = "bytes"
[batch]
global_sequences = 12
sequence_length = 16
steps = 3
[run]
device = "cpu"
"""


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "run.toml").write_text(RUN)
    (tmp_path / "texts").mkdir()
    for number in range(3):
        (tmp_path / "texts" / f"{number}.txt").write_text(f"The {number}th text is about numbers.\n" * 30)
    return tmp_path


@pytest.fixture
def fourfold(here: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Runs the command line in `here`."""

    def run(*arguments: str) -> Result:
        capsys.readouterr()
        code = run_command([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return run


def files_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}
