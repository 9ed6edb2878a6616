"""Runs whose checkpoints are copied and exported beside training: what they leave, and what they go on from."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import fourfold
from fourfold.checkpoint import read_parameters
from fourfold.checkpoint.manifest import read_manifest
from tests.train.test_training import RUN, corpus

__all__ = ["corpus"]


def run(corpus: Path, folder: Path, steps: int = 8, **checkpoint: Any) -> dict[str, Any]:
    """Three stages of a small model in fp64."""
    return {
        "model": RUN["model"],
        "data": {"corpus": str(corpus), "tokenizer": "bytes", "directory": str(folder / "data")},
        "batch": {"global_sequences": 4, "sequence_length": 16, "steps": steps},
        "precision": {"compute": "fp64"},
        "optimizer": {"lr": 1e-2, "schedule": "constant"},
        "checkpoint": {"every_steps": 2, **checkpoint},
        "run": {"device": "cpu", "sample_tokens": 0, "threads_per_rank": 1, "evaluate_sequences": 4},
        "stage": [{"name": "begin@home", "until_steps": 3}, {"name": "end", "batch": {"sequence_length": 32}}],
    }


def made(result: Any) -> list[tuple[Any, ...]]:
    return [tuple(row[key] for key in ("step", "loss", "grad_norm", "lr", "tokens")) for row in result.metrics]


def require_same_end(one: Path, other: Path, step: int) -> None:
    first, second = (path / "checkpoints" / f"step-{step:06d}" for path in (one, other))
    again = read_parameters(second)
    for name, tensor in read_parameters(first).items():
        assert torch.equal(tensor, again.get(name)), name
    assert read_manifest(first).info["chain"] == read_manifest(second).info["chain"]


def test_a_run_whose_disk_is_lost_goes_on_from_its_copies(tmp_path: Path, corpus: Path) -> None:
    plain = fourfold.train(run(corpus, tmp_path), ranks=1, out=tmp_path / "plain", quiet=True)
    out, copies = tmp_path / "run", tmp_path / "elsewhere"
    table = run(corpus, tmp_path, copy_to=str(copies), copy_all=True)
    fourfold.train({**table, "batch": {**table["batch"], "steps": 5}}, ranks=1, out=out, quiet=True)
    assert sorted(path.name for path in copies.iterdir()) == [
        "owner.json", "run", "step-000002", "step-000003", "step-000004", "step-000005",
    ]  # fmt: skip
    shutil.rmtree(out / "checkpoints")  # a disk of their own
    again = fourfold.train({**table, "batch": {**table["batch"], "steps": 7}}, ranks=1, out=out, quiet=True)
    told = {event["event"]: event for event in again.events}
    assert "goes on from those in" in told["fetch"]["message"]
    assert (told["resume"]["step"], told["resume"]["source"]) == (5, "copy")
    shutil.rmtree(out)  # the machine
    shutil.rmtree(copies / "step-000007")
    last = fourfold.train(table, ranks=1, out=out, quiet=True)
    told = {event["event"]: event for event in last.events}
    assert (told["resume"]["step"], told["resume"]["source"]) == (6, "copy")
    assert "the run's folder was not there" in told["fetch"]["message"]
    assert made(last) == made(plain)
    require_same_end(out, tmp_path / "plain", 8)
    with pytest.raises(fourfold.UserError, match=r"checkpoint.copy_to = .*belongs to the run in"):
        fourfold.train(table, ranks=1, out=tmp_path / "other", quiet=True)
    assert not (tmp_path / "other").exists()


def test_exports_on_the_way_are_those_of_the_command(tmp_path: Path, corpus: Path) -> None:
    table = run(corpus, tmp_path, export_every_steps=4, export_stage_ends=True, export_dtype="bf16", keep=1)
    result = fourfold.train(table, ranks=2, out=tmp_path / "run", quiet=True)
    exports = tmp_path / "run" / "exports"
    assert sorted(path.name for path in exports.iterdir()) == ["step-000003", "step-000004", "step-000008"]
    assert [event["step"] for event in result.events if event["event"] == "export"] == [3, 4, 8]
    for step in (3, 8):
        command = [sys.executable, "-m", "fourfold", "export", str(tmp_path / "run"), "--step", str(step)]
        subprocess.run([*command, "--out", str(tmp_path / str(step)), "--dtype", "bf16"], check=True)
        for path in (tmp_path / str(step)).iterdir():
            assert (exports / f"step-{step:06d}" / path.name).read_bytes() == path.read_bytes(), path.name
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(exports / "step-000008", torch_dtype="auto")
    assert model.dtype == torch.bfloat16
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir()) == ["step-000003", "step-000008"]
    assert json.loads((exports / "step-000008" / "config.json").read_text())["torch_dtype"] == "bfloat16"
