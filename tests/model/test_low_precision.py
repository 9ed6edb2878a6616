"""Rounding to MXFP8, against a slow reference; gradients of a linear layer; what is recorded is what is executed."""

import math
from dataclasses import replace
from itertools import product

import pytest
import torch

from fourfold.model import torch_operations as ops
from fourfold.model.footprint import Shape
from fourfold.model.ghost_rank import GhostRank
from fourfold.model.low_precision import GemmRecipe, LowPrecisionGemms, rounded
from fourfold.model.spec import build_segments
from fourfold.model.work import Elementwise
from tests.model.test_executed_kernels import BASE, DEEPSEEK, SPLITS, _differences, _is_off

FORMATS = {"e4m3": (3, -6, 448.0, torch.float8_e4m3fn), "e5m2": (2, -14, 57344.0, torch.float8_e5m2)}
"""(mantissa bits, smallest normal exponent, largest number, torch's format)."""


def _codes(element: str) -> list[float]:
    """Every finite number of the format, from its bits."""
    mantissa, least, largest, _ = FORMATS[element]
    steps = 2**mantissa
    values = {0.0} | {m / steps * 2.0**least for m in range(steps)}
    exponent = least
    while 2.0**exponent <= largest:
        values |= {(1 + m / steps) * 2.0**exponent for m in range(steps)}
        exponent += 1
    found = sorted(value for value in values if value <= largest)
    return found


def _nearest(value: float, codes: list[float]) -> float:
    """Ties go to the code of even index, whose last bit is 0."""
    size = abs(value)
    best = min(range(len(codes)), key=lambda i: (abs(codes[i] - size), i % 2))
    return math.copysign(codes[best], value)


def _reference(block: list[float], element: str) -> list[float]:
    codes = _codes(element)
    largest = max(map(abs, block))
    scale = 2.0**-126
    while largest > codes[-1] * scale:
        scale *= 2
    return [_nearest(value / scale, codes) * scale for value in block]


@pytest.mark.parametrize("element", FORMATS)
def test_every_code_is_kept(element: str) -> None:
    """All finite codes of 256, at a scale of one."""
    _, _, largest, dtype = FORMATS[element]
    codes = torch.arange(256, dtype=torch.uint8).view(dtype).float()
    finite = codes[codes.isfinite()]
    assert sorted(set(finite.abs().tolist())) == _codes(element)
    rows = torch.zeros(len(finite), 32)
    rows[:, 0], rows[:, 1] = finite, largest
    assert torch.equal(rounded(ops, rows, element)[:, 0], finite)


@pytest.mark.parametrize(("element", "dtype"), [*product(FORMATS, (torch.float32, torch.float64, torch.bfloat16))])
def test_rounding_is_that_of_a_slow_reference(element: str, dtype: torch.dtype) -> None:
    """Random numbers over many magnitudes, ties between neighbours, subnormals, and blocks whose largest is just above a code."""
    torch.manual_seed(3)
    codes = torch.tensor(_codes(element), dtype=torch.float64)
    ties = ((codes[1:] + codes[:-1]) / 2)[:96].reshape(-1, 32) if len(codes) > 96 else codes[:32][None]
    random = torch.randn(24, 32, dtype=torch.float64) * 2.0 ** torch.randint(-30, 30, (24, 1))
    spread = torch.randn(8, 32, dtype=torch.float64) * 2.0 ** torch.randint(-20, 1, (8, 32))
    ties = torch.cat([ties, torch.full((len(ties), 1), 1.0, dtype=torch.float64)], 1)[:, :32].clone()
    ties[:, 0] = codes[-1]
    edge = torch.full((3, 32), 0.3, dtype=torch.float64)
    edge[0, 0], edge[1, 0], edge[2, 0] = 1.75, 1.75 + 2**-20, 0.0
    x = torch.cat([random, spread, ties, edge]).to(dtype)
    expected = torch.tensor([_reference(row, element) for row in x.double().tolist()], dtype=torch.float64)
    assert torch.equal(rounded(ops, x, element).double(), expected)


