"""Kimi-Linear's two ways to write a `config.json`, released files' and transformers', mean one model; others are refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fourfold.config import ModelConfig, ModelSection, UserError
from fourfold.huggingface import FAMILIES, resolve_model, to_config
from fourfold.huggingface.config_json import unread_keys
from fourfold.huggingface.families import CUSTOM, family_of
from fourfold.huggingface.layer_types import layer_types
from tests.huggingface.architectures import STATED, resolve

ATTENDING = [4, 8, 12, 16, 20, 24, 27]
RELEASED: dict[str, Any] = {
    "model_type": "kimi_linear", "architectures": ["KimiLinearForCausalLM"], "bos_token_id": 163584, "dtype": "bfloat16",
    "auto_map": {"AutoConfig": "configuration_kimi.KimiLinearConfig"}, "eos_token_id": 163586, "first_k_dense_replace": 1,
    "head_dim": 72, "hidden_act": "silu", "hidden_size": 2304, "initializer_range": 0.02, "intermediate_size": 9216,
    "kv_lora_rank": 512,
    "linear_attn_config": {
        "full_attn_layers": ATTENDING, "head_dim": 128, "kda_layers": [n for n in range(1, 28) if n not in ATTENDING],
        "num_heads": 32, "short_conv_kernel_size": 4,
    },
    "mla_use_nope": True, "model_max_length": 1048576, "moe_intermediate_size": 1024, "moe_layer_freq": 1,
    "moe_renormalize": True, "moe_router_activation_func": "sigmoid", "num_attention_heads": 32, "num_expert_group": 1,
    "num_experts": 256, "num_experts_per_token": 8, "num_hidden_layers": 27, "num_key_value_heads": 32,
    "num_nextn_predict_layers": 0, "num_shared_experts": 1, "pad_token_id": 163839, "q_lora_rank": None, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 10000.0, "routed_scaling_factor": 2.446,
    "tie_word_embeddings": False, "topk_group": 1, "use_cache": True, "use_grouped_topk": True, "v_head_dim": 128,
    "vocab_size": 163840,
}  # fmt: skip


def _read(raw: dict[str, Any], folder: Path) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps(raw))
    return resolve_model(ModelSection(hf=str(folder)))


def test_the_released_config_is_the_preset(tmp_path: Path) -> None:
    """And what transformers writes of it."""
    from transformers import AutoConfig

    preset = resolve(preset="kimi-linear-48b-a3b")
    model = _read(RELEASED, tmp_path)
    assert replace(model, balance_bias_speed=preset.balance_bias_speed) == preset
    assert unread_keys(RELEASED, FAMILIES["kimi_linear"]) == []
    theirs = AutoConfig.from_pretrained(tmp_path)
    assert theirs.layer_types == layer_types(model)
    theirs.save_pretrained(tmp_path / "saved")
    raw = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert {"layer_types", "mlp_layer_types", "linear_num_heads"} <= set(raw)
    for written in (raw, {key: value for key, value in raw.items() if key != "linear_attn_config"}, to_config(model)):
        assert _read(written, tmp_path) == model


def test_keys_left_out_mean_what_they_mean_to_transformers(tmp_path: Path) -> None:
    from transformers import AutoConfig

    raw = {
        "model_type": "kimi_linear",
        "num_hidden_layers": 9,
        "vocab_size": 99,
        "hidden_size": 64,
        "intermediate_size": 8,
    }
    model = _read({**raw, "num_attention_heads": 32}, tmp_path)
    theirs = AutoConfig.from_pretrained(tmp_path)
    assert layer_types(model) == theirs.layer_types
    assert [model.is_moe(layer) for layer in range(9)] == [kind == "sparse" for kind in theirs.mlp_layer_types]
    assert (model.delta_key_heads, model.delta_value_dim, model.convolution_kernel) == (
        theirs.linear_num_heads,
        theirs.linear_head_dim,
        theirs.linear_conv_kernel_dim,
    )
    assert (model.num_experts, model.top_k, model.routed_scaling, model.max_position) == (
        theirs.num_local_experts,
        theirs.num_experts_per_tok,
        theirs.routed_scaling_factor,
        theirs.max_position_embeddings,
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"linear_attn_config": []}, "linear_attn_config = "),
        ({"linear_attn_config": {"gate_lower_bound": -5.0}}, "linear_attn_config.'gate_lower_bound' is not supported"),
        (
            {"linear_attn_config": {"kda_layers": [1, 2], "full_attn_layers": [2, 3]}},
            "full_attn_layers = .* from 1 to 27",
        ),
        ({"linear_attn_config": {"kda_layers": [0], "full_attn_layers": [1]}}, "kda_layers = .* from 1 to 27"),
        ({"linear_attn_config": {"kda_layers": "all", "full_attn_layers": [1]}}, "kda_layers = "),
        ({"linear_attn_config": {"kda_layers": [1, 3], "full_attn_layers": [2]}}, "layer 4 is neither in .*kda_layers"),
        (
            {"linear_attn_config": {**RELEASED["linear_attn_config"], "num_heads": 3}, "linear_num_heads": 4},
            "contradict",
        ),
        ({"layer_types": ["linear_attention"] * 27}, "layer_types and linear_attn_config contradict each other"),
        ({"mlp_layer_types": ["sparse"] * 27}, "mlp_layer_types and first_k_dense_replace = 1 contradict"),
        ({"mlp_layer_types": ["sparse"] * 26 + ["dense"]}, "mlp_layer_types = .* 'dense' for the first layers"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings = true is not supported"),
        ({"mla_use_nope": False}, "mla_use_nope = false is not supported"),
        ({"num_nextn_predict_layers": 1}, "num_nextn_predict_layers = 1 is not supported"),
        ({"moe_router_activation_func": "softmax"}, "moe_router_activation_func"),
    ],
    ids=str,
)
def test_what_is_another_model_is_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=words):
        _read({**RELEASED, **changes}, tmp_path)


@pytest.mark.parametrize(
    ("name", "mixer"), [("qwen3_next", "kimi_delta"), ("kimi_linear", "gated_delta"), ("lfm2", "kimi_delta")]
)
def test_a_family_with_another_recurrence_is_none(name: str, mixer: str) -> None:
    """Families call their own mixer `linear_attention`, whatever its rule is."""
    heads = {"delta_key_heads": 4, "delta_value_heads": 4, "delta_key_dim": 6, "delta_value_dim": 6}
    model = resolve(**{**STATED[name], **heads, "mixer": mixer})
    assert model.family != name
    assert family_of(model) == CUSTOM


def test_tied_embeddings_are_not_written_to_be_lost() -> None:
    assert resolve(**STATED["kimi_linear"], tie_embeddings=True).family == CUSTOM
