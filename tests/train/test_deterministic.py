"""`run.deterministic`: what a rank sets before it has a device, and a run whose bits repeat."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fourfold.config import UserError
from fourfold.config.schema import RunSection
from fourfold.train.deterministic import NCCL, WORKSPACE, be_deterministic
from tests.support.training_ranks import start_training
from tests.train.test_training import corpus, finish, lines, make_run

__all__ = ["corpus"]

CPU = torch.device("cpu")
ON = RunSection(deterministic=True)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    made: list[Any] = []
    monkeypatch.setattr(torch, "use_deterministic_algorithms", made.append)
    return made


def test_a_ranks_environment(calls: list[Any]) -> None:
    environment: dict[str, str] = {}
    be_deterministic(RunSection(), environment)
    assert (environment, calls) == ({}, [])
    be_deterministic(ON, environment)
    assert environment == {WORKSPACE: ":4096:8", **NCCL}
    assert calls == [True]


@pytest.mark.parametrize(("name", "value"), [(WORKSPACE, ":0:0"), ("NCCL_ALGO", "Tree"), ("NCCL_NVLS_ENABLE", "1")])
def test_a_variable_that_contradicts_it_is_refused(name: str, value: str, calls: list[Any]) -> None:
    with pytest.raises(
        UserError, match=f"run.deterministic = true, but {name} = '{value}' in the environment; allowed: "
    ):
        be_deterministic(ON, {name: value})
    assert calls == []


def test_it_is_set_before_torch_has_a_device() -> None:
    """In a process of its own: cuBLAS and NCCL read the variables once."""
    code = (
        "import os, torch; from fourfold.config.schema import RunSection\n"
        "from fourfold.train.deterministic import be_deterministic\n"
        "be_deterministic(RunSection(deterministic=True))\n"
        "print(os.environ['CUBLAS_WORKSPACE_CONFIG'], torch.are_deterministic_algorithms_enabled(), torch.cuda.is_initialized())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ})
    assert done.stdout.split() == [":4096:8", "True", "False"]


@pytest.mark.rest
def test_a_run_repeats_its_bits(tmp_path: Path, corpus: Path) -> None:
    """With experts, on two ranks: PyTorch refuses no operator of it, and two runs have the same certificate."""
    model = {"num_experts": 4, "top_k": 2, "moe_ffn_size": 24}
    found = []
    for name in ("one", "two"):
        run = {"deterministic": True, "sample_tokens": 0}
        out = make_run(tmp_path / name, corpus, run=run, model=model, batch={"steps": 3}, layout={"zero": 1})
        codes, errors = finish(start_training(out, 2))
        assert codes == [0, 0], errors
        losses = json.dumps([(row["loss"], row["grad_norm"]) for row in lines(out / "metrics.jsonl")])
        found.append(hashlib.sha256(losses.encode()).hexdigest())
    assert found[0] == found[1]
