"""A back end is tried on the shape that it is to compute: one that is right up to some size, and wrong above it, is not taken."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fourfold.kernels import check, loss, norm, pointwise
from fourfold.kernels.attention import kind as attention
from fourfold.kernels.attention.kind import TILED, AttentionCase
from fourfold.kernels.backend import Backend
from fourfold.kernels.loss import LossCase
from fourfold.kernels.matmul import libraries as matmuls
from fourfold.kernels.norm import FormulaNorms, NormCase
from fourfold.kernels.pointwise import PointwiseCase
from fourfold.model import torch_onednn
from fourfold.model.work import Gemm
from tests.rehearse.layouts import sections
from tests.rehearse.rehearsed import sections_spec
from tests.support.backends import norms_with, with_members
from tests.support.fused_operations import PlainLoss, PlainPointwise

CPU = torch.device("cpu")
MODEL = sections_spec(1, sections({}))[0].model
ATTENTION = AttentionCase(1, 48, 2, 1, 8, 8, torch.float32, CPU)
LAST = -1


@pytest.fixture(autouse=True)
def small_ones_are_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "CHECKED_TOKENS", 32)
    monkeypatch.setattr(check, "CHECKED_BLOCK", 256)


def spoils(function: Callable[..., Any], above: int, which: int | None = None) -> Callable[..., Any]:
    """The function, whose result (or the part `which`) is wrong in its last row where a tensor has more rows than `above`."""

    def wrong(*given: Any, **more: Any) -> Any:
        found = function(*given, **more)
        rows = max(x.shape[0] if x.dim() < 4 else x.shape[1] for x in given if isinstance(x, Tensor) and x.dim() > 1)
        if rows > above:
            part = (found if which is None else found[which]) if found is not None else given[0]
            (part[:, LAST] if part.dim() == 4 else part[LAST]).add_(1.0)
        return found

    return wrong


def fault_of_attention(above: int, member: str, which: int, **case: Any) -> str | None:
    own = {member: spoils(getattr(TILED.operations, member), above, which)}
    return attention.KIND.examine(with_members(TILED, "own", **own), replace(ATTENTION, **case))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("member", "which"), [("attend", 0), ("attend_backward", 0), ("attend_backward", 2)])
def test_attention(member: str, which: int, dtype: torch.dtype) -> None:
    assert fault_of_attention(10**6, member, which, dtype=dtype) is None
    found = fault_of_attention(40, member, which, dtype=dtype)
    assert found is not None
    assert "with causal rows of 48 tokens" in found
    assert fault_of_attention(40, member, which, dtype=dtype, queries=32) is None


def test_attention_of_documents_and_of_other_heads() -> None:
    assert fault_of_attention(10**6, "attend", 0, documents=True, rectangles=True, batch=2, heads=6, kv_heads=3) is None


def test_norms() -> None:
    case = NormCase(700, 16, torch.float32, CPU, 1e-5)
    assert norm.KIND.examine(norm.FORMULA, case) is None
    for member, which in (("forward", 0), ("backward", 0)):
        wrong = norms_with(**{member: spoils(getattr(FormulaNorms, member), 600, which)})
        assert "off by" in str(norm.KIND.examine(wrong, case)) or "other bits" in str(norm.KIND.examine(wrong, case))
        assert norm.KIND.examine(wrong, replace(case, rows=600)) is None


class LargeLoss(PlainLoss):
    """Wrong on chunks of more than 200 tokens."""

    @staticmethod
    def gradient_(logits: Tensor, *rest: Any) -> None:
        PlainLoss.gradient_(logits, *rest)
        if len(logits) > 200:
            logits[LAST] *= 1.5


def test_cross_entropy() -> None:
    backend = Backend[LossCase]("own", {"losses": LargeLoss()})
    case = LossCase(300, 70, torch.float32, CPU, MODEL)
    assert "its gradient is off" in str(loss.KIND.examine(backend, case))
    assert loss.KIND.examine(backend, replace(case, rows=200)) is None
    assert loss.KIND.examine(loss.FORMULA, case) is None


class LargePointwise(PlainPointwise):
    """The formulas; a rotation of more than 600 tokens is wrong."""

    def rotate_(self, x: Tensor, *rest: Any) -> None:
        super().rotate_(x, *rest)
        if x.shape[1] > 600:
            x[:, LAST] *= 1.5


class LargeWeights(PlainPointwise):
    """The formulas; a weight's gradient beyond 600 rows is wrong."""

    def weighted_backward_(self, grad: Tensor, gate_up: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        out, grad_weights = super().weighted_backward_(grad, gate_up, weights)
        if len(weights) > 600:
            grad_weights[LAST] *= 1.5
        return out, grad_weights


def test_weights_of_rows() -> None:
    backend = Backend[PointwiseCase]("own", {"pointwise": LargeWeights()})
    case = PointwiseCase(700, 8, 2, 8, torch.float32, CPU)
    assert "its gradient of the weights of rows is off" in str(pointwise.KIND.examine(backend, case))
    assert pointwise.KIND.examine(backend, replace(case, rows=600)) is None


def test_swiglu_and_rotation() -> None:
    backend = Backend[PointwiseCase]("own", {"pointwise": LargePointwise()})
    case = PointwiseCase(700, 8, 2, 8, torch.float32, CPU)
    assert "its rotary embedding is off" in str(pointwise.KIND.examine(backend, case))
    assert pointwise.KIND.examine(backend, replace(case, rows=600)) is None
    assert pointwise.KIND.examine(pointwise.FORMULA, case) is None


@pytest.mark.parametrize("kind", matmuls.KINDS)
def test_matmuls(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Matmuls are tried in a run's own widths: oneDNN here is wrong where a layer writes 700 features."""
    linear = torch_onednn.linear
    monkeypatch.setattr(torch_onednn, "linear", lambda x, w, *bias: linear(x, w, *bias) * (1 + (len(w) == 700)))
    gemms = {
        matmuls.FORWARD: Gemm(4096, 700, 96),
        matmuls.INPUT_GRADIENT: Gemm(4096, 96, 700),
        matmuls.WEIGHT_GRADIENT: Gemm(700, 96, 4096, accumulates=True),
    }
    counts = {each: matmuls.Counter[Gemm]({gemms[each]: 3} if each == kind else {}) for each in matmuls.KINDS}
    if not torch_onednn.is_available():
        pytest.skip("this build of PyTorch has no oneDNN")
    assert matmuls.problem_of_onednn() is None
    assert "its forward matmul is off" in str(matmuls.problem_of_shapes(counts))
