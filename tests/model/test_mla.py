"""Multi-head latent attention against transformers' DeepSeek-V3, alone and split over ranks."""

from dataclasses import replace
from itertools import chain
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DeepseekV3Config
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as reference

from fourfold.config import ModelConfig
from fourfold.config.model_config import YarnScaling
from fourfold.model import torch_operations
from fourfold.model.environment import Environment
from fourfold.model.footprint import Shape
from fourfold.model.kinds.kind import Pass
from fourfold.model.layer import Half, HalfSource
from fourfold.model.layers import ropes_of
from fourfold.model.recorded_rank import RecordedRank
from fourfold.model.rope import rotate_
from fourfold.model.rope_tables import rope_frequencies
from fourfold.model.spec import build_segments
from fourfold.model.torch_operations import torch_dtype
from fourfold.model.weights import Weight, deferring
from fourfold.runtime.tracker import MemoryTracker
from tests.support.differentiable import rebuilding
from tests.support.double import compute_in_double
from tests.support.experts import random
from tests.support.mla import (
    SPLIT,
    Case,
    full_weights,
    microbatch,
    mla_layer,
    mla_mixer,
    mla_weights,
    run_rank,
    tables,
)
from tests.support.ranks import run_on_ranks

TOLERANCE = 1e-11
DEEPSEEK = ModelConfig(
    1, 16, 4, 4, 10, 24, 31, family="deepseek_v3", query_rank=12, key_value_rank=8, rope_head_dim=4, nope_head_dim=6,
    value_head_dim=5, rope_interleave=True,
)  # fmt: skip
LITE = replace(DEEPSEEK, query_rank=None, rope_interleave=False)
YARN = replace(
    DEEPSEEK, yarn_scaling=YarnScaling(factor=40.0, original_max_position=64, mscale=1.0, mscale_all_dim=0.7)
)
NAMES = {
    "norm": "norm", "query_down": "q_a_proj", "query_norm": "q_a_layernorm", "query_up": "q_b_proj",
    "key_value_down": "kv_a_proj_with_mqa", "key_value_norm": "kv_a_layernorm", "key_value_up": "kv_b_proj",
    "output": "o_proj",
}  # fmt: skip


def _config(model: ModelConfig) -> DeepseekV3Config:
    rope: dict[str, Any] = {"rope_theta": model.rope_theta, "rope_type": "default"}
    if (yarn := model.yarn_scaling) is not None:
        rope |= {
            "rope_type": "yarn",
            "factor": yarn.factor,
            "mscale": yarn.mscale,
            "mscale_all_dim": yarn.mscale_all_dim,
        }
        rope |= {"original_max_position_embeddings": yarn.original_max_position}
    return DeepseekV3Config(
        hidden_size=model.hidden_size, num_attention_heads=model.num_heads, num_key_value_heads=model.num_heads,
        q_lora_rank=model.query_rank, kv_lora_rank=model.key_value_rank, qk_rope_head_dim=model.rope_head_dim,
        qk_nope_head_dim=model.nope_head_dim, v_head_dim=model.value_head_dim, rope_interleave=model.rope_interleave,
        rope_parameters=rope, max_position_embeddings=4096, rms_norm_eps=model.norm_eps, attn_implementation="eager",
    )  # fmt: skip


def _expected(model: ModelConfig, x: Tensor, projection: Tensor) -> dict[str, Tensor]:
    """Output with residual and every gradient of (output * projection).sum(), from transformers' module."""
    attention = reference.DeepseekV3Attention(_config(model), 0).double()
    norm = reference.DeepseekV3RMSNorm(model.hidden_size, model.norm_eps).double()
    names = NAMES | ({} if model.query_rank is not None else {"query_up": "q_proj"})
    modules = {n: norm if n == "norm" else getattr(attention, names[n]) for n in full_weights(model)}
    for name, tensor in full_weights(model).items():
        modules[name].weight.data.copy_(tensor)
    leaf = x.clone().requires_grad_()
    embeddings = tuple(torch.cat((t, t), -1).view(1, x.shape[1], -1) for t in tables(model, x.shape[1]))
    mask = torch.full((x.shape[1], x.shape[1]), -torch.inf, dtype=x.dtype).triu(1)
    out = leaf + attention(norm(leaf), embeddings, mask)[0]
    (out * projection).sum().backward()
    gradients = {name: module.weight.grad for name, module in modules.items()}
    assert leaf.grad is not None
    return {"out": out.detach(), "x": leaf.grad} | gradients


