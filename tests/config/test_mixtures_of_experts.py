"""Experts, latent attention and GPT-2: completed by rules, refused where inconsistent, read and written as transformers does."""

import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fourfold.config import ModelConfig, ModelSection, UserError, dump_run, load_run, parse_run, resolve_model
from fourfold.config.huggingface import parse_config, to_config
from fourfold.config.schema import YarnScaling

DIMENSIONS: dict[str, Any] = {"num_layers": 4, "hidden_size": 32, "num_heads": 4, "vocab_size": 99, "ffn_size": 56}
LATENT: dict[str, Any] = {
    **DIMENSIONS,
    "key_value_rank": 16,
    "query_rank": 24,
    "rope_head_dim": 4,
    "nope_head_dim": 8,
    "value_head_dim": 6,
}
YARN = YarnScaling(factor=40.0, original_max_position=64, mscale=1.0, mscale_all_dim=1.0)
STATED: dict[str, dict[str, Any]] = {
    "mixtral": {**DIMENSIONS, "num_kv_heads": 2, "num_experts": 8, "top_k": 2, "balance_loss": 0.02},
    "mixtral tied, windowed": {
        **DIMENSIONS, "num_experts": 8, "top_k": 3, "family": "mixtral", "tie_embeddings": True, "sliding_window": 64,
        "balance_loss": 0.0,
    },
    "qwen3_moe": {
        **DIMENSIONS, "num_kv_heads": 2, "family": "qwen3_moe", "num_experts": 16, "top_k": 4, "moe_ffn_size": 24,
        "head_dim": 16, "normalize_top_k": False, "norm_eps": 1e-6,
    },
    "qwen3_moe with dense layers": {
        **DIMENSIONS, "family": "qwen3_moe", "num_experts": 16, "top_k": 4, "moe_ffn_size": 24, "first_dense_layers": 2,
    },
    "qwen3_moe, experts in every other block": {
        **DIMENSIONS, "family": "qwen3_moe", "num_experts": 16, "top_k": 4, "moe_ffn_size": 24, "moe_period": 2,
    },
    "deepseek_v3": {
        **LATENT, "family": "deepseek_v3", "num_experts": 8, "top_k": 3, "moe_ffn_size": 24, "num_shared_experts": 2,
        "first_dense_layers": 1, "num_expert_groups": 4, "top_groups": 2, "routed_scaling": 2.5, "balance_loss": 1e-4,
    },
    "deepseek_v3 with yarn": {
        **LATENT, "family": "deepseek_v3", "num_experts": 8, "top_k": 3, "num_shared_experts": 1, "yarn_scaling": YARN,
        "mtp_layers": 1, "mtp_loss": 0.3, "rope_interleave": False,
    },
    "deepseek_v3 without a query rank": {
        **LATENT, "query_rank": 0, "family": "deepseek_v3", "num_experts": 8, "top_k": 3, "num_shared_experts": 1,
    },
    "latent and dense": {**LATENT, "family": "deepseek_v3"},
    "gpt2": {**DIMENSIONS, "family": "gpt2", "max_position": 64},
    "gpt2 untied": {**DIMENSIONS, "family": "gpt2", "tie_embeddings": False},
    "llama with yarn": {**DIMENSIONS, "yarn_scaling": YarnScaling(factor=4.0, original_max_position=32)},
}  # fmt: skip


def _resolve(**stated: Any) -> ModelConfig:
    return resolve_model(ModelSection(**stated))


MODELS = {name: _resolve(**stated) for name, stated in STATED.items()}


def test_what_is_left_out_follows_from_what_is_stated() -> None:
    mixtral, deepseek, gpt2 = MODELS["mixtral"], MODELS["deepseek_v3"], MODELS["gpt2"]
    assert (mixtral.family, mixtral.moe_ffn_size, mixtral.router) == ("mixtral", 56, "softmax")
    assert _resolve(**DIMENSIONS, num_experts=8, top_k=2, qk_norm=True).family == "qwen3_moe"
    assert MODELS["qwen3_moe"].qk_norm
    assert (deepseek.head_dim, deepseek.num_kv_heads, deepseek.router) == (12, 4, "sigmoid")
    assert (deepseek.norm_eps, deepseek.rope_interleave) == (1e-6, True)
    assert MODELS["deepseek_v3 without a query rank"].query_rank is None
    assert (gpt2.norm, gpt2.activation, gpt2.gated, gpt2.positions) == ("layer", "gelu", False, "learned")
    assert (gpt2.qkv_bias, gpt2.linear_bias, gpt2.tie_embeddings) == (True, True, True)
    whole = {key: value for key, value in DIMENSIONS.items() if key != "ffn_size"}
    assert _resolve(**whole, num_experts=8, top_k=2, moe_ffn_size=24).ffn_size == 24
    assert _resolve(**LATENT, family="deepseek_v3", mtp_layers=1).mtp_loss == 0.3


