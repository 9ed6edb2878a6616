"""Hugging Face families: which architecture each one is, what it implies, and which one a model belongs to."""

from typing import Any

from fourfold.config.model_config import ModelConfig

CUSTOM = "custom"
"""A model that no Hugging Face family describes: it trains, and is not exported."""

_DECODER: dict[str, Any] = {
    "norm": "rms",
    "activation": "silu",
    "gated": True,
    "linear_bias": False,
    "positions": "rope",
    "qkv_bias": False,
    "qk_norm": False,
}
_GROUPED: dict[str, Any] = {**_DECODER, "key_value_rank": None, "rope_interleave": False}
_DENSE: dict[str, Any] = {**_GROUPED, "num_experts": 0}
_SOFTMAX: dict[str, Any] = {
    "router": "softmax",
    "routed_scaling": 1.0,
    "num_expert_groups": 1,
    "num_shared_experts": 0,
    "balance_bias_speed": 0.0,
}
_GPT2: dict[str, Any] = {
    "norm": "layer",
    "activation": "gelu",
    "gated": False,
    "linear_bias": True,
    "qkv_bias": True,
    "positions": "learned",
}
_FIXED: dict[str, dict[str, Any]] = {
    "llama": _DENSE,
    "mistral": _DENSE,
    "qwen2": {**_DENSE, "qkv_bias": True},
    "qwen3": {**_DENSE, "qk_norm": True},
    "mixtral": {**_GROUPED, **_SOFTMAX, "moe_period": 1, "normalize_top_k": True, "first_dense_layers": 0},
    "qwen3_moe": {**_GROUPED, **_SOFTMAX, "qk_norm": True},
    "deepseek_v3": {**_DECODER, "moe_period": 1, "router": "sigmoid", "norm_eps": 1e-6},
    "gpt2": {**_DENSE, **_GPT2},
}

IMPLIED: dict[str, dict[str, Any]] = {
    "qwen2": {"qkv_bias": True},
    "qwen3": {"qk_norm": True},
    "qwen3_moe": {"qk_norm": True},
    "deepseek_v3": {"router": "sigmoid", "rope_interleave": True, "norm_eps": 1e-6},
    "gpt2": {**_GPT2, "tie_embeddings": True},
}
"""What a family's name says where a run file does not."""


def family_of(model: ModelConfig) -> str:
    """The Hugging Face family that has this architecture, the stated one where it does; `custom` where none has."""
    for family in (model.family, *_FIXED):
        if family in _FIXED and not departures(model, family):
            return family
    return CUSTOM


def departures(model: ModelConfig, family: str) -> dict[str, Any]:
    """The model's values that the family cannot have, by key."""
    result = {key: getattr(model, key) for key, value in _FIXED[family].items() if getattr(model, key) != value}
    if family in ("mixtral", "qwen3_moe") and not model.num_experts:
        result["num_experts"] = 0
    if family == "deepseek_v3":
        if not model.is_latent:
            result["key_value_rank"] = 0
        if model.num_experts and not model.num_shared_experts:
            result["num_shared_experts"] = 0
        if not model.num_experts:
            result.pop("router", None)
    if family == "gpt2":
        if model.num_kv_heads != model.num_heads:
            result["num_kv_heads"] = model.num_kv_heads
        if model.num_heads * model.head_dim != model.hidden_size:
            result["head_dim"] = model.head_dim
    return result


def nearest_family(model: ModelConfig) -> tuple[str, dict[str, Any]]:
    """The family that has the most of the model, and what it lacks."""
    families = [f for f in _FIXED if not model.num_experts or "num_experts" not in _FIXED[f]]
    return min(((family, departures(model, family)) for family in families), key=lambda pair: len(pair[1]))
