"""From a run file's `[model]` to a complete and checked `ModelConfig`: preset or Hugging Face folder, dimensions, rules."""

import tomllib
from dataclasses import fields, replace
from importlib import resources
from pathlib import Path
from typing import Any

from fourfold.config import huggingface
from fourfold.config.errors import UserError
from fourfold.config.model_config import ModelConfig
from fourfold.config.schema import ModelSection, RopeScaling


def preset_names() -> list[str]:
    """Names that `model.preset` takes."""
    folder = resources.files("fourfold.config") / "presets"
    return sorted(p.name.removesuffix(".toml") for p in folder.iterdir() if p.name.endswith(".toml"))


def resolve_model(section: ModelSection, tokenizer_vocab_size: int | None = None) -> ModelConfig:
    """Preset or Hugging Face folder, overridden by stated dimensions, completed by rules, then checked.

    `tokenizer_vocab_size`: used, padded up to `vocab_multiple`, where the vocabulary is not stated.
    Raises `UserError` naming the key.
    """
    values: dict[str, Any] = {}
    if section.preset is not None and section.hf is not None:
        raise UserError("model.preset and model.hf are both stated; keep one of them")
    if section.preset is not None:
        values = _load_preset(section.preset)
    elif section.hf is not None:
        values = huggingface.read_config(Path(section.hf))
    known = {f.name for f in fields(ModelConfig)}
    stated = {key: getattr(section, key) for key in known if getattr(section, key, None) is not None}
    values.update(stated)
    if "head_dim" not in stated and {"hidden_size", "num_heads"} & stated.keys():
        values.pop("head_dim", None)
    if "vocab_size" not in values and tokenizer_vocab_size is not None:
        multiple = section.vocab_multiple or 64
        values["vocab_size"] = -(-tokenizer_vocab_size // multiple) * multiple
    config = _complete(values)
    if tokenizer_vocab_size is not None and config.vocab_size < tokenizer_vocab_size:
        raise UserError(
            f"model.vocab_size = {config.vocab_size} is smaller than the tokenizer's {tokenizer_vocab_size} entries; "
            f"leave it out, or state at least {tokenizer_vocab_size}"
        )
    return config


def _load_preset(name: str) -> dict[str, Any]:
    if name not in preset_names():
        raise UserError(f"model.preset = {name!r} is unknown; allowed: {', '.join(preset_names())}")
    text = (resources.files("fourfold.config") / "presets" / f"{name}.toml").read_text()
    values = tomllib.loads(text)
    if "rope_scaling" in values:
        values["rope_scaling"] = RopeScaling(**values["rope_scaling"])
    return values


def _complete(values: dict[str, Any]) -> ModelConfig:
    required = {"num_layers": 4, "hidden_size": 256, "num_heads": 4, "ffn_size": 704, "vocab_size": 4096}
    missing = [key for key in required if key not in values]
    if missing:
        raise UserError(
            f"model.{missing[0]} is missing; state it (for example {missing[0]} = {required[missing[0]]}) "
            f'or name a preset, for example preset = "tiny"'
        )
    values.setdefault("qk_norm", values.get("family") == "qwen3")
    values.setdefault("qkv_bias", values.get("family") == "qwen2")
    if "head_dim" not in values:
        if values["hidden_size"] % values["num_heads"]:
            raise UserError(
                f"model.num_heads = {values['num_heads']} does not divide model.hidden_size = {values['hidden_size']}; "
                + _heads_that_work(values)
            )
        values["head_dim"] = values["hidden_size"] // values["num_heads"]
    values.setdefault("num_kv_heads", values["num_heads"])
    config = ModelConfig(**values)
    if config.num_heads % config.num_kv_heads:
        fit = max(d for d in range(1, config.num_kv_heads + 1) if config.num_heads % d == 0)
        raise UserError(
            f"model.num_kv_heads = {config.num_kv_heads} does not divide model.num_heads = {config.num_heads}; "
            f"a value that works: num_kv_heads = {fit}"
        )
    if config.head_dim % 2:
        raise UserError(
            f"model.head_dim = {config.head_dim} is odd; rotary embedding needs an even one, for example "
            f"{config.head_dim + 1}"
        )
    scaling = config.rope_scaling
    if scaling is not None and scaling.low_freq_factor >= scaling.high_freq_factor:
        raise UserError(
            f"model.rope_scaling: low_freq_factor = {scaling.low_freq_factor} is not below high_freq_factor = "
            f"{scaling.high_freq_factor}; values that work: low_freq_factor = 1.0, high_freq_factor = 4.0"
        )
    if config.qk_norm and config.qkv_bias:
        raise UserError(
            "model.qk_norm = true and model.qkv_bias = true together are no model that Hugging Face has; "
            "a value that works: qkv_bias = false"
        )
    return replace(config, family=_family(config))


def _family(config: ModelConfig) -> str:
    """The Hugging Face family that has this architecture; the stated one where it does."""
    if config.qk_norm:
        return "qwen3"
    if config.qkv_bias:
        return "qwen2"
    return config.family if config.family in ("llama", "mistral") else "llama"


def _heads_that_work(values: dict[str, Any]) -> str:
    """The most heads, at most as many as stated, with which the rest of the model is legal."""
    hidden = values["hidden_size"]
    for heads in range(values["num_heads"], 0, -1):
        if hidden % (2 * heads) == 0 and heads % values.get("num_kv_heads", 1) == 0:
            return f"a value that works: num_heads = {heads}, or state head_dim"
    return f"a value that works: head_dim = {max(2, hidden // values['num_heads'] // 2 * 2)}"