def _close(got: Tensor, expected: Tensor, name: str) -> None:
    error = (got.reshape(expected.shape) - expected).abs().max().item()
    assert error <= TOLERANCE * expected.abs().max().item(), (name, error)


@pytest.mark.parametrize("model", [DEEPSEEK, LITE, YARN], ids=["low-rank", "lite", "yarn"])
@pytest.mark.parametrize("keep", [True, False])
def test_one_rank_as_transformers(model: ModelConfig, keep: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    compute_in_double(monkeypatch, reference)
    x, projection = random(2, 6, model.hidden_size), random(2, 6, model.hidden_size, seed=9)
    expected = _expected(model, x, projection)
    got = run_rank(0, Case(keep=keep), model, x, projection)
    for name, tensor in expected.items():
        _close(got[name] if name in ("out", "x") else got["gradients"][name], tensor, name)


def _name(value: object) -> str:
    if isinstance(value, Case):
        return "-".join([f"tp{value.tp}", *(flag for flag in ("sequence", "keep", "defers") if getattr(value, flag))])
    return {DEEPSEEK: "low-rank", LITE: "lite", YARN: "yarn"}[value]  # type: ignore[index]


CASES = [
    (DEEPSEEK, Case(2)),
    (DEEPSEEK, Case(2, sequence=True)),
    (DEEPSEEK, Case(2, sequence=True, keep=False, defers=True)),
    (LITE, Case(2)),
    (LITE, Case(2, sequence=True)),
    (YARN, Case(2, sequence=True)),
    (DEEPSEEK, Case(4)),
    (DEEPSEEK, Case(4, sequence=True)),
]


def _check_traffic(model: ModelConfig, case: Case, result: dict[str, Any]) -> None:
    """Collectives as recorded, in order, with those of the output projection."""
    shape = Shape(2, 6, "fp64", "fp64", False, tp=case.tp, sequence_parallel=case.sequence)
    recorded = RecordedRank(build_segments(model)[1], model, shape)
    weights, layer = recorded.weights, mla_layer(model)
    x, passes = recorded.hidden(), []
    run = Pass(recorded.env, recorded.batch, rebuilding(case.keep))
    layer.mix(run, x, weights)
    passes.append(recorded.recording.recorded())
    recorded.recording.begin()
    with deferring(recorded.units.values() if case.defers else ()) as pending:
        layer.mix_backward(run, recorded.hidden(), x, weights)
    passes.append(recorded.recording.recorded())
    recorded.recording.begin()
    pending.run()
    passes.append(recorded.recording.recorded())
    started, (before, after) = result["started"], result["marks"]
    expected = [[(t.kind, t.bytes) for t in phase.collectives] for phase in passes]
    assert [started[:before], started[before:after], started[after:]] == expected
    assert bool(passes[2].collectives) == (case.defers and case.sequence)


@pytest.mark.parametrize(("model", "case"), CASES, ids=_name)
def test_ranks_as_transformers(model: ModelConfig, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    compute_in_double(monkeypatch, reference)
    x, projection = random(2, 6, model.hidden_size), random(2, 6, model.hidden_size, seed=9)
    expected = _expected(model, x, projection)
    results = run_on_ranks(case.tp, run_rank, case=case, model=model, x=x, projection=projection)
    _check_traffic(model, case, results[0])
    for name, tensor in expected.items():
        if name in ("out", "x"):
            parts = [result[name] for result in results]
            for part in parts if not case.sequence else [torch.cat(parts)]:
                _close(part, tensor, name)
            continue
        grads = [result["gradients"][name] for result in results]
        if name in SPLIT:
            _close(torch.cat(grads, SPLIT[name]), tensor, name)
        else:  # a sum where tokens are split, else whole on every rank
            for grad in [torch.stack(grads).sum(0)] if case.sequence else grads:
                _close(grad, tensor, name)


def test_pairs_that_are_neighbours_turn_as_in_transformers() -> None:
    """Elements are equal, sorted apart there and left in their places here."""
    x, (cos, sin) = random(2, 5, 3, 8), tables(replace(DEEPSEEK, rope_head_dim=8), 5)
    full = (torch.cat((t, t), -1).view(1, 5, -1) for t in (cos, sin))
    expected = reference.apply_rotary_pos_emb_interleave(x, x, *full, unsqueeze_dim=2)[0]
    rotate_(torch_operations, x, cos, sin, interleave=True)
    torch.testing.assert_close(torch.cat((x[..., 0::2], x[..., 1::2]), -1), expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize(("mscale", "all_dim"), [(None, None), (1.0, 1.0), (0.7, 1.0), (1.0, 0.0)])
def test_yarn_tables_are_those_of_transformers(mscale: float | None, all_dim: float | None) -> None:
    scaling = YarnScaling(factor=40.0, original_max_position=4096, mscale=mscale, mscale_all_dim=all_dim)
    model = replace(DEEPSEEK, rope_head_dim=64, yarn_scaling=scaling)
    rotary = reference.DeepseekV3RotaryEmbedding(_config(model))
    plain = 1.0 / model.rope_theta ** (torch.arange(0, 64, 2).float() / 64)
    assert torch.equal(rope_frequencies(ropes_of(model)[0]), rotary.inv_freq)
    assert ropes_of(model)[0].table_scale == pytest.approx(rotary.attention_scaling, rel=1e-12)
    assert not torch.allclose(plain, rotary.inv_freq)


@pytest.mark.parametrize("compute", ["fp64", "fp32", "bf16"])
@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("model", [DEEPSEEK, LITE], ids=["low-rank", "lite"])
def test_footprint(model: ModelConfig, keep: bool, compute: str) -> None:
    """Saved bytes exactly, peaks within one percent."""
    model = replace(model, hidden_size=48)
    shape = Shape(4, 64, compute, "fp64" if compute == "fp64" else "fp32", False)
    dtype = torch_dtype(compute)
    weights = {n: Weight(t.to(dtype), t.to(torch_dtype(shape.gradients))) for n, t in full_weights(model).items()}
    bound, layer, mixer = mla_weights(weights), mla_layer(model), mla_mixer(model)
    env, batch, saved = Environment(torch_operations, model), microbatch(model, 4, 64, dtype), rebuilding(keep)
    x, residual = random(256, 48).to(dtype), random(256, 48, seed=3).to(dtype)
    constant = [x, residual, batch.tokens, *chain(*batch.rope.values())]
    tracker = MemoryTracker()
    for tensor in (*constant, *(w.data for w in weights.values()), *(w.grad for w in weights.values())):
        tracker.watch(tensor)
    base = tracker.live_bytes
    forward, backward = _record(model, shape, keep)
    half = Half.of(Pass(env, batch, saved), "mixer", bound.mixer_norms, layer.norm)
    with tracker:
        outputs = mixer.query_key_value(half.run, half.enter(x), bound.mixer)
    assert (tracker.peak_bytes - base, tracker.live_bytes - base) == (pytest.approx(forward[0], rel=0.01), forward[1])
    grads = [torch.randn_like(output) for output in outputs]
    for grad in grads:
        tracker.watch(grad)
    del grad
    tracker.peak_bytes = tracker.live_bytes
    with tracker:
        source = HalfSource(half, x, residual)
        result = mixer.query_key_value_backward(half.run, grads, bound.mixer, source)
        del source
    assert (tracker.peak_bytes - base, tracker.live_bytes - base) == (pytest.approx(backward[0], rel=0.01), backward[1])
    assert result.shape == x.shape


def _record(model: ModelConfig, shape: Shape, keep: bool) -> tuple[tuple[int, int], tuple[int, int]]:
    """Peak and live bytes after forward, and after backward."""
    recorded = RecordedRank(build_segments(model)[1], model, shape)
    x, recording, w = recorded.hidden(), recorded.recording, recorded.weights
    layer, mixer = mla_layer(model), mla_mixer(model)
    half = Half.of(Pass(recorded.env, recorded.batch, rebuilding(keep)), "mixer", w.mixer_norms, layer.norm)
    outputs = mixer.query_key_value(half.run, half.enter(x), w.mixer)
    forward = recording.peak, recording.live
    grads = [recorded.ops.make(output.shape, output.dtype) for output in outputs]
    recording.begin()
    source = HalfSource(half, x, recorded.hidden())
    result = mixer.query_key_value_backward(half.run, grads, w.mixer, source)
    del source
    backward = recording.peak, recording.live
    del result, outputs
    return forward, backward
