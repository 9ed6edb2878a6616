"""gpt-oss (OpenAI 2025): attention with sinks, within a window in every other layer; experts with biases and a clamped SwiGLU."""

from collections.abc import Mapping
from typing import Any

from fourfold.config.model_config import ModelConfig, YarnScaling
from fourfold.huggingface.family import SILU, Family, Rename, Stacked, TensorNames
from fourfold.huggingface.key import Key, decoder_keys
from fourfold.huggingface.layer_types import layer_types, one_window, read_period, window_of

_WINDOW = 128
_YARN = YarnScaling(factor=32.0, original_max_position=4096, truncate=False)
"""Window and scaling that transformers takes where a folder states none."""


def _read(raw: Mapping[str, Any], values: dict[str, Any], source: str) -> None:
    read_period(raw, values, source, 2, usual_window=_WINDOW)
    values["attention_output_bias"] = values["qkv_bias"]
    if raw.get("rope_parameters") is None and not raw.get("rope_scaling"):
        values["yarn_scaling"] = _YARN


def _write(model: ModelConfig) -> dict[str, Any]:
    return {
        "intermediate_size": model.moe_ffn_size,
        "layer_types": layer_types(model),
        "sliding_window": window_of(model) or _WINDOW,
    }


def _departs(model: ModelConfig) -> dict[str, Any]:
    output = bool(model.attention_output_bias)
    return one_window(model) | ({"attention_output_bias": output} if output != model.qkv_bias else {})


GPT_OSS = Family(
    name="gpt_oss",
    architecture="GptOssForCausalLM",
    keys=(
        *decoder_keys(num_kv_heads=8, head_dim=64, norm_eps=1e-5, rope_theta=150000.0, max_position=131072),
        Key("qkv_bias", "attention_bias", bool, True),
        Key("num_experts", "num_local_experts", default=128, aliases=("num_experts",)),
        Key("top_k", "num_experts_per_tok", default=4),
        Key("swiglu_limit", "swiglu_limit", float, 7.0),
        Key("swiglu_alpha", "swiglu_alpha", float, 1.702),
        Key("balance_loss", "router_aux_loss_coef", float, 0.001, zero=True, switch="output_router_logits"),
    ),
    states={"hidden_act": SILU},
    lacks=("mlp_bias",),
    read=_read,
    reads=("layer_types", "sliding_window", "experts_per_token", "initial_context_length"),
    write=_write,
    fixed={
        "attention_sinks": True,
        "router_bias": True,
        "expert_bias": True,
        "activation": "clamped_swiglu",
    },
    usual={"qkv_bias": True, "attention_output_bias": True},
    may=("moe_ffn_size", "sliding_window", "attention_output_bias"),
    by_layer=("sliding_window",),
    needs=("num_experts",),
    departs=_departs,
    tensors=TensorNames(modules=(Rename("mlp.router", ("mlp.gate",)),), stacked=Stacked(interleaved=True)),
)
