"""Hugging Face `config.json`, read into this package's names and written back."""

import json
import math
from pathlib import Path
from typing import Any

from fourfold.config.errors import UserError
from fourfold.config.model_config import ModelConfig
from fourfold.config.schema import RopeScaling

_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
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
}
"""What transformers takes where a config.json leaves a key out, beside `rms_norm_eps` = 1e-6 for all."""


def read_config(folder: Path) -> dict[str, Any]:
    """The dimensions in `folder/config.json`, by this package's names. Raises `UserError` for what cannot be run right."""
    path = folder / "config.json"
    try:
        raw = json.loads(path.read_text())
    except FileNotFoundError:
        raise UserError(f"model.hf: {path} does not exist; name a folder that holds a config.json") from None
    except (OSError, ValueError) as error:
        raise UserError(f"model.hf: {path} is not readable JSON: {error}") from None
    if not isinstance(raw, dict):
        raise UserError(f"model.hf: {path} holds no JSON object")
    return parse_config(raw, str(path))


def parse_config(raw: dict[str, Any], source: str = "config.json") -> dict[str, Any]:
    """As `read_config`, from the parsed object."""
    family = raw.get("model_type")
    if not isinstance(family, str) or family not in _ARCHITECTURES:
        raise UserError(f"{source}: model_type = {family!r} is not supported; allowed: {', '.join(_ARCHITECTURES)}")
    raw = {"rms_norm_eps": 1e-6, **_DEFAULTS[family], **raw}
    values: dict[str, Any] = {"family": family}
    for ours, theirs in _NAMES.items():
        if raw.get(theirs) is not None:
            values[ours] = _number(raw[theirs], theirs, source, float if ours in ("norm_eps", "init_std") else int)
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
    if family == "qwen3":
        values["qk_norm"] = True
    window = raw.get("sliding_window")
    if window is not None and (family == "mistral" or raw.get("use_sliding_window")):
        values["sliding_window"] = _number(window, "sliding_window", source, int)
    _read_rope(raw, values, source)
    return values


_LLAMA31 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def _read_rope(raw: dict[str, Any], values: dict[str, Any], source: str) -> None:
    """transformers 4 has `rope_theta` and `rope_scaling`; transformers 5 has one table `rope_parameters`."""
    for key in ("rope_scaling", "rope_parameters"):
        if not isinstance(raw.get(key) or {}, dict):
            raise UserError(f"{source}: {key} = {raw[key]!r} must be an object or null")
    rope = {**(raw.get("rope_scaling") or {}), **(raw.get("rope_parameters") or {})}
    theta = rope.get("rope_theta", raw.get("rope_theta"))
    if theta is not None:
        values["rope_theta"] = _number(theta, "rope_theta", source, float)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return
    if kind != "llama3":
        raise UserError(f"{source}: rope_type = {kind!r} is not supported; allowed: 'default', 'llama3'")
    scaling: dict[str, Any] = {}
    for ours, theirs, number in (
        ("factor", "factor", float),
        ("low_freq_factor", "low_freq_factor", float),
        ("high_freq_factor", "high_freq_factor", float),
        ("original_max_position", "original_max_position_embeddings", int),
    ):
        if theirs not in rope:
            raise UserError(
                f"{source}: rope scaling 'llama3' lacks the key {theirs!r}; Llama 3.1 has {_LLAMA31[theirs]}"
            )
        scaling[ours] = _number(rope[theirs], theirs, source, number)
    values["rope_scaling"] = RopeScaling(**scaling)


def _number(value: Any, key: str, source: str, kind: type) -> Any:
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf
    if not good or (kind is int and value != int(value)):
        what = "a positive integer" if kind is int else "a positive number"
        raise UserError(f"{source}: {key} = {value!r} is not supported; it must be {what}")
    return kind(value)


def to_config(model: ModelConfig, dtype: str = "float32", eos: int | None = None) -> dict[str, Any]:
    """The object of a `config.json` that transformers 4 and 5 both load."""
    raw: dict[str, Any] = {theirs: getattr(model, ours) for ours, theirs in _NAMES.items()}
    scaling: dict[str, Any] = {"rope_type": "default"}
    if model.rope_scaling is not None:
        scaling = {
            "rope_type": "llama3",
            "factor": model.rope_scaling.factor,
            "low_freq_factor": model.rope_scaling.low_freq_factor,
            "high_freq_factor": model.rope_scaling.high_freq_factor,
            "original_max_position_embeddings": model.rope_scaling.original_max_position,
        }
    raw.update(
        architectures=[_ARCHITECTURES[model.family]],
        model_type=model.family,
        tie_word_embeddings=model.tie_embeddings,
        hidden_act="silu",
        rope_theta=model.rope_theta,
        rope_scaling=scaling if model.rope_scaling is not None else None,
        rope_parameters={**scaling, "rope_theta": model.rope_theta},
        torch_dtype=dtype,
        dtype=dtype,
        use_cache=True,
        attention_dropout=0.0,
    )
    if model.family in ("llama", "qwen3"):
        raw["attention_bias"] = False
    if model.family == "llama":
        raw["mlp_bias"] = False
    if model.family in ("qwen2", "qwen3"):
        raw["use_sliding_window"] = False
    if model.family == "mistral":
        raw["sliding_window"] = model.sliding_window
    if eos is not None:
        raw["eos_token_id"] = eos
        raw["bos_token_id"] = eos
    return raw
