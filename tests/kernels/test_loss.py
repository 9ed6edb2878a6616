"""The back end of a run's cross-entropy: checked beside fp64, and taken where it is the fastest."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fourfold.kernels.backend import Backend
from fourfold.kernels.choose import Chosen, choose
from fourfold.kernels.loss import FORMULA, KIND, TRITON, LossCase, case_of
from tests.rehearse.layouts import sections
from tests.rehearse.rehearsed import sections_spec
from tests.support.fused_operations import PlainLoss
from tests.support.thread_ranks import ThreadRank, on_thread_ranks

MODEL = sections_spec(1, sections({}))[0].model
CASE = LossCase(20, 70, torch.float32, torch.device("cpu"), MODEL)
PLAIN = Backend[LossCase]("plain", {"losses": PlainLoss()})


class OtherSum(PlainLoss):
    @staticmethod
    def statistics(logits: Tensor, column: Tensor, here: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        maximum, total, picked = PlainLoss.statistics(logits, column, here)
        return maximum, total * 1.01, picked


class NoTarget(PlainLoss):
    @staticmethod
    def gradient_(logits: Tensor, column: Tensor, maximum: Tensor, factor: Tensor, target: Tensor) -> None:
        PlainLoss.gradient_(logits, column, maximum, factor, torch.zeros_like(target))


class Failing(PlainLoss):
    @staticmethod
    def statistics(logits: Tensor, column: Tensor, here: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        raise RuntimeError("broken")


@pytest.mark.parametrize("backend", [FORMULA, PLAIN], ids=lambda backend: backend.name)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("sizes", [(1, 1), (20, 70)], ids=str)
def test_what_is_right_is_taken(backend: Backend[LossCase], dtype: torch.dtype, sizes: tuple[int, int]) -> None:
    assert KIND.examine(backend, replace(CASE, rows=sizes[0], columns=sizes[1], dtype=dtype)) is None


def test_the_formula_is_right_in_bf16() -> None:
    assert KIND.examine(FORMULA, replace(CASE, dtype=torch.bfloat16)) is None


@pytest.mark.parametrize(
    ("kernels", "problem"),
    [
        (OtherSum(), "its loss is off by"),
        (NoTarget(), "its gradient is off by"),
        (Failing(), "RuntimeError: broken"),
    ],
)
def test_one_that_is_wrong_is_not_taken(kernels: PlainLoss, problem: str) -> None:
    found = KIND.examine(replace(PLAIN, members={"losses": kernels}), CASE)
    assert found is not None
    assert found.startswith(problem)


def test_all_ranks_take_the_one_whose_slowest_rank_is_fastest(tmp_path: Path) -> None:
    times, backends = [[1.0, 3.0], [9.0, 4.0]], {"formula": FORMULA, "plain": PLAIN}

    def run(context: ThreadRank) -> Chosen[LossCase]:
        own, cache = iter(times[context.rank]), tmp_path / f"{context.rank}.json"
        fought = KIND.contest(CASE, backends)
        return choose(fought, context, "auto", "", cache, lambda call: (call(), next(own))[1], measures=True)

    chosen = on_thread_ranks(2, run)
    assert [each.backend.name for each in chosen] == ["plain", "plain"]
    assert chosen[0].reason == "the fastest, in ms of forward and backward: formula 9000.00, plain 4000.00"


@pytest.mark.parametrize(
    ("ranks", "layout", "share"), [(1, {}, (1, 1)), (2, {"tp": 2}, (1, 2)), (2, {"cp": 2}, (2, 1))]
)
def test_the_case_of_a_layout(ranks: int, layout: dict[str, Any], share: tuple[int, int]) -> None:
    spec, _ = sections_spec(ranks, sections(layout))
    case = case_of(spec, torch.device("cuda"))
    tokens = spec.layout.microbatch_sequences * spec.layout.sequence_length
    assert (case.rows, case.columns) == (tokens // share[0], -(-spec.model.vocab_size // share[1]))


def test_kernels_for_gpus_say_so() -> None:
    assert KIND.examine(TRITON, CASE) == "it runs on CUDA"
