"""Training with low-precision matmuls follows the loss of fp32 within a stated bound, and a scale that is wrong does not.

Forty steps of a small model. `python benchmarks/low_precision.py` trains the default model for longer.
"""

import statistics
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fourfold.model import low_precision
from tests.support.training_ranks import start_training
from tests.train.test_training import corpus, finish, lines, make_run

__all__ = ["corpus"]
WINDOW = 10
BOUND = 0.02
"""The most that a running mean of ten losses differs from that in fp32, as a share of it."""
SIZES = {"hidden_size": 64, "num_heads": 2, "num_kv_heads": 2, "ffn_size": 128}


def _losses(out: Path, corpus: Path, harm: Callable[[], None] | None = None, **precision: str) -> list[float]:
    sections = {
        "model": SIZES,
        "batch": {"global_sequences": 4, "sequence_length": 64, "steps": 40},
        "layout": {"microbatch_sequences": 4},
        "run": {"evaluate_every": 1000, "sample_tokens": 0},
        "checkpoint": {"every_steps": 1000},
    }
    run = make_run(out, corpus, **sections, precision=precision)
    codes, errors = finish(start_training(run, 1, harm))
    assert codes == [0], errors
    losses = [line["loss"] for line in lines(run / "metrics.jsonl")]
    return [statistics.fmean(losses[max(0, i - WINDOW) : i]) for i in range(1, len(losses) + 1)]


def _difference(losses: list[float], plain: list[float]) -> float:
    return max(abs(a - b) / b for a, b in zip(losses, plain, strict=True))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> list[float]:
    losses = _losses(tmp_path_factory.mktemp("plain") / "run", corpus)
    assert losses[-1] < 0.7 * losses[0], "it learns"
    return losses


@pytest.mark.parametrize(
    "precision",
    [
        {"gemm_dtype": "mxfp8"},
        pytest.param({"gemm_dtype": "fp8"}, marks=pytest.mark.rest),
        pytest.param({"gemm_dtype": "mxfp8", "gemm_gradients": "e5m2"}, marks=pytest.mark.rest),
    ],
    ids=str,
)
def test_the_loss_is_that_of_fp32(tmp_path: Path, corpus: Path, plain: list[float], precision: dict[str, str]) -> None:
    losses = _losses(tmp_path / "run", corpus, **precision)
    assert losses != plain
    assert _difference(losses, plain) < BOUND


def scale_gradients_too_far() -> None:
    """Scales of E5M2 that are 2^40 too large: gradients fall below the smallest number, and are lost."""
    original = low_precision.to_scales_

    def to_scales_(ops: object, largest: torch.Tensor, element: str) -> None:
        original(ops, largest, element)  # type: ignore[arg-type]
        if element == "e5m2":
            largest.mul_(2.0**40)

    low_precision.to_scales_ = to_scales_  # type: ignore[assignment]


@pytest.mark.rest
def test_gradients_that_are_scaled_away_are_seen(tmp_path: Path, corpus: Path, plain: list[float]) -> None:
    precision = {"gemm_dtype": "mxfp8", "gemm_gradients": "e5m2"}
    losses = _losses(tmp_path / "run", corpus, scale_gradients_too_far, **precision)
    assert _difference(losses, plain) > 2 * BOUND
