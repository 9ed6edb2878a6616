"""`run.deterministic`: what repeats its bits is taken, what does not is refused by name."""

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fourfold.config import UserError
from fourfold.config.schema import RunSection
from fourfold.kernels.attention.kind import KIND, TILED, AttentionCase
from fourfold.kernels.choose import Alone, choose
from fourfold.kernels.trials import Trials
from fourfold.train.deterministic import NCCL, WORKSPACE, be_deterministic
from tests.support.backends import with_members
from tests.support.training_ranks import start_training
from tests.train.test_training import corpus, finish, lines, make_run

__all__ = ["corpus"]

CPU = torch.device("cpu")
CASE = AttentionCase(1, 8, 2, 1, 8, 8, torch.float32, CPU)
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


class Atomics:
    """Attention whose gradient of keys is added in another order each time: off by a bit of one number."""

    def __init__(self) -> None:
        self.times = 0

    def backward(self, *given: Any) -> tuple[Tensor, Tensor, Tensor]:
        self.times += 1
        d_q, d_k, d_v = TILED.operations.attend_backward(*given)
        if self.times % 2:
            d_k[0, 0, 0, 0] *= 1 + 2**-22
        return d_q, d_k, d_v


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_back_end_with_atomics_is_not_taken(tmp_path: Path, deterministic: bool) -> None:
    fast = with_members(TILED, "fast", attend_backward=Atomics().backward)
    contest = KIND.contest(CASE, {"fast": fast, "slow": replace(TILED, name="slow")})
    seconds = iter((1.0, 9.0) if not deterministic else (9.0,))
    trials = Trials(tmp_path, deterministic=deterministic)
    chosen = choose(contest, Alone(CPU), "auto", "", tmp_path / "c.json", lambda call: next(seconds), True, trials)
    assert chosen.backend.name == ("slow" if deterministic else "fast")


def test_one_that_is_named_is_refused(tmp_path: Path) -> None:
    fast = with_members(TILED, "fast", attend_backward=Atomics().backward)
    contest = KIND.contest(CASE, {"fast": fast})
    trials = Trials(tmp_path, deterministic=True)
    with pytest.raises(
        UserError, match=r'attention_backend = "fast": its results have other bits .* run.deterministic = true'
    ):
        choose(contest, Alone(CPU), "fast", "", tmp_path / "c.json", lambda call: 1.0, True, trials)


def test_no_kernel_of_ours_uses_atomics() -> None:
    """The documentation says so: a Triton program adds in one order unless it adds to memory that others add to."""
    source = Path(__file__).parents[2] / "src/fourfold"
    kernels = [path for folder in ("kernels", "model") for path in (source / folder).rglob("*.py")]
    assert len(kernels) > 20
    assert [path for path in kernels if "atomic" in path.read_text()] == []


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
