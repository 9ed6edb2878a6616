"""Under `run.deterministic` a back end that gives other bits the second time is not taken."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fourfold.config import UserError
from fourfold.kernels.attention.kind import KIND, TILED, AttentionCase
from fourfold.kernels.choose import Alone, choose
from fourfold.kernels.trials import Trials
from tests.support.backends import with_members

CPU = torch.device("cpu")
CASE = AttentionCase(1, 8, 2, 1, 8, 8, torch.float32, CPU)


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
