"""`examples/own_block`: every command takes it, or says in one message why not."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Result

pytest.importorskip("torch")
EXAMPLE = Path(__file__).parents[2] / "examples" / "own_block"
RUN = str(EXAMPLE / "run.toml")


@pytest.fixture
def example(fourfold: Callable, monkeypatch: pytest.MonkeyPatch) -> Callable:
    """The command, told to import the block wherever that has to be said."""
    monkeypatch.syspath_prepend(str(EXAMPLE))

    def run(command: str, *arguments: str) -> Result:
        return fourfold(command, *arguments, *(() if command == "train" else ("--trust",)))

    return run


@pytest.mark.parametrize("changes", [[], ["layout.pp=2", "layout.dp_shard=1", "layout.recompute=full"]])
def test_its_program_is_verified_and_printed_and_read_back(example: Callable, changes: list[str], here: Path) -> None:
    verified = example("show", RUN, *changes, "--verify")
    assert verified.code == 0, verified.err
    (here / "program.txt").write_text(example("show", RUN, *changes, "--full").out)
    assert example("show", RUN, *changes, "--program", "program.txt", "--verify").code == 0


def test_simulate_prices_what_its_trace_saw(example: Callable) -> None:
    def step(*changes: str) -> dict:
        result = example("simulate", RUN, *changes, "--cluster", "dgx-h100:2", "--json")
        assert result.code == 0, result.err
        return json.loads(result.out)

    small, large = step(), step("model.ffn_size=2752")
    assert large["step_seconds"] > small["step_seconds"]
    assert large["mfu"] > small["mfu"]


def test_plan_finds_layouts_that_run(example: Callable) -> None:
    result = example("plan", RUN, "--cluster", "dgx-h100:8", "--explain", "tp=2", "--explain", "cp=2", "--json")
    assert result.code == 0, result.err
    found = json.loads(result.out)
    assert found["best"]
    for each in found["best"]:
        assert each["layout"]["tp"] == 1
        assert each["layout"]["recompute"] in ("none", "full")
    tensor, context = found["explanations"]
    assert tensor["layout"] is None
    assert context["layout"]["layout"]["cp_method"] == "all_gather"
    flags = example("plan", RUN, "--cluster", "dgx-h100:8", "--as", "megatron")
    assert "their model has to have the same block" in flags.out + flags.err


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["layout.tp=2", "layout.dp_shard=1"], "layout.tp = 2: tensor parallelism does not split model.block"),
        (
            ["layout.cp=2"],
            "layout.cp_method = 'ring': model.block = 'python:parallel_block:BLOCK' sees whole sequences",
        ),
        (["model.num_experts=8", "model.top_k=2"], "model.num_experts = 8; a value that works: num_experts = 0"),
        (["model.block=mine.py"], "model.block = 'mine.py': allowed: 'python:MODULE:NAME'"),
        (["model.block=python:nowhere:BLOCK"], "cannot import nowhere"),
    ],
)
@pytest.mark.parametrize("command", ["train", "show", "simulate"])
def test_what_cannot_run_is_refused(example: Callable, command: str, changes: list[str], words: str) -> None:
    options = ["--cluster", "dgx-h100:2"] if command == "simulate" else []
    result = example(command, RUN, *changes, *options)
    assert result.code == 2
    assert words in result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize("command", ["show", "simulate", "plan"])
@pytest.mark.parametrize("key", ["model.block", "layout.schedule"])
def test_no_code_is_imported_unless_that_is_asked_for(
    fourfold: Callable, here: Path, monkeypatch: pytest.MonkeyPatch, command: str, key: str
) -> None:
    """Neither from the run file nor from an override; and with --trust it is."""
    (here / "trap.py").write_text("open('imported', 'w').close()\n1 / 0\n")
    monkeypatch.syspath_prepend(str(here))
    section, name = key.split(".")
    own = (here / "run.toml").read_text().replace("[model]", "[layout]\n[model]")
    (here / "own.toml").write_text(own.replace(f"[{section}]", f"[{section}]\n{name} = 'python:trap:x'"))
    cluster = [] if command == "show" else ["--cluster", "dgx-h100:4"]
    for arguments in (["own.toml"], ["run.toml", f"{key}=python:trap:x"]):
        if command == "plan" and key == "layout.schedule" and len(arguments) == 2:
            continue  # a value to search for, which has to be a built-in one
        result = fourfold(command, *arguments, *cluster)
        assert result.code == 2
        assert f"{key} = 'python:trap:x' names Python code" in result.err
        assert "--trust" in result.err
        assert not (here / "imported").exists()
    if command != "plan" or key == "model.block":  # a plan chooses the schedule itself
        result = fourfold(command, "own.toml", *cluster, "--trust")
        assert "cannot import trap: ZeroDivisionError" in result.err
        assert (here / "imported").exists()


def test_training_says_what_it_imports(fourfold: Callable) -> None:
    result = fourfold("train", "run.toml", "model.block=python:nowhere:x")
    assert "model.block = 'python:nowhere:x': this run imports that code" in result.out
    assert "cannot import nowhere" in result.err


@pytest.mark.rest
def test_it_trains_resumes_and_samples_and_is_not_exported(here: Path) -> None:
    path = os.pathsep.join([str(EXAMPLE), os.environ.get("PYTHONPATH", "")])

    def fourfold(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "fourfold", *arguments]
        environment = {**os.environ, "PYTHONPATH": path}
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)

    small = ["data.corpus=texts", "data.tokenizer=bytes", "batch.sequence_length=32", "run.sample_tokens=8"]
    small.append("run.track_memory=true")
    for steps in ("2", "4"):
        done = fourfold("train", RUN, *small, f"batch.steps={steps}", "--out", "run")
        assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (here / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    report = json.loads(fourfold("report", "run", "--cluster", "dgx-h100:2", "--trust", "--json").stdout)
    for rank in report["ranks"]:
        assert rank["sent_bytes_equal"]
        assert rank["measured_peak_bytes"] == pytest.approx(rank["predicted_peak_bytes"], rel=0.05)
    refused = fourfold("export", "run", "--out", "hf", "--trust")
    assert refused.returncode == 2
    assert "model.block = 'python:parallel_block:BLOCK'" in refused.stderr
