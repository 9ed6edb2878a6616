"""The hand-written backward of every operator against finite differences in fp64."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fourfold.config import ModelConfig
from fourfold.model import torch_operations
from fourfold.model.embedding import EmbeddingParameters, embedding_backward, embedding_forward
from fourfold.model.environment import Environment, Saved
from fourfold.model.experts.parts import run_through
from fourfold.model.kinds.attention import GroupedAttention, output_backward, output_forward
from fourfold.model.kinds.kind import Pass
from fourfold.model.layer import Half, HalfSource, Layer, LayerParameters
from fourfold.model.layers import layers_of, ropes_of
from fourfold.model.norm import layer_norm, layer_norm_backward, rms_norm, rms_norm_backward
from fourfold.model.rope import rotate_, rotate_into
from fourfold.model.rope_tables import rope_tables
from fourfold.model.weights import Weight
from tests.support.differentiable import Backward, differentiable, differentiable_block, rebuilding
from tests.support.plain_model import PlainModel, random_tokens

STEP = 1e-6
MODEL = ModelConfig(1, 12, 4, 2, 6, 20, 31)
NORMED = ModelConfig(1, 12, 4, 2, 6, 20, 31, family="qwen3", qk_norm=True)
BIASED = ModelConfig(1, 12, 4, 2, 6, 20, 31, family="qwen2", qkv_bias=True)
GPT2 = ModelConfig(
    1, 12, 4, 4, 3, 20, 31, family="gpt2", norm="layer", activation="gelu", gated=False, linear_bias=True, qkv_bias=True,
    positions="learned", max_position=8,
)  # fmt: skip
PLAIN = ModelConfig(1, 12, 4, 2, 6, 20, 31, family="custom", gated=False)
LAYER = ModelConfig(1, 12, 4, 2, 6, 20, 31, family="layer", norm="layer")


def _random(*shape: int, seed: int = 1) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(0, 1, shape))


def _slope(function: Callable[[], Tensor], at: Tensor, direction: Tensor) -> float:
    """Central difference of a scalar function when `at` moves along `direction`."""
    at.add_(direction, alpha=STEP)
    above = function().item()
    at.sub_(direction, alpha=2 * STEP)
    below = function().item()
    at.add_(direction, alpha=STEP)
    return (above - below) / (2 * STEP)


def _check(forward: Callable[[Tensor], Tensor], x: Tensor, weights: dict[str, Weight]) -> None:
    """`forward(x)` is any tensor; a random projection of it is differentiated, by x and by every weight."""
    shape = forward(x).shape
    projection = _random(*shape, seed=5)

    def scalar() -> Tensor:
        with torch.no_grad():
            return (forward(x) * projection).sum()

    for weight in weights.values():
        weight.grad.zero_()
    leaf = x.clone().requires_grad_()
    (forward(leaf) * projection).sum().backward()
    assert leaf.grad is not None
    for seed in range(3):
        direction = _random(*x.shape, seed=10 + seed)
        expected = _slope(scalar, x, direction)
        assert (leaf.grad * direction).sum().item() == pytest.approx(expected, rel=1e-6, abs=1e-8)
    for name, weight in weights.items():
        direction = _random(*weight.data.shape, seed=20)
        expected = _slope(scalar, weight.data, direction)
        assert (weight.grad * direction).sum().item() == pytest.approx(expected, rel=1e-6, abs=1e-8), name
        assert weight.grad.abs().sum() > 0, name


def test_learned_positions() -> None:
    env, tables = Environment(torch_operations, GPT2), PlainModel(GPT2).weights["embed"]
    assert isinstance(tables, EmbeddingParameters)
    assert tables.positions is not None
    tokens, positions = torch.tensor([[3, 5, 3], [30, 0, 3]]), torch.tensor([[0, 1, 2], [0, 0, 7]])
    out = embedding_forward(env, tokens, tables, positions)
    expected = tables.tokens.data[tokens] + tables.positions.data[positions]
    torch.testing.assert_close(out, expected.flatten(0, 1))
    grad = _random(6, 12)
    embedding_backward(env, tokens, grad, tables, positions)
    for table, rows in ((tables.tokens, tokens), (tables.positions, positions)):
        chosen = torch.nn.functional.one_hot(rows.flatten(), len(table.data)).double()
        torch.testing.assert_close(table.grad, chosen.t() @ grad)


def _block(model: ModelConfig) -> tuple[Layer, LayerParameters[Weight]]:
    weights, layer = PlainModel(model).weights["b0"], layers_of(model)[0]
    assert isinstance(weights, LayerParameters)
    assert layer is not None
    return layer, weights


def _leaves(record: Any) -> dict[str, Weight]:
    """All weights of a record, by the names of its fields."""
    if isinstance(record, Weight):
        return {"": record}
    fields = vars(record) if record is not None else {}
    return {f"{name}.{rest}": weight for name, value in fields.items() for rest, weight in _leaves(value).items()}


def _tables(model: ModelConfig, length: int) -> tuple[Tensor, Tensor]:
    cos, sin = rope_tables(ropes_of(model)[0], length, torch.float64, torch.device("cpu"))
    return cos.unsqueeze(-2), sin.unsqueeze(-2)


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("model", [MODEL, NORMED, BIASED], ids=lambda m: m.family)
@pytest.mark.parametrize("output", ["q", "k", "v", "residual", "all"])
def test_query_key_value(model: ModelConfig, keep: bool, output: str) -> None:
    (layer, weights), plain = _block(model), PlainModel(model)
    env, batch, mixer = plain.env, plain.microbatch(*random_tokens(model, 2, 5)), layer.mixer
    assert isinstance(mixer, GroupedAttention)
    heads = (model.num_heads, model.num_kv_heads, model.num_kv_heads)
    used = {"norm": weights.mixer_norms.before.weight, "qkv": weights.mixer.qkv}  # type: ignore[union-attr]
    if weights.mixer.query_norm is not None:
        used |= {"q_norm": weights.mixer.query_norm, "k_norm": weights.mixer.key_norm}
    if weights.mixer.qkv_bias is not None:
        used["bias"] = weights.mixer.qkv_bias

    def run(x: Tensor) -> tuple[tuple[Tensor, ...], Backward]:
        half = Half.of(Pass(env, batch, rebuilding(keep)), "mixer", weights.mixer_norms, layer.norm)
        qkv = mixer.query_key_value(half.run, half.enter(x), weights.mixer)

        def backward(*grads: Tensor) -> tuple[Tensor]:
            source = HalfSource(half, x, grads[3])
            return (mixer.query_key_value_backward(half.run, [*grads[:3]], weights.mixer, source, []),)

        return (*(part.clone() for part in qkv.split(heads, -2)), x.clone()), backward

    def forward(x: Tensor) -> Tensor:
        q, k, v, residual = differentiable(run, x)
        parts = {"q": q, "k": k, "v": v, "residual": residual}
        chosen = parts.values() if output == "all" else [parts[output]]
        return torch.cat([part.reshape(-1) for part in chosen])

    if output == "residual":
        used = {}
    elif output == "v":
        used = {name: w for name, w in used.items() if name not in ("q_norm", "k_norm")}
    elif output in ("q", "k"):
        used.pop({"q": "k_norm", "k": "q_norm"}[output], None)
    _check(forward, _random(10, model.hidden_size), used)


@pytest.mark.parametrize("keep", [True, False])
def test_gated_feed_forward(keep: bool) -> None:
    (layer, weights), plain = _block(MODEL), PlainModel(MODEL)
    batch = plain.microbatch(*random_tokens(MODEL, 2, 5))

    def run(x: Tensor) -> tuple[Tensor, Backward]:
        given = Pass(plain.env, batch, rebuilding(keep))
        out = run_through(layer.feed(given, x, weights))
        return out, lambda grad: (run_through(layer.feed_backward(given, grad, weights)),)

    used = _leaves(weights.feed_forward) | _leaves(weights.feed_forward_norms.before)
    _check(lambda x: differentiable(run, x), _random(10, 12), used)


def test_output_residual() -> None:
    plain, output = PlainModel(MODEL), _block(MODEL)[1].mixer.output
    residual, attention = _random(10, 12, seed=3), _random(2, 5, 24)

    def run(attention: Tensor, residual: Tensor) -> tuple[Tensor, Backward]:
        given = Pass(plain.env, plain.microbatch(*random_tokens(MODEL, 2, 5)), Saved())
        out = output_forward(given, attention, output, residual)
        return out, lambda grad: (output_backward(given, grad, output).view_as(attention), grad)

    _check(lambda x: differentiable(run, x, residual), attention, {"output": output})
    _check(lambda x: differentiable(run, attention, x), residual, {"output": output})


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("documents", [None, [[2, 3], [4, 1]]], ids=["whole", "documents"])
@pytest.mark.parametrize("model", [MODEL, NORMED, BIASED, GPT2, PLAIN, LAYER], ids=lambda m: m.family)
def test_a_full_block(model: ModelConfig, documents: list[list[int]] | None, keep: bool) -> None:
    plain = PlainModel(model)
    weights = plain.weights["b0"]
    tokens, targets = random_tokens(model, 2, 5)
    batch = plain.microbatch(tokens, targets, documents)
    used, segment = _leaves(weights), plain.segments[1]
    _check(lambda x: differentiable_block(segment, plain.env, x, weights, batch, keep), _random(10, 12), used)


@pytest.mark.parametrize("width", [1, 2, 7, 64])
def test_rms_norm(width: int) -> None:
    weight = Weight(1 + 0.1 * _random(width, seed=2), torch.zeros(width, dtype=torch.float64))
    x, projection, direction = _random(6, width), _random(6, width, seed=4), _random(6, width, seed=8)

    def scalar() -> Tensor:
        return (rms_norm(torch_operations, x, weight.data, 1e-3)[0] * projection).sum()

    _, scale = rms_norm(torch_operations, x, weight.data, 1e-3)
    grad = rms_norm_backward(torch_operations, projection.clone(), x, scale, weight)
    assert (grad * direction).sum().item() == pytest.approx(_slope(scalar, x, direction), rel=1e-6, abs=1e-9)
    turn = _random(width, seed=9)
    assert (weight.grad * turn).sum().item() == pytest.approx(_slope(scalar, weight.data, turn), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_layer_norm_equals_torchs(dtype: torch.dtype) -> None:
    x, gain, shift, grad = (_random(*s, seed=i).to(dtype) for i, s in enumerate([(5, 33), (33,), (33,), (5, 33)]))
    weight, bias = (Weight(v, torch.zeros(33, dtype=torch.float64)) for v in (gain, shift))
    ours, statistics = layer_norm(torch_operations, x, gain, shift, 1e-3)
    grad_x = layer_norm_backward(torch_operations, grad, x, statistics, weight, bias)
    leaves = [t.double().requires_grad_() for t in (x, gain, shift)]
    out = torch.nn.functional.layer_norm(leaves[0], (33,), leaves[1], leaves[2], 1e-3)
    out.backward(grad.double())
    tolerance = {torch.float32: 1e-5, torch.float64: 1e-13, torch.bfloat16: 2e-2}[dtype]
    for mine, theirs in zip((ours, grad_x, weight.grad, bias.grad), (out, *(t.grad for t in leaves)), strict=True):
        assert theirs is not None
        torch.testing.assert_close(mine.double(), theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_rms_norm_equals_torchs(dtype: torch.dtype) -> None:
    x, weight = _random(5, 33).to(dtype), (1 + 0.1 * _random(33, seed=2)).to(dtype)
    expected = torch.nn.functional.rms_norm(x, (33,), weight, 1e-5)
    tolerance = {torch.float32: 1e-6, torch.float64: 1e-14, torch.bfloat16: 1e-2}[dtype]
    torch.testing.assert_close(rms_norm(torch_operations, x, weight, 1e-5)[0], expected, rtol=tolerance, atol=tolerance)


def test_rotation_keeps_lengths_and_its_inverse_undoes_it() -> None:
    x = _random(2, 9, 3, 6)
    cos, sin = _tables(MODEL, 9)
    turned = x.clone()
    rotate_(torch_operations, turned, cos, sin)
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1), rtol=1e-6, atol=0)
    assert not torch.allclose(turned, x)
    rotate_(torch_operations, turned, cos, sin, inverse=True)
    torch.testing.assert_close(turned, x, rtol=1e-6, atol=1e-7)  # the angles' cos and sin are rounded to fp32


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_rotation_into_another_array_has_the_bits_of_one_in_place(dtype: torch.dtype, inverse: bool) -> None:
    """Also from heads that lie before tokens, as kernels of attention give gradients, into a part of q | k | v."""
    x, joined = _random(2, 3, 9, 6).to(dtype).transpose(1, 2), torch.full((2, 9, 5, 6), 7.0, dtype=dtype)
    cos, sin = (table.to(dtype) for table in _tables(MODEL, 9))
    expected, before = x.clone(), x.clone()
    rotate_(torch_operations, expected, cos, sin, inverse=inverse)
    rotate_into(torch_operations, x, joined[..., 1:4, :], cos, sin, inverse)
    assert torch.equal(joined[..., 1:4, :], expected)
    assert torch.equal(x, before)
    assert (joined[..., [0, 4], :] == 7).all()


def test_rotated_scores_depend_on_the_distance_alone() -> None:
    """<R_m q, R_n k> is a function of m - n (Su et al. 2021, equation 11)."""
    q, k = _random(1, 1, 1, 6).expand(1, 20, 1, 6).clone(), _random(1, 1, 1, 6, seed=2).expand(1, 20, 1, 6).clone()
    cos, sin = _tables(MODEL, 20)
    rotate_(torch_operations, q, cos, sin)
    rotate_(torch_operations, k, cos, sin)
    scores = torch.einsum("bihd,bjhd->ij", q, k)
    for distance in range(-10, 10):
        line = scores.diagonal(distance)
        torch.testing.assert_close(line, line[:1].expand_as(line), rtol=1e-5, atol=1e-5)
    assert scores.std() > 0.1
