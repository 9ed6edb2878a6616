"""Experts, MLA and GPT-2 in configs of Hugging Face: read and written as transformers does, refused where wrong."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fourfold.config import ModelConfig, UserError
from fourfold.config.model_config import YarnScaling
from fourfold.huggingface import FAMILIES, parse_config, to_config
from fourfold.huggingface.config_json import unread_keys
from tests.huggingface.architectures import MLA, MODELS, resolve


def _read(raw: dict[str, Any], folder: Path) -> ModelConfig:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(raw))
    return resolve(hf=str(folder))


@pytest.mark.parametrize("name", MODELS)
def test_a_config_reads_back_as_written_and_as_transformers_writes_it(name: str, tmp_path: Path) -> None:
    from transformers import AutoConfig

    model = MODELS[name]
    assert _read(to_config(model), tmp_path / "ours") == model
    AutoConfig.from_pretrained(tmp_path / "ours").save_pretrained(tmp_path / "theirs")
    assert resolve(hf=str(tmp_path / "theirs")) == model


BARE: dict[str, Any] = {
    "num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 32, "intermediate_size": 56, "vocab_size": 99,
}  # fmt: skip


NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


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
        assert ours.moe_ffn_size == 56
    else:
        assert ours.moe_ffn_size == theirs.moe_intermediate_size
        assert ours.normalize_top_k == theirs.norm_topk_prob
    if family != "deepseek_v3":
        assert not theirs.output_router_logits
        assert ours.balance_loss == 0.0
        on = _read({"model_type": family, **BARE, "output_router_logits": True}, tmp_path)
        assert on.balance_loss == theirs.router_aux_loss_coef
    else:
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
    from fourfold.model.counts import num_parameters

    with pytest.raises(UserError, match=r"resid_pdrop = 0\.1.*model\.dropout = 0"):
        _read(raw, tmp_path)
    assert num_parameters(resolve(hf=str(tmp_path), dropout=0)) == 124_439_808


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
    preset = resolve(preset="deepseek-v3")
    assert replace(model, yarn_scaling=None, balance_loss=preset.balance_loss, max_position=preset.max_position,
                   balance_bias_speed=preset.balance_bias_speed, init_std=preset.init_std) == preset  # fmt: skip


def test_kimi_k2s_own_config(tmp_path: Path) -> None:
    """config.json of moonshotai/Kimi-K2-Instruct is the preset, its YaRN beside, whose ramp is between two equal numbers of turns;
    it is written as a DeepSeek-V3, which transformers loads."""
    raw = {
        "model_type": "kimi_k2", "architectures": ["DeepseekV3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"}, "aux_loss_alpha": 0.001, "ep_size": 1,
        "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 7168, "initializer_range": 0.02,
        "intermediate_size": 18432, "kv_lora_rank": 512, "max_position_embeddings": 131072, "moe_intermediate_size": 2048,
        "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 384, "n_shared_experts": 1, "norm_topk_prob": True,
        "num_attention_heads": 64, "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 64,
        "num_nextn_predict_layers": 0, "pretraining_tp": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}, "rms_norm_eps": 1e-06,
        "rope_scaling": {
            "beta_fast": 1.0, "beta_slow": 1.0, "factor": 32.0, "mscale": 1.0, "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 4096, "type": "yarn",
        },
        "rope_theta": 50000.0, "routed_scaling_factor": 2.827, "scoring_func": "sigmoid", "seq_aux": True,
        "tie_word_embeddings": False, "topk_group": 1, "topk_method": "noaux_tc", "v_head_dim": 128, "vocab_size": 163840,
    }  # fmt: skip
    model, preset = _read(raw, tmp_path), resolve(preset="kimi-k2")
    assert model.yarn_scaling == YarnScaling(
        factor=32.0, original_max_position=4096, beta_fast=1.0, mscale=1.0, mscale_all_dim=1.0
    )
    assert replace(model, yarn_scaling=None, max_position=4096, balance_bias_speed=preset.balance_bias_speed) == preset
    assert unread_keys(raw, FAMILIES["deepseek_v3"]) == []
    assert (preset.family, resolve(**MLA, family="kimi_k2").family) == ("deepseek_v3", "deepseek_v3")
    written = to_config(model)
    assert (written["model_type"], written["architectures"]) == ("deepseek_v3", raw["architectures"])
    assert _read(written, tmp_path) == model
    assert _read({**raw, "rms_norm_eps": 1e-5}, tmp_path).norm_eps == 1e-5  # Kimi-K2-Thinking


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
    model = resolve(
        **{**MLA, "query_rank": rank, "rope_head_dim": 2 * rope}, family="deepseek_v3", num_experts=groups * per_group,
        top_k=data.draw(st.integers(1, top * per_group)), num_expert_groups=groups, top_groups=top,
        num_shared_experts=shared, first_dense_layers=dense, routed_scaling=scaling, rope_interleave=interleave,
        moe_ffn_size=24,
    )  # fmt: skip
    assert resolve(**parse_config(json.loads(json.dumps(to_config(model))))) == model


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
        ("deepseek_v3", {"n_group": 7}, ["num_expert_groups = 7"]),
        ("deepseek_v3", {"kv_lora_rank": "512"}, ["kv_lora_rank = '512'"]),
        ("deepseek_v3", {"first_k_dense_replace": -1}, ["first_k_dense_replace = -1", "0 or more"]),
        ("deepseek_v3", {"num_key_value_heads": 8}, ["model.num_kv_heads = 8"]),
        ("gpt2", {"embd_pdrop": 0.1, "attn_pdrop": 0.0, "resid_pdrop": 0}, ["embd_pdrop = 0.1", "model.dropout = 0"]),
        ("gpt2", {**NO_DROPOUT, "attn_pdrop": "x"}, ["attn_pdrop = 'x'"]),
        ("gpt2", {}, ["resid_pdrop = 0.1 (left out"]),
        ("gpt2", {**NO_DROPOUT, "n_ctx": 8, "hidden_size": 8, "n_embd": 16}, ["n_embd = 16 and hidden_size = 8 contradict"]),
        ("mixtral", {"attention_dropout": 0.2}, ["attention_dropout = 0.2", "--without-dropout"]),
        ("mixtral", {"is_causal": False}, ["is_causal = false", "true"]),
        ("mixtral", {"num_local_experts": 4, "num_experts": 8}, ["num_local_experts = 4 and num_experts = 8"]),
        ("mixtral", {"layer_types": ["sliding_attention"] * 4}, ["layer_types", "sliding_window"]),
        ("qwen3_moe", {"layer_types": ["linear_attention"] * 4}, ["layer_types", "'full_attention'"]),
        ("qwen3_moe", {"use_sliding_window": 1}, ["use_sliding_window = 1"]),
        ("gpt2", {"activation_function": "relu"}, ["activation_function = 'relu'", "'gelu_new'"]),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, ["scale_attn_by_inverse_layer_idx = true", "false"]),
        ("gpt2", {**NO_DROPOUT, "num_attention_heads": 7}, ["num_heads = 7"]),
        ("gpt2", {**NO_DROPOUT, "n_embd": "x", "hidden_size": None}, ["n_embd = 'x'"]),
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