def test_0_takes_away_what_a_preset_has() -> None:
    dense = _resolve(preset="mixtral-8x7b", num_experts=0)
    assert (dense.family, dense.num_experts, dense.top_k, dense.moe_ffn_size) == ("llama", 0, 0, 0)
    assert _resolve(preset="mistral-7b", sliding_window=0).sliding_window is None
    grouped = _resolve(preset="deepseek-v3", key_value_rank=0, num_experts=0, mtp_layers=0, num_kv_heads=8)
    assert (grouped.is_latent, grouped.head_dim, grouped.query_rank, grouped.family) == (False, 56, None, "llama")
    assert _resolve(**STATED["mixtral"], capacity_factor=0).capacity_factor is None
    assert _resolve(preset="llama3-8b", num_experts=4, top_k=1).family == "mixtral"


@pytest.mark.parametrize("name", MODELS)
def test_a_resolved_model_written_out_resolves_to_itself(name: str, tmp_path: Path) -> None:
    model = MODELS[name]
    section = ModelSection(**{key: value for key, value in vars(model).items() if value is not None})
    assert resolve_model(section) == model
    run = parse_run({"batch": {"global_sequences": 1, "sequence_length": 8}}).model_copy(update={"model": section})
    (tmp_path / "run.toml").write_text(dump_run(run))
    assert load_run(tmp_path / "run.toml") == run


# Hugging Face


def _read(raw: dict[str, Any], folder: Path) -> ModelConfig:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(raw))
    return _resolve(hf=str(folder))


@pytest.mark.parametrize("name", MODELS)
def test_a_config_reads_back_as_written_and_as_transformers_writes_it(name: str, tmp_path: Path) -> None:
    from transformers import AutoConfig

    model = MODELS[name]
    assert _read(to_config(model), tmp_path / "ours") == model
    AutoConfig.from_pretrained(tmp_path / "ours").save_pretrained(tmp_path / "theirs")
    assert _resolve(hf=str(tmp_path / "theirs")) == model


BARE: dict[str, Any] = {
    "num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 32, "intermediate_size": 56, "vocab_size": 99,
}  # fmt: skip


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe", "deepseek_v3"])
def test_keys_left_out_mean_what_they_mean_to_transformers(family: str, tmp_path: Path) -> None:
    from transformers import AutoConfig

    ours = _read({"model_type": family, **BARE}, tmp_path)
    theirs = AutoConfig.from_pretrained(tmp_path)
    assert ours.family == family
    assert ours.num_kv_heads == (32 if family == "deepseek_v3" else theirs.num_key_value_heads)
    assert ours.norm_eps == theirs.rms_norm_eps
    assert ours.max_position == theirs.max_position_embeddings
    assert ours.rope_theta == theirs.rope_parameters["rope_theta"]
    assert ours.top_k == theirs.num_experts_per_tok
    assert ours.num_experts == theirs.num_local_experts
    if family == "mixtral":
        assert (ours.moe_ffn_size, ours.balance_loss) == (56, theirs.router_aux_loss_coef)
    else:
        assert ours.moe_ffn_size == theirs.moe_intermediate_size
        assert ours.normalize_top_k == theirs.norm_topk_prob
    if family == "deepseek_v3":
        for key, other in (
            ("num_shared_experts", "n_shared_experts"), ("first_dense_layers", "first_k_dense_replace"),
            ("num_expert_groups", "n_group"), ("top_groups", "topk_group"), ("routed_scaling", "routed_scaling_factor"),
            ("query_rank", "q_lora_rank"), ("key_value_rank", "kv_lora_rank"), ("rope_head_dim", "qk_rope_head_dim"),
            ("nope_head_dim", "qk_nope_head_dim"), ("value_head_dim", "v_head_dim"), ("head_dim", "qk_head_dim"),
            ("rope_interleave", "rope_interleave"),
        ):  # fmt: skip
            assert getattr(ours, key) == getattr(theirs, other), key


