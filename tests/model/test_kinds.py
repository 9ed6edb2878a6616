"""Every kind of layer: its gradients are those of finite differences, and split over ranks it gives what it gives on one.

A new kind gets its tests by being listed in `LAYERS`."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fourfold.config import ModelConfig
from fourfold.model.environment import Microbatch
from fourfold.model.kinds.attention import GroupedAttention
from fourfold.model.kinds.feed_forward import GatedFeedForward, PlainFeedForward
from fourfold.model.kinds.gated_delta import GatedDelta, SeparateGatedDelta
from fourfold.model.kinds.kimi_delta import KimiDelta
from fourfold.model.kinds.query_key_norm import QueryKeyNorm
from fourfold.model.kinds.short_convolution import ShortConvolution
from fourfold.model.layer import Layer
from fourfold.model.norm import Norm
from fourfold.model.parallel import ContextParallel, Parallel
from fourfold.model.rope import Rope, Temperature
from fourfold.model.swiglu import ClampedSwiGLU
from fourfold.runtime.collectives import AxisGroup, make_groups
from tests.support.differentiable import differentiable_block
from tests.support.plain_model import PlainModel, random_tokens
from tests.support.ranks import run_on_ranks
from tests.support.split_model import (
    LINKS,
    CountingGroup,
    SplitModel,
    relative_error,
    run_segments,
    split_layout,
    take_box,
)

MODEL = ModelConfig(2, 24, 8, 4, 6, 40, 64)
ROPE = Rope(6)
ATTENTION = GroupedAttention(8, 4, 6, rope=ROPE)
BASE = Layer(ATTENTION, GatedFeedForward(40), Norm())
ONE_PLUS = Norm(gain_is_one_plus=True)
CLAMPED = ClampedSwiGLU(1.702, 0.5)


def layer(**mixer: Any) -> Layer:
    return replace(BASE, mixer=replace(ATTENTION, **mixer))


LAYERS: dict[str, Layer] = {
    "pre": BASE,
    "post": replace(BASE, placement="post"),
    "sandwich": replace(BASE, placement="sandwich", norm=ONE_PLUS),
    "layer norms after": replace(BASE, placement="post", norm=Norm("layer"), feed_forward=PlainFeedForward(40)),
    "no positions": layer(rope=None),
    "a part of heads turned": layer(rope=Rope(4)),
    "a window": layer(window=5),
    "a window of two": layer(window=2),
    "chunks": layer(chunk=3),
    "a scale of its own": layer(scale=0.3),
    "gated by GELU": replace(BASE, feed_forward=GatedFeedForward(40, activation="gelu")),
    "gated and clamped": replace(BASE, feed_forward=GatedFeedForward(40, activation=CLAMPED)),
    "exact GELU": replace(BASE, feed_forward=PlainFeedForward(40, activation="gelu_exact", bias=True)),
    "sinks": layer(sinks=True),
    "sinks and a window": layer(sinks=True, window=3),
    "capped scores": layer(softcap=0.2),
    "capped scores, sinks and a window": layer(softcap=0.2, sinks=True, window=3),
    "neighbours turned": layer(rope=Rope(6, interleave=True)),
    "norms without weights behind the rotation": layer(qk_norm=QueryKeyNorm(Norm(), weights=False), qkv_bias=True),
    "a temperature": layer(rope=None, temperature=Temperature(0.5, 3), scale=0.3),
    "rotation, norms and a temperature": layer(
        rope=Rope(4, interleave=True),
        qk_norm=QueryKeyNorm(Norm(), weights=False),
        temperature=Temperature(0.5, 2),
        chunk=5,
    ),
    "norms of heads": layer(qk_norm=QueryKeyNorm(Norm())),
    "gains of one plus w": layer(qk_norm=QueryKeyNorm(ONE_PLUS)),
    "sinks and norms of all heads beside biases": layer(
        sinks=True, qk_norm=QueryKeyNorm(Norm(), "all"), qkv_bias=True, output_bias=True
    ),
    "norms of all heads": layer(qk_norm=QueryKeyNorm(Norm(), "all")),
    "a gated output": layer(output_gate=True, qk_norm=QueryKeyNorm(ONE_PLUS), rope=Rope(4)),
    "gated delta rule": replace(BASE, mixer=GatedDelta(8, 16, 6, 4, 4)),
    "gated delta rule of separate projections": replace(BASE, mixer=SeparateGatedDelta(8, 16, 6, 4, 4)),
    "delta rule with negative eigenvalues": replace(
        BASE, mixer=SeparateGatedDelta(8, 8, 3, 5, 3, strongest=2.0, step_bias="log_uniform")
    ),
    "Kimi delta rule with negative eigenvalues, norms after": replace(
        BASE, mixer=KimiDelta(8, 5, 3, strongest=2.0), placement="post"
    ),
    "Kimi delta rule": replace(BASE, mixer=KimiDelta(8, 5, 3)),
    "short convolution": replace(BASE, mixer=ShortConvolution(24, 3)),
    "convolution of one token": replace(BASE, mixer=ShortConvolution(24, 1)),
}
ROWS, LENGTH = 2, 16
DOCUMENTS = [[5, 11], [1, 2, 13]]


def model_of(name: str) -> PlainModel:
    """Two layers: the one of that name behind a plain one, which turns by other angles."""
    plain = replace(BASE, mixer=replace(ATTENTION, rope=Rope(6, 100.0)))
    return PlainModel(MODEL, layers=(plain, LAYERS[name]))


@pytest.mark.parametrize("keep", [True, False], ids=["kept", "rebuilt"])
@pytest.mark.parametrize("name", LAYERS)
def test_gradients_are_those_of_finite_differences(name: str, keep: bool) -> None:
    plain = model_of(name)
    segment = plain.segments[2]
    batch = plain.microbatch(*random_tokens(MODEL, ROWS, LENGTH), DOCUMENTS)
    x, projection = (_random(ROWS * LENGTH, MODEL.hidden_size, seed=seed) for seed in (1, 2))
    weights = plain.weights[segment.name]

    def scalar() -> Tensor:
        with torch.no_grad():
            return (differentiable_block(segment, plain.env, x, weights, batch, keep) * projection).sum()

    leaf = x.clone().requires_grad_()
    (differentiable_block(segment, plain.env, leaf, weights, batch, keep) * projection).sum().backward()
    assert leaf.grad is not None
    _close((leaf.grad * (turn := _random(*x.shape, seed=3))).sum(), scalar, x, turn, "x")
    unit = plain.units[segment.name]
    for spec in segment.parameters:
        weight = unit.weight(spec.name)
        turn = _random(*weight.data.shape, seed=4)
        assert weight.grad.abs().sum() > 0, spec.name
        _close((weight.grad * turn).sum(), scalar, weight.data, turn, spec.name)


def _close(found: Tensor, scalar: Callable[[], Tensor], at: Tensor, along: Tensor, name: str) -> None:
    step = 1e-6
    at.add_(along, alpha=step)
    above = scalar().item()
    at.sub_(along, alpha=2 * step)
    below = scalar().item()
    at.add_(along, alpha=step)
    assert found.item() == pytest.approx((above - below) / (2 * step), rel=1e-6, abs=1e-7), name


def _random(*shape: int, seed: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(0, 1, shape))


def run_rank(rank: int, names: list[str], tp: int, cp: int, method: str, sequence: bool) -> dict[str, str]:
    """Gradients that are off, by layer, with whole rows and with documents."""
    found = {}
    for name in names:
        for documents in (False, True):
            errors = _errors(rank, name, tp, cp, method, sequence, documents)
            worst = max(errors, key=errors.__getitem__)
            if not errors[worst] < 1e-10:
                found[f"{name}, documents {documents}"] = f"{worst} off by {errors[worst]:.1e}"
    return found


def _errors(rank: int, name: str, tp: int, cp: int, method: str, sequence: bool, documents: bool) -> dict[str, float]:
    full = model_of(name)
    layout = split_layout(MODEL, tp, cp, method, sequence, LENGTH)
    split = SplitModel(full, layout, rank)
    tokens, targets = random_tokens(MODEL, ROWS, LENGTH)
    lengths = DOCUMENTS if documents else None
    batch = full.microbatch(tokens, targets, lengths)
    axes = [axis for axis in ("tp", "cp_ring", "cp_ulysses") if layout.degree(axis) > 1]
    extra = ["cp"] if cp > 1 else []
    groups = {n: CountingGroup(g) for n, g in make_groups(layout, rank, [*axes, *extra], 60.0, LINKS).items()}
    context = ContextParallel(groups.get("cp_ring"), groups.get("cp_ulysses"), method == "all_gather")
    parallel = Parallel(groups.get("tp"), sequence, layout.tp_copy, context if cp > 1 else None)
    places, axis = torch.tensor(layout.positions(rank)), 1 if documents else 0
    rope = {r: tuple(t.index_select(axis, places) for t in both) for r, both in batch.rope.items()}
    own = [x[:, places].contiguous() if x is not None else None for x in (tokens, targets, batch.positions)]
    local = Microbatch(own[0], own[1], rope, lengths, own[2])  # type: ignore[arg-type]
    expected = run_segments(MODEL, full.segments, full.weights, full.units, batch, 29)
    actual = run_segments(MODEL, split.segments, split.weights, split.units, local, 29, parallel, deferred=True)
    total = actual.loss.clone().view(1)
    group: AxisGroup | None = groups["cp"]._group if cp > 1 else None
    if group is not None:
        group.all_reduce(total).wait()
    errors = {"loss": relative_error(total[0], expected.loss)}
    gradients = full.gradients()
    parameters = {p.name: p for flat in split.flats.values() for p in flat.parameters}
    for parameter, grad in split.summed_gradients().items():
        summed = grad.contiguous().view(-1)
        if group is not None:
            group.all_reduce(summed).wait()
        part = take_box(gradients[parameter], parameters[parameter].box(split.coordinates))
        errors[parameter] = relative_error(summed.view_as(part), part)
    return errors


SPLITS = [
    (2, 1, "ring", False), (2, 1, "ring", True), (8, 1, "ring", True), (1, 2, "ring", False), (1, 4, "ring", False),
    (1, 2, "all_gather", False), (1, 2, "ulysses", False), (2, 2, "ring", True), (2, 2, "ulysses", False),
]  # fmt: skip
"""(tp, cp, method, sequence parallelism)."""


@pytest.mark.parametrize(("tp", "cp", "method", "sequence"), SPLITS, ids=str)
def test_split_over_ranks_they_are_the_same(tp: int, cp: int, method: str, sequence: bool) -> None:
    options = {"names": list(LAYERS), "tp": tp, "cp": cp, "method": method, "sequence": sequence}
    for found in run_on_ranks(tp * cp, run_rank, **options):
        assert found == {}