def test_zeros_stay_and_what_is_not_finite_shows() -> None:
    assert torch.equal(rounded(ops, torch.zeros(2, 64), "e4m3"), torch.zeros(2, 64))
    for value in (float("nan"), float("inf"), -float("inf")):
        x = torch.ones(1, 64)
        x[0, 3] = value
        assert not rounded(ops, x, "e4m3")[0, 3].isfinite()
        assert torch.equal(rounded(ops, x, "e4m3")[0, 32:], torch.ones(32)), "another block"


class _Rounded(torch.autograd.Function):
    """A linear layer by autograd, each operand of each matmul rounded along the dim that is summed over."""

    @staticmethod
    def forward(ctx: object, x: torch.Tensor, w: torch.Tensor, element: str) -> torch.Tensor:
        ctx.save_for_backward(x, w)  # type: ignore[attr-defined]
        ctx.element = element  # type: ignore[attr-defined]
        return _slow(x, "e4m3") @ _slow(w, "e4m3").t()

    @staticmethod
    def backward(ctx: object, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:  # type: ignore[override]
        (x, w), element = ctx.saved_tensors, ctx.element  # type: ignore[attr-defined]
        d_x = _slow(grad, element) @ _slow(w.t(), "e4m3").t()
        return d_x, _slow(grad.t(), element) @ _slow(x.t(), "e4m3").t(), None


def _slow(x: torch.Tensor, element: str) -> torch.Tensor:
    blocks = x.reshape(-1, 32).tolist()
    return torch.tensor([_reference(row, element) for row in blocks], dtype=x.dtype).view(x.shape)


@pytest.mark.parametrize("element", FORMATS)
def test_gradients_are_those_of_autograd(element: str) -> None:
    torch.manual_seed(4)
    x, w, upstream = (torch.randn(*size, dtype=torch.float64) for size in ((64, 32), (96, 32), (64, 96)))
    x.requires_grad_()
    w.requires_grad_()
    out = _Rounded.apply(x, w, element)
    out.backward(upstream)
    gemms = LowPrecisionGemms(ops, GemmRecipe("mxfp8", element))
    grad = torch.ones_like(w)
    with torch.no_grad():
        assert torch.allclose(gemms.linear(x, w), out, rtol=1e-12)
        assert torch.allclose(gemms.matmul(upstream, w), x.grad, rtol=1e-10, atol=1e-12)
        gemms.accumulate(grad, upstream, x, fresh=False)
        assert torch.allclose(grad - 1, w.grad, rtol=1e-10, atol=1e-12)


MODELS = {
    "dense": replace(BASE, num_heads=8, num_kv_heads=4, head_dim=32, ffn_size=128),
    "moe, shared": replace(
        DEEPSEEK,
        head_dim=64,
        query_rank=32,
        key_value_rank=32,
        rope_head_dim=32,
        nope_head_dim=32,
        value_head_dim=32,
        moe_ffn_size=64,
    ),
}
WAYS = ("one rank", "tp", "tp+sequence", "ring", "ulysses", "ep")


@pytest.mark.parametrize(("name", "split"), [(n, s) for n, s in product(MODELS, WAYS) if n != "dense" or s != "ep"])
def test_what_is_recorded_is_what_is_executed(name: str, split: str) -> None:
    """As for the compute format: FLOPs and collectives are equal, bytes and launches within their bounds."""
    model, off = MODELS[name], []
    for compute in ("fp32", "bf16"):
        shape = Shape(2, 256, compute, "fp32", False, recipe=GemmRecipe("mxfp8"), **SPLITS[split])  # type: ignore[arg-type]
        for segment in build_segments(model):
            off += [str(row) for row in _differences(model, shape, "none", segment, 0) if _is_off(row)]
    assert not off, "\n".join(["", *off])


def test_quantization_stands_on_the_instruction() -> None:
    """Two operands of each of the 12 matmuls of a block's linear layers; the head has none."""
    model, recipe = MODELS["dense"], GemmRecipe("mxfp8")
    shape = Shape(2, 64, "fp32", "fp32", False, recipe=recipe)
    _, block, head = build_segments(model)
    found = GhostRank(block, model, shape).footprint("none")
    items = (*found.forward.items, *found.backward.items)
    assert sum(isinstance(item, Elementwise) and item.part == "quantized" for item in items) == 24
    none = GhostRank(head, model, shape).footprint("none")
    assert not [item for item in none.backward.items if isinstance(item, Elementwise) and item.part == "quantized"]
