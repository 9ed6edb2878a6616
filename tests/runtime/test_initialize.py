"""Initial parameters are a pure function of (seed, name, element): any range of them, under any layout."""

import hashlib
import math
import threading
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fourfold.config import ModelConfig
from fourfold.model.spec import ParameterSpec, build_segments
from fourfold.runtime import initialize
from fourfold.runtime.initialize import fill_range, initialize_shard, truncated_normal
from tests.support.programs import make_view

MODEL = ModelConfig(3, 32, 4, 2, 8, 56, 99, qk_norm=True)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 3000), st.integers(0, 300), st.integers(0, 2**63 - 1))
def test_any_range_is_that_slice_of_all(start: int, length: int, seed: int) -> None:
    full = truncated_normal("x", 0, start + length + 7, seed)
    assert torch.equal(truncated_normal("x", start, start + length, seed), full[start : start + length])


def test_a_range_far_out_costs_no_more_than_its_length() -> None:
    far = 10**13
    a = truncated_normal("x", far, far + 10, 1)
    assert torch.equal(a[3:], truncated_normal("x", far + 3, far + 10, 1))
    assert len(set(a.tolist())) == 10


def test_streams_of_other_names_seeds_and_places_differ() -> None:
    streams = [
        truncated_normal(name, start, start + 64, seed)
        for name in ("a", "b", "model.layers.1.w", "model.layers.11.w")
        for seed in (0, 1, 2**62)
        for start in (0, 64)
    ]
    values = torch.stack(streams)
    assert len(torch.unique(values)) == values.numel()
    correlation = torch.corrcoef(values)
    assert (correlation - torch.eye(len(streams))).abs().max() < 0.6


def test_decays_begin_where_the_published_models_begin() -> None:
    """Kimi-Linear's rates between 1 and 16, drawn evenly; its steps between 1e-3 and 1e-1, their logarithm drawn evenly."""
    sizes = {"delta_key_heads": 512, "delta_value_heads": 512, "delta_key_dim": 8, "delta_value_dim": 8}
    model = ModelConfig(1, 32, 4, 2, 8, 56, 99, mixer="kimi_delta", **sizes)
    specs = {spec.name.rpartition(".")[2]: spec for spec in build_segments(model)[1].parameters}
    rates, steps = (torch.empty(specs[name].numel, dtype=torch.float64) for name in ("A_log", "dt_bias"))
    fill_range(specs["A_log"], 0, rates.numel(), 0, rates)
    fill_range(specs["dt_bias"], 0, steps.numel(), 0, steps)
    for values, least, most in (
        (rates.exp(), 1.0, 16.0),
        (torch.nn.functional.softplus(steps).log(), math.log(1e-3), math.log(1e-1)),
    ):
        assert values.min() >= least - 1e-9
        assert values.max() <= most + 1e-9
        assert values.mean().item() == pytest.approx((least + most) / 2, rel=0.06)
        assert values.std().item() == pytest.approx((most - least) / 12**0.5, rel=0.06)


def test_the_distribution_is_the_normal_cut_at_three_deviations() -> None:
    sample = truncated_normal("weight", 0, 400_000, 3)
    assert sample.dtype == torch.float64
    assert sample.abs().max() <= 3.0
    assert sample.abs().max() > 2.99
    density = math.exp(-4.5) / math.sqrt(2 * math.pi)
    mass = math.erf(3 / math.sqrt(2))
    std = math.sqrt(1 - 2 * 3 * density / mass)  # of the truncated normal
    assert abs(sample.mean().item()) < 4 / math.sqrt(400_000)
    assert sample.std().item() == pytest.approx(std, rel=0.005)
    for quantile in (-2.5, -1.0, 0.0, 0.5, 2.0):
        expected = (0.5 * (1 + math.erf(quantile / math.sqrt(2))) - (1 - mass) / 2) / mass
        assert (sample < quantile).double().mean().item() == pytest.approx(expected, abs=0.004)


def test_neighbours_are_not_correlated() -> None:
    sample = truncated_normal("weight", 0, 100_000, 4)
    for lag in (1, 2, 3, 4, 8, 64):
        assert abs(torch.corrcoef(torch.stack([sample[:-lag], sample[lag:]]))[0, 1].item()) < 0.015


@pytest.mark.parametrize(
    ("std", "expected"),
    [(None, "ones"), (0.0, "zeros"), (0.02, "normal"), (1.0, "normal"), (0.02 / math.sqrt(6), "normal")],
)
def test_initial_values_of_a_parameter(std: float | None, expected: str) -> None:
    spec = ParameterSpec("p", (50, 40), std, True, None)
    out = torch.full((2000,), torch.nan)
    fill_range(spec, 0, 2000, 0, out)
    if expected == "normal":
        assert std is not None
        assert out.std().item() == pytest.approx(std * 0.9866, rel=0.05)
        assert out.abs().max() <= 3 * std * (1 + 1e-6)
    else:
        assert torch.equal(out, torch.ones(2000) if expected == "ones" else torch.zeros(2000))


