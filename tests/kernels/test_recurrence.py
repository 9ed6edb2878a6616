"""Back ends of the gated delta rule: the formulas hold their own check, the package is called right, and layers call either."""

import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from fourfold.config import ModelConfig
from fourfold.kernels import recurrence
from fourfold.kernels.backend import Backend
from fourfold.kernels.recurrence import BACKENDS, KIND, FormulaRecurrence, PackageRecurrence, RecurrenceCase
from fourfold.model import torch_operations
from fourfold.model.environment import Environment
from fourfold.model.footprint import Shape, segment_footprint
from fourfold.model.operations import with_operations
from fourfold.model.spec import build_segments
from tests.model.test_delta import by_tokens
from tests.support.plain_model import PlainModel, random_tokens

CPU = torch.device("cpu")
CASE = RecurrenceCase(2, 70, 2, 4, 8, 6, torch.float32, CPU)


def rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, b: Tensor, scale: float, **options: Any) -> tuple[Tensor, None]:
    """flash-linear-attention's function, token by token."""
    assert q.shape[2] == k.shape[2] == v.shape[2]
    begin = torch.zeros(len(q), q.shape[2], q.shape[3], v.shape[3], dtype=q.dtype)
    return by_tokens(q * scale, k, v, g, b, begin, None)[0], None


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two functions, each of which takes decays of one shape."""

    def of_heads(q: Tensor, k: Tensor, v: Tensor, g: Tensor, *given: Tensor, **options: Any) -> tuple[Tensor, None]:
        assert g.shape == v.shape[:3]
        return rule(q, k, v, g, *given, **options)

    def of_channels(q: Tensor, k: Tensor, v: Tensor, g: Tensor, *given: Tensor, **options: Any) -> tuple[Tensor, None]:
        assert g.shape == k.shape
        return rule(q, k, v, g, *given, **options)

    for name in ("fla", "fla.ops"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    for name, found in (("gated_delta_rule.chunk_gated_delta_rule", of_heads), ("kda.chunk_kda", of_channels)):
        folder, _, function = name.partition(".")
        module = ModuleType(f"fla.ops.{folder}")
        setattr(module, function, found)
        monkeypatch.setitem(sys.modules, module.__name__, module)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("by_channel", [False, True], ids=["heads", "channels"])
def test_the_formulas_pass_their_check(dtype: torch.dtype, by_channel: bool) -> None:
    case = RecurrenceCase(2, 70, 2, 4, 8, 6, dtype, CPU, (by_channel,))
    assert KIND.examine(BACKENDS["formula"], case) is None


RULES = pytest.mark.parametrize(
    "by_channel", [(False,), (True,), (False, True)], ids=["heads", "channels", "some of each"]
)


@RULES
@pytest.mark.usefixtures("package")
def test_the_package_is_given_heads_scale_and_documents(by_channel: tuple[bool, ...]) -> None:
    backend: Backend[RecurrenceCase] = Backend("fla", {"recurrence": PackageRecurrence()})
    assert KIND.examine(backend, replace(CASE, by_channel=by_channel)) is None


@RULES
@pytest.mark.usefixtures("package")
def test_a_rule_that_remembers_the_document_before_is_found(
    monkeypatch: pytest.MonkeyPatch, by_channel: tuple[bool, ...]
) -> None:
    monkeypatch.setattr(recurrence, "FORGOTTEN", 0.0)
    backend: Backend[RecurrenceCase] = Backend("fla", {"recurrence": PackageRecurrence()})
    assert "is off by" in (KIND.examine(backend, replace(CASE, by_channel=by_channel)) or "")


def test_a_processor_has_the_formulas_alone() -> None:
    assert KIND.examine(BACKENDS["fla"], CASE) == "it runs on CUDA"


MODEL = ModelConfig(
    2, 24, 4, 2, 6, 40, 64, mixer="gated_delta", delta_key_heads=2, delta_value_heads=4, delta_key_dim=8, delta_value_dim=16
)  # fmt: skip


BY_CHANNEL = replace(MODEL, mixer="kimi_delta", delta_key_heads=4, delta_key_dim=16)
"""Two layers with a rule of heads, or of channels."""
MODELS = pytest.mark.parametrize("model", [MODEL, BY_CHANNEL], ids=["heads", "channels"])


@MODELS
@pytest.mark.parametrize("documents", [None, [[5, 15], [1, 19]]], ids=["rows", "documents"])
def test_layers_compute_the_same_by_kernels(documents: list[list[int]] | None, model: ModelConfig) -> None:
    plain = PlainModel(model)
    batch = plain.microbatch(*random_tokens(model, 2, 20), documents)
    loss = plain.loss_and_gradients(batch, 13)
    expected = {name: grad.clone() for name, grad in plain.gradients().items()}
    plain.zero_gradients()
    plain.env = Environment(with_operations(torch_operations, {"recurrence": FormulaRecurrence()}), model)
    torch.testing.assert_close(plain.loss_and_gradients(batch, 13), loss, rtol=1e-12, atol=1e-12)
    for name, grad in plain.gradients().items():
        torch.testing.assert_close(grad, expected[name], rtol=1e-10, atol=1e-12)


@MODELS
def test_a_device_is_priced_with_kernels(model: ModelConfig) -> None:
    """The matmuls of the package's kernels are about those of the formulas; copies in fp32 between them are gone."""
    model = replace(model, delta_key_dim=128, delta_value_dim=128)
    block = build_segments(model)[1]
    processor, device = (
        segment_footprint(block, model, Shape(2, 256, "bf16", "fp32", True, exchange=exchange), "none")
        for exchange in (True, False)
    )
    for formulas, kernels in ((processor.forward, device.forward), (processor.backward, device.backward)):
        assert kernels.flops == pytest.approx(formulas.flops, rel=0.25)
        assert kernels.elementwise_bytes < 0.7 * formulas.elementwise_bytes
    assert device.saved_bytes == processor.saved_bytes
    assert device.backward_workspace_bytes < processor.backward_workspace_bytes
