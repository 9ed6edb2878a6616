"""Hugging Face `config.json`, read into this package's names and written back."""

import json
from pathlib import Path
from typing import Any

from fourfold.config.errors import UserError
from fourfold.config.model_config import ModelConfig
from fourfold.huggingface.families import nearest_family
from fourfold.huggingface.gpt2 import read_gpt2, write_gpt2
from fourfold.huggingface.moe import read_experts, write_experts
from fourfold.huggingface.rope import read_rope, write_rope
from fourfold.huggingface.values import number

_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "gpt2": "GPT2LMHeadModel",
}
_NAMES = {
    "num_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "ffn_size": "intermediate_size",
    "vocab_size": "vocab_size",
    "norm_eps": "rms_norm_eps",
    "max_position": "max_position_embeddings",
    "init_std": "initializer_range",
}
_DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {"max_position_embeddings": 2048},
    "mistral": {"max_position_embeddings": 131072, "num_key_value_heads": 8, "sliding_window": 4096},
    "qwen2": {"max_position_embeddings": 32768, "num_key_value_heads": 32},
    "qwen3": {"max_position_embeddings": 32768, "num_key_value_heads": 32, "head_dim": 128},
    "mixtral": {"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 1e6},
    "qwen3_moe": {"max_position_embeddings": 32768, "num_key_value_heads": 4},
    "deepseek_v3": {"max_position_embeddings": 4096},
}
"""What transformers takes where a config.json leaves a key out, beside `rms_norm_eps` = 1e-6 for most."""


def read_config(folder: Path) -> dict[str, Any]:
    """The dimensions in `folder/config.json`, by this package's names. Raises `UserError` for what cannot be run right."""
    return parse_config(load_config(folder), str(folder / "config.json"))


def load_config(folder: Path) -> dict[str, Any]:
    """The object in `folder/config.json`. Raises `UserError`."""
    path = folder / "config.json"
    try:
        raw = json.loads(path.read_text())
    except FileNotFoundError:
        raise UserError(f"model.hf: {path} does not exist; name a folder that holds a config.json") from None
    except (OSError, ValueError) as error:
        raise UserError(f"model.hf: {path} is not readable JSON: {error}") from None
    if not isinstance(raw, dict):
        raise UserError(f"model.hf: {path} holds no JSON object")
    return raw


def parse_config(raw: dict[str, Any], source: str = "config.json") -> dict[str, Any]:
    """As `read_config`, from the parsed object."""
    family = raw.get("model_type")
    if not isinstance(family, str) or family not in _ARCHITECTURES:
        raise UserError(
            f"{source}: model_type = {family!r} is not supported; allowed: {', '.join(_ARCHITECTURES)}; others can be planned "
            "(fourfold plan --model)"
        )
    if family == "gpt2":
        return read_gpt2(raw, source)
    raw = {"rms_norm_eps": 1e-6, **_DEFAULTS.get(family, {}), **raw}
    values: dict[str, Any] = {"family": family}
    for ours, theirs in _NAMES.items():
        if raw.get(theirs) is not None:
            values[ours] = number(raw[theirs], theirs, source, float if ours in ("norm_eps", "init_std") else int)
    values["tie_embeddings"] = bool(raw.get("tie_word_embeddings", False))
    activation = raw.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise UserError(f"{source}: hidden_act = {activation!r} is not supported; allowed: 'silu'")
    if raw.get("mlp_bias"):
        raise UserError(f"{source}: mlp_bias = true is not supported; allowed: false")
    if family == "qwen2":
        values["qkv_bias"] = True
    elif raw.get("attention_bias"):
        raise UserError(f"{source}: attention_bias = true is not supported for {family}; allowed: false")
    if family in ("qwen3", "qwen3_moe"):
        values["qk_norm"] = True
    window = raw.get("sliding_window")
    if window is not None and (family in ("mistral", "mixtral") or raw.get("use_sliding_window")):
        values["sliding_window"] = number(window, "sliding_window", source, int)
    read_rope(raw, values, source)
    read_experts(raw, family, values, source)
    return values


def their_name(key: str) -> str:
    """What `config.json` calls a dimension of ours."""
    return _NAMES.get(key, key)


def to_config(model: ModelConfig, dtype: str = "float32", eos: int | None = None) -> dict[str, Any]:
    """The object of a `config.json` that transformers 4 and 5 both load. Raises `UserError` where no family has the model."""
    if model.family not in _ARCHITECTURES:
        near, lacks = nearest_family(model)
        raise UserError(
            f"no Hugging Face family has this model, so it cannot be written as one; the nearest is {near}, which cannot have "
            + ", ".join(f"model.{key} = {value!r}" for key, value in lacks.items())
        )
    raw: dict[str, Any] = {
        "architectures": [_ARCHITECTURES[model.family]],
        "model_type": model.family,
        "tie_word_embeddings": model.tie_embeddings,
        "torch_dtype": dtype,
        "dtype": dtype,
        "use_cache": True,
    }
    raw.update(write_gpt2(model) if model.family == "gpt2" else _write_llama(model))
    if eos is not None:
        raw["eos_token_id"] = eos
        raw["bos_token_id"] = eos
    return raw


def _write_llama(model: ModelConfig) -> dict[str, Any]:
    raw: dict[str, Any] = {theirs: getattr(model, ours) for ours, theirs in _NAMES.items()}
    if model.is_latent:
        del raw["head_dim"]
    raw.update(hidden_act="silu", attention_dropout=0.0, **write_rope(model), **_stated(model))
    raw.update(write_experts(model))
    return raw


def _stated(model: ModelConfig) -> dict[str, Any]:
    """What some families have a key for and others do not."""
    raw: dict[str, Any] = {}
    if model.family in ("llama", "qwen3", "qwen3_moe", "deepseek_v3"):
        raw["attention_bias"] = False
    if model.family == "llama":
        raw["mlp_bias"] = False
    if model.family in ("qwen2", "qwen3", "qwen3_moe"):
        raw["use_sliding_window"] = False
    if model.family in ("mistral", "mixtral"):
        raw["sliding_window"] = model.sliding_window
    return raw
