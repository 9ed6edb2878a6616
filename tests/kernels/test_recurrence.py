"""Back ends of the gated delta rule: the formulas hold their own check, and the package is called right."""

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from fourfold.kernels import recurrence
from fourfold.kernels.backend import Backend
from fourfold.kernels.recurrence import BACKENDS, KIND, PackageRecurrence, RecurrenceCase
from tests.model.test_delta import by_tokens

CPU = torch.device("cpu")
CASE = RecurrenceCase(2, 70, 2, 4, 8, 6, torch.float32, CPU)


def rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, b: Tensor, scale: float, **options: Any) -> tuple[Tensor, None]:
    """flash-linear-attention's function, token by token."""
    assert q.shape[2] == k.shape[2] == v.shape[2]
    begin = torch.zeros(len(q), q.shape[2], q.shape[3], v.shape[3], dtype=q.dtype)
    return by_tokens(q * scale, k, v, g, b, begin, None)[0], None


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("fla.ops.gated_delta_rule")
    module.chunk_gated_delta_rule = rule  # type: ignore[attr-defined]
    for name in ("fla", "fla.ops"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "fla.ops.gated_delta_rule", module)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_formulas_pass_their_check(dtype: torch.dtype) -> None:
    case = RecurrenceCase(2, 70, 2, 4, 8, 6, dtype, CPU)
    assert KIND.examine(BACKENDS["formula"], case) is None


@pytest.mark.usefixtures("package")
def test_the_package_is_given_heads_scale_and_documents() -> None:
    backend: Backend[RecurrenceCase] = Backend("fla", {"recurrence": PackageRecurrence()})
    assert KIND.examine(backend, CASE) is None


@pytest.mark.usefixtures("package")
def test_a_rule_that_remembers_the_document_before_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recurrence, "FORGOTTEN", 0.0)
    backend: Backend[RecurrenceCase] = Backend("fla", {"recurrence": PackageRecurrence()})
    assert "is off by" in (KIND.examine(backend, CASE) or "")


def test_a_processor_has_the_formulas_alone() -> None:
    assert KIND.examine(BACKENDS["fla"], CASE) == "it runs on CUDA"