def test_gpt2s_own_config(tmp_path: Path) -> None:
    """config.json of openai-community/gpt2, the keys that say what the model is."""
    raw = {
        "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "layer_norm_epsilon": 1e-05,
        "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024,
        "resid_pdrop": 0.1, "vocab_size": 50257,
    }  # fmt: skip
    from fourfold.model.spec import num_parameters

    assert num_parameters(_read(raw, tmp_path)) == 124_439_808


def test_deepseek_v3s_own_config(tmp_path: Path) -> None:
    """config.json of deepseek-ai/DeepSeek-V3 is the preset, its YaRN stretching beside."""
    raw = {
        "model_type": "deepseek_v3", "aux_loss_alpha": 0.001, "attention_bias": False, "ep_size": 1,
        "first_k_dense_replace": 3, "hidden_act": "silu", "hidden_size": 7168, "initializer_range": 0.02,
        "intermediate_size": 18432, "kv_lora_rank": 512, "max_position_embeddings": 163840,
        "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 256,
        "n_shared_experts": 1, "norm_topk_prob": True, "num_attention_heads": 128, "num_experts_per_tok": 8,
        "num_hidden_layers": 61, "num_key_value_heads": 128, "num_nextn_predict_layers": 1, "q_lora_rank": 1536,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
        "rope_scaling": {
            "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 4096, "type": "yarn",
        },
        "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "seq_aux": True,
        "tie_word_embeddings": False, "topk_group": 4, "topk_method": "noaux_tc", "v_head_dim": 128,
        "vocab_size": 129280,
    }  # fmt: skip
    model = _read(raw, tmp_path)
    assert model.yarn_scaling == YarnScaling(factor=40.0, original_max_position=4096, mscale=1.0, mscale_all_dim=1.0)
    preset = _resolve(preset="deepseek-v3")
    assert replace(model, yarn_scaling=None, balance_loss=preset.balance_loss, max_position=preset.max_position,
                   balance_bias_speed=preset.balance_bias_speed, init_std=preset.init_std) == preset  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(
    groups=st.integers(1, 4), per_group=st.integers(2, 8), dense=st.integers(0, 3), shared=st.integers(1, 3),
    rank=st.integers(0, 64), rope=st.integers(1, 32), scaling=st.floats(0.1, 10), interleave=st.booleans(), data=st.data(),
)  # fmt: skip
def test_any_deepseek_model_reads_back(
    groups: int, per_group: int, dense: int, shared: int, rank: int, rope: int, scaling: float, interleave: bool,
    data: st.DataObject,
) -> None:  # fmt: skip
    top = data.draw(st.integers(1, groups))
    model = _resolve(
        **{**LATENT, "query_rank": rank, "rope_head_dim": 2 * rope}, family="deepseek_v3", num_experts=groups * per_group,
        top_k=data.draw(st.integers(1, top * per_group)), num_expert_groups=groups, top_groups=top,
        num_shared_experts=shared, first_dense_layers=dense, routed_scaling=scaling, rope_interleave=interleave,
        moe_ffn_size=24,
    )  # fmt: skip
    assert _resolve(**parse_config(json.loads(json.dumps(to_config(model))))) == model


