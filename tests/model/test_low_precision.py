"""Rounding to MXFP8, against a slow reference; gradients of a linear layer; what is recorded is what is executed."""

import math
from dataclasses import replace
from itertools import product

import pytest
import torch

from fourfold.config.schema import GemmRecipeName
from fourfold.model import torch_operations as ops
from fourfold.model.footprint import Shape
from fourfold.model.low_precision import GemmRecipe, LowPrecisionGemms, rounded
from fourfold.model.recorded_rank import RecordedRank
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


@pytest.mark.parametrize("element", FORMATS)
def test_what_is_next_to_a_tie_is_rounded_once(element: str) -> None:
    """A number that fp32 does not tell from a tie lies on one side of it all the same."""
    codes = torch.tensor(_codes(element), dtype=torch.float64)
    ties = (codes[1:] + codes[:-1])[:96].view(-1, 32) / 2
    near = torch.cat([ties * (1 + sign * 2.0**-places) for sign in (1, -1) for places in (25, 30, 52)])
    x = torch.cat([near, -near])
    x[:, 0] = codes[-1]
    expected = torch.tensor([_reference(row, element) for row in x.tolist()], dtype=torch.float64)
    assert torch.equal(rounded(ops, x, element), expected)


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


@pytest.mark.parametrize("recipe", ["fp8", "fp8-block"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_operands_are_torchs_own_casts(recipe: GemmRecipeName, dtype: torch.dtype) -> None:
    """Each side of each matmul, bit for bit: torch's cast of the numbers over the scale of their tile, a power of two, found
    here number by number."""
    torch.manual_seed(5)
    sizes = {"grad": (256, 128), "x": (256, 384), "weight": (128, 384)}
    grad, x, weight = (
        (torch.randn(*size) * 2.0 ** torch.randint(-9, 9, (size[0], 1))).to(dtype) for size in sizes.values()
    )
    seen: list[torch.Tensor] = []
    gemms = LowPrecisionGemms(_Watching(seen), GemmRecipe(recipe, "e5m2"))  # type: ignore[arg-type]
    gemms.linear(x, weight)
    gemms.matmul(grad, weight)
    gemms.accumulate(torch.empty(128, 384), grad, x, fresh=True)
    tile, square = ((1, 128), (128, 128)) if recipe == "fp8-block" else (None, None)
    expected = [
        _cast(x, "e4m3", tile),
        _cast(weight, "e4m3", square),
        _cast(grad, "e5m2", tile),
        _cast(weight.t(), "e4m3", square),
        _cast(grad.t(), "e5m2", tile).t(),
        _cast(x.t(), "e4m3", tile).t(),
    ]
    for found, wanted in zip(seen, expected, strict=True):
        assert torch.equal(found, wanted)


class _Watching:
    """torch's operations, with the operands of every matmul noted."""

    def __init__(self, seen: list[torch.Tensor]) -> None:
        self._seen = seen

    def __getattr__(self, name: str) -> object:
        return getattr(ops, name)

    def linear(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        self._seen += [x.clone(), weight.clone()]
        return ops.linear(x, weight)

    def accumulate(self, grad: torch.Tensor, left: torch.Tensor, right: torch.Tensor, fresh: bool) -> None:
        self._seen += [left.clone(), right.clone()]
        ops.accumulate(grad, left, right, fresh)


def _cast(x: torch.Tensor, element: str, tile: tuple[int, int] | None) -> torch.Tensor:
    _, _, largest, dtype = FORMATS[element]
    (rows, columns), out = tile or x.shape, torch.empty(x.shape)
    for i, j in product(range(0, x.shape[0], rows), range(0, x.shape[1], columns)):
        part = x[i : i + rows, j : j + columns].double()
        scale = 2.0 ** math.ceil(math.log2(float(part.abs().max()) / largest))
        out[i : i + rows, j : j + columns] = ((part / scale).to(dtype).double() * scale).float()
    return out


def test_one_scale_is_what_torchs_scaled_matmul_takes() -> None:
    """The emulated matmul against `torch._scaled_mm` on the same 8-bit operands."""
    torch.manual_seed(6)
    x, weight = torch.randn(64, 48), torch.randn(32, 48)
    operands, scales = [], []
    for each in (x, weight):
        scale = 2.0 ** math.ceil(math.log2(float(each.abs().max()) / 448.0))
        operands.append((each / scale).to(torch.float8_e4m3fn))
        scales.append(torch.tensor(scale))
    wanted = torch._scaled_mm(operands[0], operands[1].t(), *scales, out_dtype=torch.float32)
    found = LowPrecisionGemms(ops, GemmRecipe("fp8")).linear(x, weight)
    assert torch.allclose(found, wanted, rtol=1e-5, atol=1e-5)


MODELS = {
    "dense": replace(BASE, num_heads=8, num_kv_heads=4, head_dim=32, ffn_size=128),
    "wide": replace(BASE, hidden_size=128, num_heads=4, num_kv_heads=4, head_dim=64, ffn_size=256),
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


CASES: list[tuple[str, str, GemmRecipeName]] = [
    *((n, s, "mxfp8") for n, s in product(("dense", "moe, shared"), WAYS) if n != "dense" or s != "ep"),
    *(("wide", split, "fp8-block") for split in WAYS if split != "ep"),
    *(("dense", split, "fp8") for split in WAYS if split != "ep"),
    ("moe, shared", "tp+sequence", "fp8"),
]


@pytest.mark.grid(1)
@pytest.mark.parametrize(("name", "split", "recipe"), CASES)
def test_what_is_recorded_is_what_is_executed(name: str, split: str, recipe: GemmRecipeName) -> None:
    """Laws of the compute format: FLOPs and collectives are equal, bytes and launches within their bounds."""
    model, off = MODELS[name], []
    for compute in ("fp32", "bf16"):
        length = 1024 if recipe == "fp8-block" else 256
        shape = Shape(2, length, compute, "fp32", False, recipe=GemmRecipe(recipe), **SPLITS[split])  # type: ignore[arg-type]
        for segment in build_segments(model):
            off += [str(row) for row in _differences(model, shape, "none", segment, 0) if _is_off(row)]
    assert not off, "\n".join(["", *off])


def test_quantization_stands_on_the_instruction() -> None:
    """Two operands of each of the 12 matmuls of a block's linear layers; the head has none."""
    model, recipe = MODELS["dense"], GemmRecipe("mxfp8")
    shape = Shape(2, 64, "fp32", "fp32", False, recipe=recipe)
    _, block, head = build_segments(model)
    found = RecordedRank(block, model, shape).footprint("none")
    items = (*found.forward.items, *found.backward.items)
    assert sum(isinstance(item, Elementwise) and item.part == "quantized" for item in items) == 24
    none = RecordedRank(head, model, shape).footprint("none")
    assert not [item for item in none.backward.items if isinstance(item, Elementwise) and item.part == "quantized"]
