"""Experts, MLA and GPT-2: completed by rules, refused where inconsistent."""

import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fourfold.config import ModelConfig, UserError, dump_run, load_run, parse_run
from fourfold.huggingface import FAMILIES, parse_config, resolve_model, to_config
from fourfold.launch.resolve import model_section
from tests.huggingface.architectures import DIMENSIONS, MLA, MODELS, STATED, YARN, resolve


def test_what_is_left_out_follows_from_what_is_stated() -> None:
    mixtral, deepseek, gpt2 = MODELS["mixtral"], MODELS["deepseek_v3"], MODELS["gpt2"]
    assert (mixtral.family, mixtral.moe_ffn_size, mixtral.router) == ("mixtral", 56, "softmax")
    assert resolve(**DIMENSIONS, num_experts=8, top_k=2, qk_norm=True).family == "qwen3_moe"
    assert MODELS["qwen3_moe"].qk_norm
    assert (deepseek.head_dim, deepseek.num_kv_heads, deepseek.router) == (12, 4, "sigmoid")
    assert (deepseek.norm_eps, deepseek.rope_interleave) == (1e-6, True)
    assert MODELS["deepseek_v3 without a query rank"].query_rank is None
    assert (gpt2.norm, gpt2.activation, gpt2.gated, gpt2.positions) == ("layer", "gelu", False, "learned")
    assert (gpt2.qkv_bias, gpt2.linear_bias, gpt2.tie_embeddings) == (True, True, True)
    without_ffn = {key: value for key, value in DIMENSIONS.items() if key != "ffn_size"}
    assert resolve(**without_ffn, num_experts=8, top_k=2, moe_ffn_size=24).ffn_size == 24
    assert resolve(**MLA, family="deepseek_v3", mtp_layers=1).mtp_loss == 0.3


def test_0_takes_away_what_a_preset_has() -> None:
    dense = resolve(preset="mixtral-8x7b", num_experts=0)
    assert (dense.family, dense.num_experts, dense.top_k, dense.moe_ffn_size) == ("llama", 0, 0, 0)
    assert resolve(preset="mistral-7b", sliding_window=0).sliding_window is None
    grouped = resolve(preset="deepseek-v3", key_value_rank=0, num_experts=0, mtp_layers=0, num_kv_heads=8)
    assert (grouped.is_mla, grouped.head_dim, grouped.query_rank, grouped.family) == (False, 56, None, "llama")
    assert resolve(**STATED["mixtral"], capacity_factor=0).capacity_factor is None
    assert resolve(preset="llama3-8b", num_experts=4, top_k=1).family == "mixtral"


@pytest.mark.parametrize("name", MODELS)
def test_a_resolved_model_written_out_resolves_to_itself(name: str, tmp_path: Path) -> None:
    model = MODELS[name]
    section = model_section(model, None)
    assert resolve_model(section) == model
    run = parse_run({"batch": {"global_sequences": 1, "sequence_length": 8}}).model_copy(update={"model": section})
    (tmp_path / "run.toml").write_text(dump_run(run))
    assert load_run(tmp_path / "run.toml") == run