def _group(optional: dict[str, Any], **required: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Some keys that go together, or none."""
    return st.just({}) | st.fixed_dictionaries(required, optional=optional)


FAMILIES = ["llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe", "deepseek_v3", "gpt2", "custom"]
BASE = st.fixed_dictionaries(
    {
        "num_layers": st.integers(2, 4), "num_heads": st.sampled_from([2, 4]), "hidden_size": st.sampled_from([24, 32]),
        "ffn_size": st.integers(1, 64),
    },
    optional={"family": st.sampled_from(FAMILIES), "tie_embeddings": st.booleans()},
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
    model, refusal = _attempt(lambda: _resolve(**stated, vocab_size=96))
    assert model is not None or refusal.startswith("model.")
    if model is None:
        return
    again = ModelSection(**{key: value for key, value in vars(model).items() if value is not None})
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
    read = _resolve(**parse_config(json.loads(json.dumps(raw))))
    assert replace(read, **{key: getattr(plain, key) for key in untold}) == plain


def test_a_model_of_no_family_trains_and_is_not_written() -> None:
    model = _resolve(**DIMENSIONS, num_experts=8, top_k=2, router="sigmoid", num_shared_experts=1)
    assert model.family == "custom"
    with pytest.raises(
        UserError, match=r"no Hugging Face family has this model.*nearest is mixtral.*router = 'sigmoid'"
    ):
        to_config(model)
    assert _resolve(**DIMENSIONS, norm="layer").family == "custom"


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
        ({**DIMENSIONS, "rope_interleave": True}, ["model.rope_interleave = true needs model.key_value_rank"]),
        ({**DIMENSIONS, "key_value_rank": 8}, ["model.rope_head_dim is missing", "rope_head_dim = 64"]),
        ({**LATENT, "value_head_dim": 0}, ["model.value_head_dim is missing", "value_head_dim = 128"]),
        ({**LATENT, "rope_head_dim": 3}, ["model.rope_head_dim = 3 is odd", "4"]),
        ({**LATENT, "head_dim": 8}, ["model.head_dim = 8", "= 12"]),
        ({**LATENT, "num_kv_heads": 2}, ["model.num_kv_heads = 2", "state 4"]),
        ({**LATENT, "qk_norm": True}, ["model.qk_norm = true", "latent attention"]),
        ({**LATENT, "positions": "learned"}, ["model.positions", '"rope"']),
        ({**LATENT, "norm": "layer"}, ["model.norm", 'norm = "rms"']),
        ({**DIMENSIONS, "activation": "gelu"}, ["model.activation = 'gelu'", "gated = false"]),
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
        _resolve(**stated)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("family", "changes", "words"),
    [
        ("mixtral", {"router_jitter_noise": 0.1}, ["router_jitter_noise = 0.1", "allowed: 0.0"]),
        ("mixtral", {"num_local_experts": 0}, ["num_local_experts = 0", "positive integer"]),
        ("mixtral", {"num_experts_per_tok": 9}, ["model.top_k = 9"]),
        ("qwen3_moe", {"decoder_sparse_step": 0}, ["decoder_sparse_step = 0", "positive integer"]),
        ("qwen3_moe", {"mlp_only_layers": [1]}, ["mlp_only_layers = [1]", "first ones"]),
        ("qwen3_moe", {"mlp_only_layers": [0, 2]}, ["mlp_only_layers = [0, 2]"]),
        ("qwen3_moe", {"mlp_only_layers": 3}, ["mlp_only_layers = 3"]),
        ("qwen3_moe", {"norm_topk_prob": 1}, ["norm_topk_prob = 1", "true, false"]),
        ("qwen3_moe", {"attention_bias": True}, ["attention_bias = true"]),
        ("deepseek_v3", {"scoring_func": "softmax"}, ["scoring_func = 'softmax'", "'sigmoid'"]),
        ("deepseek_v3", {"topk_method": "greedy"}, ["topk_method = 'greedy'", "'noaux_tc'"]),
        ("deepseek_v3", {"moe_layer_freq": 2}, ["moe_layer_freq = 2"]),
        ("deepseek_v3", {"rms_norm_eps": 1e-5}, ["rms_norm_eps = 1e-05"]),
        ("deepseek_v3", {"n_group": 7}, ["num_expert_groups = 7"]),
        ("deepseek_v3", {"kv_lora_rank": "512"}, ["kv_lora_rank = '512'"]),
        ("deepseek_v3", {"first_k_dense_replace": -1}, ["first_k_dense_replace = -1", "0 or more"]),
        ("deepseek_v3", {"num_key_value_heads": 8}, ["model.num_kv_heads = 8"]),
        ("gpt2", {"activation_function": "relu"}, ["activation_function = 'relu'", "'gelu_new'"]),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, ["scale_attn_by_inverse_layer_idx = true", "false"]),
        ("gpt2", {"n_head": 7}, ["num_heads = 7"]),
        ("gpt2", {"n_embd": "x"}, ["n_embd = 'x'"]),
    ],
    ids=str,
)  # fmt: skip
def test_a_config_that_cannot_be_run_right_is_refused(
    family: str, changes: dict[str, Any], words: list[str], tmp_path: Path
) -> None:
    with pytest.raises(UserError) as caught:
        _read({"model_type": family, **BARE, **changes}, tmp_path)
    for word in words:
        assert word in str(caught.value)
