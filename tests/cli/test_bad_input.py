"""Whatever a person gets wrong: one message that names it and what works, the right exit code, nothing left behind."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import files_below

MISTAKES = {
    "unknown key": (["train", "run.toml", "layout.zerro=3"], ["layout.zerro", "zero"]),
    "unknown section": (["train", "run.toml", "layuot.zero=3"], ["layuot", "layout"]),
    "wrong type": (["train", "run.toml", "batch.steps=many"], ["batch.steps", "many"]),
    "out of range": (["train", "run.toml", "layout.zero=4"], ["layout.zero", "4"]),
    "override without a value": (["train", "run.toml", "layout.zero"], ["layout.zero", "section.key=value"]),
    "override without a section": (["train", "run.toml", "zero=3"], ["zero=3", "section.key=value"]),
    "missing run file": (["train", "nothing.toml"], ["nothing.toml", "run.toml"]),
    "run file that is no TOML": (["train", "texts/0.txt"], ["texts/0.txt", "TOML"]),
    "ranks that do not match": (["train", "run.toml", "layout.dp_shard=2", "--ranks", "3"], ["--ranks 2", "2"]),
    "ranks that do not divide the batch": (["train", "run.toml", "--ranks", "5"], ["batch.global_sequences", "15"]),
    "no ranks": (["train", "run.toml", "--ranks", "0"], ["--ranks 0", "1"]),
    "ranks that are no number": (["train", "run.toml", "--ranks", "two"], ["--ranks", "two"]),
    "heads that do not divide": (["train", "run.toml", "model.num_heads=5"], ["model.num_heads", "4"]),
    "a model folder that is absent": (["train", "run.toml", "model.hf=gone"], ["model.hf", "gone/config.json"]),
    "ranks that do not fit": (["train", "run.toml", "layout.pp=2", "--ranks", "3"], ["pp = 2", "3", "--ranks 4"]),
    "more stages than segments": (
        ["train", "run.toml", "layout.pp=64", "--ranks", "64"],
        ["layout.pp", "64", "segments"],
    ),
    "a tensor degree that divides no heads": (
        ["train", "run.toml", "layout.tp=3", "--ranks", "3"],
        ["tp = 3", "num_heads", "2"],
    ),
    "experts that are not there": (["train", "run.toml", "layout.ep=2", "--ranks", "2"], ["layout.ep", "num_experts"]),
    "an unknown schedule": (["train", "run.toml", "layout.schedule=1f2b"], ["layout.schedule", "1f2b", "'1f1b'"]),
    "an unknown context method": (
        ["train", "run.toml", "layout.cp=2", "layout.cp_method=rings"],
        ["cp_method", "'ring'"],
    ),
    "steps and tokens": (["train", "run.toml", "batch.tokens=100"], ["batch.steps", "batch.tokens"]),
    "unknown recompute": (["train", "run.toml", "layout.recompute=some"], ["layout.recompute", "full"]),
    "corpus that is absent": (["train", "run.toml", "data.corpus=nowhere"], ["data.corpus", "nowhere", "stdlib"]),
    "corpus that is empty": (["train", "run.toml", "data.corpus=empty"], ["data.corpus", "empty", "no text"]),
    "unknown tokenizer": (["train", "run.toml", "data.tokenizer=words"], ["data.tokenizer", "bpe:4096"]),
    "initial weights that are absent": (["train", "run.toml", "model.initial=gone"], ["gone", "safetensors"]),
    "out that is a file": (["train", "run.toml", "--out", "run.toml"], ["--out", "run.toml"]),
    "out that is something else": (["train", "run.toml", "--out", "texts"], ["--out", "texts", "run.toml"]),
    "unknown command": (["trian"], ["trian", "train"]),
    "unknown option": (["train", "run.toml", "--rank", "2"], ["--rank", "--ranks"]),
    "argument that is missing": (["train"], ["RUN"]),
    "option without its value": (["train", "run.toml", "--out"], ["--out"]),
    "show of a folder that is no run": (["show", "texts"], ["texts", "run.toml"]),
    "show of a pipeline rank that is not there": (["show", "run.toml", "--pp-rank", "1"], ["--pp-rank 1", "0"]),
    "show with a limit below zero": (["show", "run.toml", "--limit", "-1"], ["--limit", "60"]),
    "show of a program that is absent": (["show", "run.toml", "--program", "p.txt"], ["p.txt", "--full"]),
    "show of a program that is none": (["show", "run.toml", "--program", "run.toml"], ["run.toml:1"]),
    "progress of a run file": (["show", "run.toml", "--progress"], ["run.toml"]),
    "data of a corpus that is absent": (["data", "run.toml", "data.corpus=nowhere"], ["data.corpus"]),
    "sample of what is no run": (["sample", "texts"], ["texts", "run.toml"]),
    "sample of no tokens": (["sample", "texts", "--tokens", "0"], ["--tokens 0", "200"]),
    "export of what is no run": (["export", "texts", "--out", "hf"], ["texts", "run.toml"]),
    "export without a place": (["export", "texts"], ["--out"]),
    "export in an unknown format": (["export", "texts", "--out", "hf", "--dtype", "int4"], ["--dtype", "fp32"]),
    "import of what is no model": (["import", "texts", "--out", "new.toml"], ["config.json"]),
    "import over a file": (["import", "texts", "--out", "run.toml"], ["run.toml", "run-2.toml"]),
    "import to another suffix": (["import", "texts", "--out", "new.yaml"], ["new.yaml.toml"]),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_message_and_exit_code_two(name, fourfold, here) -> None:
    arguments, named = MISTAKES[name]
    (here / "empty").mkdir()
    before = files_below(here)
    result = fourfold(*arguments)
    assert result.code == 2, result
    assert result.err.startswith("error: ")
    assert result.err.count("error:") == 1
    assert "Traceback" not in result.err
    assert all(text in result.err for text in named), result.err
    assert result.out == ""
    assert files_below(here) == before


def test_weights_that_are_truncated_are_a_failure_that_names_the_file(fourfold, here) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    numpy = pytest.importorskip("numpy")
    (here / "weights").mkdir()
    path = here / "weights" / "model.safetensors"
    safetensors.save_file({"model.norm.weight": numpy.ones(4096, numpy.float32)}, path)
    path.write_bytes(path.read_bytes()[:-100])
    result = fourfold("train", "run.toml", "model.initial=weights")
    assert result.code == 1
    assert "model.safetensors" in result.err
    assert "Traceback" not in result.err
    assert not (here / "runs").exists()


def test_a_place_that_cannot_be_written_is_a_failure(fourfold, here) -> None:
    result = fourfold("train", "run.toml", "--out", "texts/0.txt/run")
    assert result.code in (1, 2)
    assert "--out texts/0.txt/run" in result.err
    assert result.err.count("error:") == 1


def test_as_a_process_too(here: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fourfold", "show", "run.toml", "layout.zero=9"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


def test_a_reader_that_leaves_early_is_no_error(here: Path) -> None:
    command = (
        f"{sys.executable} -m fourfold show run.toml model.num_layers=200 batch.global_sequences=240 --full | head -1"
    )
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)  # noqa: S602
    assert done.stdout == "fourfold program 1\n"
    assert done.stderr == ""


WITHOUT_TORCH = """
import json, sys
for name in ("torch", "tokenizers", "safetensors"):
    sys.modules[name] = None
from fourfold.cli.app import run
sys.exit(run(json.loads(sys.argv[1])))
"""


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["show", "run.toml", "--ranks", "4", "layout.zero=3", "--verify"], 0, "sound"),
        (["--help"], 0, "train"),
        (["train", "run.toml"], 2, "pip install 'fourfold[train]'"),
    ],
)
def test_the_planners_half_works_without_torch_and_the_rest_says_what_to_install(
    here, arguments, code, message
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, json.dumps(arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    assert message in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