def _group(optional: dict[str, Any], **required: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Some keys that go together, or none."""
    return st.just({}) | st.fixed_dictionaries(required, optional=optional)


BASE = st.fixed_dictionaries(
    {
        "num_layers": st.integers(2, 4), "num_heads": st.sampled_from([2, 4]), "hidden_size": st.sampled_from([24, 32]),
        "ffn_size": st.integers(1, 64),
    },
    optional={"family": st.sampled_from([*FAMILIES, "custom"]), "tie_embeddings": st.booleans()},
)  # fmt: skip
EXPERTS = _group(
    {
        "moe_ffn_size": st.integers(1, 40), "num_shared_experts": st.integers(0, 2), "normalize_top_k": st.booleans(),
        "first_dense_layers": st.integers(0, 3), "router": st.sampled_from(["softmax", "sigmoid"]),
        "routed_scaling": st.sampled_from([1.0, 2.5]), "num_expert_groups": st.integers(1, 3),
        "top_groups": st.integers(1, 2), "balance_loss": st.sampled_from([0.0, 0.1]),
        "capacity_factor": st.sampled_from([0.0, 1.5]), "balance_bias_speed": st.sampled_from([0.0, 1e-3]),
    },
    num_experts=st.sampled_from([0, 4, 6, 8, 9]), top_k=st.integers(0, 3),
)  # fmt: skip
ATTENTION = _group(
    {"query_rank": st.integers(0, 9), "rope_interleave": st.booleans(), "norm_eps": st.sampled_from([1e-6, 1e-5])},
    key_value_rank=st.integers(0, 9), rope_head_dim=st.sampled_from([0, 2, 4, 5]), nope_head_dim=st.integers(0, 9),
    value_head_dim=st.integers(0, 9),
) | _group({"num_kv_heads": st.integers(1, 4), "head_dim": st.integers(1, 16)})  # fmt: skip
REST = _group({"mtp_loss": st.sampled_from([0.0, 0.1])}, mtp_layers=st.integers(0, 2)) | _group(
    {
        "yarn_scaling": st.just(YARN), "qk_norm": st.booleans(), "qkv_bias": st.booleans(), "gated": st.booleans(),
        "norm": st.sampled_from(["rms", "layer"]), "activation": st.sampled_from(["silu", "gelu"]),
        "linear_bias": st.booleans(), "positions": st.sampled_from(["rope", "learned"]), "sliding_window": st.just(64),
    }
)  # fmt: skip
SECTIONS = st.builds(
    lambda *groups: {k: v for group in groups for k, v in group.items()}, BASE, EXPERTS, ATTENTION, REST
)


def _attempt(work: Callable[[], Any]) -> tuple[Any, str]:
    """(the result, nothing) or (None, the refusal)."""
    try:
        return work(), ""
    except UserError as error:
        return None, str(error)


@settings(max_examples=400, deadline=None)
@given(SECTIONS)
def test_any_section_is_refused_by_key_or_resolves_for_good(stated: dict[str, Any]) -> None:
    """And what a Hugging Face config is written of reads back as the same architecture."""
    model, refusal = _attempt(lambda: resolve(**stated, vocab_size=96))
    assert model is not None or refusal.startswith("model.")
    if model is None:
        return
    again = model_section(model, None)
    assert resolve_model(again) == model
    raw, refusal = _attempt(lambda: to_config(model))
    assert (raw is None) == (model.family == "custom") == ("model." in refusal)
    if raw is None:
        return
    untold = (
        "sliding_window",
        "z_loss",
        "balance_loss",
        "balance_bias_speed",
        "capacity_factor",
        "mtp_layers",
        "mtp_loss",
    )
    plain = replace(model, **{f.name: f.default for f in fields(ModelConfig) if f.name in untold})
    if model.is_moe(model.num_layers - 1) and not model.first_dense_layers:
        plain = replace(plain, ffn_size=model.moe_ffn_size if model.family == "mixtral" else model.ffn_size)
    if model.num_experts and not model.is_moe(model.num_layers - 1):
        return  # experts in no layer are not written
    read = resolve(**parse_config(json.loads(json.dumps(raw))))
    assert replace(read, **{key: getattr(plain, key) for key in untold}) == plain


def test_a_model_of_no_family_trains_and_is_not_written() -> None:
    model = resolve(**DIMENSIONS, num_experts=8, top_k=2, router="sigmoid")
    assert model.family == "custom"
    with pytest.raises(
        UserError, match=r"no Hugging Face family has this model.*nearest is mixtral.*router = 'sigmoid'"
    ):
        to_config(model)
    assert resolve(**DIMENSIONS, norm="layer").family == "custom"


# Refusals


MOE: dict[str, Any] = {**DIMENSIONS, "num_experts": 8, "top_k": 2}


@pytest.mark.parametrize(
    ("stated", "words"),
    [
        ({**DIMENSIONS, "num_experts": 8}, ["model.top_k is missing", "top_k = 2"]),
        ({**MOE, "top_k": 9}, ["model.top_k = 9 exceeds model.num_experts = 8"]),
        ({**MOE, "num_expert_groups": 3}, ["model.num_expert_groups = 3 does not divide model.num_experts = 8", "works: 2"]),
        ({**MOE, "num_expert_groups": 8, "top_groups": 2}, ["1 expert a group", "a value that works: 4"]),
        ({**MOE, "num_expert_groups": 2, "top_groups": 3}, ["model.top_groups = 3 exceeds", "at most 2"]),
        ({**MOE, "num_expert_groups": 4, "top_k": 3}, ["model.top_k = 3 exceeds the 2 experts", "top_groups = 2"]),
        ({**MOE, "first_dense_layers": 5}, ["model.first_dense_layers = 5 exceeds model.num_layers = 4"]),
        ({**MOE, "gated": False}, ["model.gated", "gated = true"]),
        ({**MOE, "linear_bias": True}, ["model.linear_bias", "linear_bias = false"]),
        ({**MOE, "capacity_factor": 0.5}, ["model.capacity_factor = 0.5", "1.25"]),
        ({**DIMENSIONS, "top_k": 2}, ["model.top_k = 2 needs model.num_experts > 0", "num_experts = 8"]),
        ({**DIMENSIONS, "z_loss": 0.1}, ["model.z_loss = 0.1 needs model.num_experts"]),
        ({**DIMENSIONS, "router": "sigmoid"}, ["model.router = 'sigmoid' needs model.num_experts"]),
        ({**DIMENSIONS, "query_rank": 8}, ["model.query_rank = 8 needs model.key_value_rank"]),
        ({**DIMENSIONS, "key_value_rank": 8}, ["model.rope_head_dim is missing", "rope_head_dim = 64"]),
        ({**MLA, "value_head_dim": 0}, ["model.value_head_dim is missing", "value_head_dim = 128"]),
        ({**MLA, "rope_head_dim": 3}, ["model.rope_head_dim = 3 is odd", "4"]),
        ({**MLA, "head_dim": 8}, ["model.head_dim = 8", "= 12"]),
        ({**MLA, "num_kv_heads": 2}, ["model.num_kv_heads = 2", "state 4"]),
        ({**MLA, "qk_norm": True}, ["model.qk_norm = true", "MLA"]),
        ({**MLA, "positions": "learned"}, ["model.positions", '"rope"']),
        ({**MLA, "norm": "layer"}, ["model.norm", 'norm = "rms"']),
        ({**STATED["mixtral"], "activation": "gelu"}, ["model.activation = 'gelu'", "a value that works: silu"]),
        ({**DIMENSIONS, "linear_bias": True}, ["model.linear_bias = true", "gated = false"]),
        ({**DIMENSIONS, "moe_period": 2}, ["model.moe_period = 2 needs model.num_experts", "num_experts = 8"]),
        ({**DIMENSIONS, "num_experts": 4, "top_k": 2, "moe_period": 5}, ["model.moe_period = 5", "at most 4"]),
        ({**DIMENSIONS, "mtp_loss": 0.1}, ["model.mtp_loss = 0.1 needs model.mtp_layers", "mtp_layers = 1"]),
        ({**DIMENSIONS, "yarn_scaling": YARN, "family": "gpt2"}, ["model.yarn_scaling needs rotary positions"]),
    ],
    ids=str,
)  # fmt: skip
def test_what_does_not_fit_together_is_refused(stated: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        resolve(**stated)
    for word in words:
        assert word in str(caught.value)