def test_ranges_longer_than_a_chunk_are_seamless(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = ParameterSpec("p", (1000,), 0.02, True, None)
    full, parts = torch.empty(1000), torch.empty(1000)
    fill_range(spec, 0, 1000, 9, full)
    monkeypatch.setattr(initialize, "_CHUNK", 37)
    fill_range(spec, 0, 1000, 9, parts)
    assert torch.equal(full, parts)


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from([1, 2, 3]),
    st.sampled_from([1, 2, 3, 4, 5, 8]),
    st.integers(0, 3),
    st.integers(0, 99),
    st.booleans(),
)
def test_the_parameters_are_the_same_under_every_layout(
    replicate: int, shard: int, zero: int, seed: int, tied: bool
) -> None:
    model = {"tie_embeddings": tied, "qkv_bias": True}
    one = make_view(model)
    many = make_view(model, dp_replicate=replicate, dp_shard=shard, zero=zero)
    for name, flat in many.flats.items():
        shards = []
        for index in range(flat.num_shards):
            out = torch.full((flat.shard_numel,), torch.nan)
            initialize_shard(flat, index, seed, {}, out)
            shards.append(out)
        full = torch.cat(shards)
        alone = torch.full((one.flats[name].padded_numel,), torch.nan)
        initialize_shard(one.flats[name], 0, seed, {}, alone)
        assert torch.equal(full[: flat.numel], alone[: flat.numel])
        assert not full[flat.numel :].any(), "the padding is zero"


def test_the_published_recipe() -> None:
    """GPT-2 (Radford et al. 2019, section 2.3): what writes into the residual stream is scaled by 1/sqrt(2 layers); norms start
    at one, biases at zero."""
    specs = {p.name: p for s in build_segments(MODEL) for p in s.parameters}
    for name, spec in specs.items():
        if "norm" in name:
            assert spec.init_std is None
        elif name.endswith(("self_attn.o_proj.weight", "mlp.down_proj.weight")):
            assert spec.init_std == pytest.approx(0.02 / math.sqrt(6))
        else:
            assert spec.init_std == 0.02
    biased = build_segments(ModelConfig(1, 32, 4, 2, 8, 56, 99, qkv_bias=True))[1]
    assert {p.init_std for p in biased.parameters if p.name.endswith("bias")} == {0.0}
    assert np.all([not p.weight_decay for p in biased.parameters if len(p.shape) == 1])


def inverted(name: str, start: int, end: int, seed: int) -> torch.Tensor:
    """The definition: Philox's words of the parameter's key, their upper 53 bits as a number in [0, 1), the inverse of the cut
    normal's distribution. One thread, no block, no generator of floats."""
    key = int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:16], "little")
    words = np.random.Philox(key=key).random_raw(end)[start:]
    uniform = torch.from_numpy((words >> np.uint64(11)).astype(np.float64) * 2.0**-53)
    low = 0.5 * (1 + math.erf(-3 / math.sqrt(2)))
    return (torch.erfinv(2 * (low + (1 - 2 * low) * uniform) - 1) * math.sqrt(2)).clamp(-3, 3)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_values_do_not_depend_on_threads_chunks_or_blocks(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(initialize, "_CHUNK", 700)
    monkeypatch.setattr(initialize, "_BLOCK", 64)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    spec = ParameterSpec("p", (100, 100), 0.5, True, None)
    runs = [
        (3, 5, 1),
        (7, 7, 3),
        (9, 1800, 40),
        (2001, 2002, 2000),
        (2003, 6000, 3000),
    ]  # short and long, with places between
    out = torch.full((9000,), torch.nan)
    initialize.fill_runs(spec, runs, 11, out)
    right = torch.full((9000,), torch.nan)
    for first, last, low in runs:
        right[low : low + last - first] = inverted("p", first, last, 11).mul(0.5)
    torch.testing.assert_close(out, right, rtol=0, atol=0, equal_nan=True)


def test_threads_share_the_work_and_it_says_that_it_gets_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads draw, as many as the rank computes with; and however large a parameter, somebody hears of every chunk of it."""
    monkeypatch.setattr(initialize, "_CHUNK", 1000)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    meet, who = threading.Barrier(3, timeout=60), set()
    normals = initialize._normals

    def watched(*given: Any) -> torch.Tensor:
        if threading.get_ident() not in who:
            who.add(threading.get_ident())
            meet.wait()  # broken, unless three threads are at work at once
        return normals(*given)

    monkeypatch.setattr(initialize, "_normals", watched)
    parts: list[int] = []
    out = torch.empty(10_000)
    spec = ParameterSpec("p", (10_000,), 1.0, True, None)
    initialize.fill_runs(spec, [(0, 10_000, 0)], 0, out, lambda: parts.append(1))
    assert len(who) == 3
    assert len(parts) == 10


@pytest.mark.parametrize("axis", ["tp", "ep"])
def test_a_rank_draws_what_it_holds_and_nothing_else(axis: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = 0
    into = initialize._Draws.into

    def counted(draws: Any, out: Any, start: int) -> None:
        nonlocal drawn
        drawn += len(out)
        into(draws, out, start)

    monkeypatch.setattr(initialize._Draws, "into", counted)
    model = {"num_experts": 4, "top_k": 2, "moe_ffn_size": 16} if axis == "ep" else {}
    layout = {"tp": 2} if axis == "tp" else {"ep": 2, "dp_shard": 2}
    view = make_view(model, **layout)
    place = dict.fromkeys(("tp", "ep", "dp_shard"), 1) | {
        "pp": 0,
        "dp_replicate": 0,
        "cp": 0,
        "etp": 0,
        "tp_head": 1,
    }
    held = 0
    for flat in view.flats.values():
        out = torch.empty(flat.shard_numel)
        initialize_shard(flat, 0, 0, place, out)
        held += sum(local.numel for local in flat.parameters if local.spec.init_std)
    assert 0 < drawn <= held
