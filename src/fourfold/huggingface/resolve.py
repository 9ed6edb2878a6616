"""Turns a run file's `[model]` into a complete and checked `ModelConfig`: preset or Hugging Face folder, dimensions, rules."""

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from fourfold.config.check_model import check_model
from fourfold.config.errors import UserError, did_you_mean, nearest
from fourfold.config.model_config import WITH_OFF, ModelConfig, written_once
from fourfold.config.model_section import ModelSection
from fourfold.config.presets import model_preset
from fourfold.huggingface.config_json import load_config, read_config
from fourfold.huggingface.families import CUSTOM, FAMILIES, SAME_AS, family_of
from fourfold.huggingface.nearest import Nearest, nearest_model

_HEAD_KEYS = {"hidden_size", "num_heads", "key_value_rank", "nope_head_dim", "rope_head_dim"}
"""Keys that replace a preset's `head_dim` by the one that follows from them."""


def resolve_model(section: ModelSection, tokenizer_vocab_size: int | None = None) -> ModelConfig:
    """Preset or Hugging Face folder, overridden by stated dimensions, completed by rules, then checked.

    `tokenizer_vocab_size`: used, padded up to `vocab_multiple`, where the vocabulary is not stated.
    Raises `UserError` naming the key.
    """
    values: dict[str, Any] = {}
    if section.preset is not None and section.hf is not None:
        raise UserError("model.preset and model.hf are both stated; keep one of them")
    if section.preset is not None:
        values = model_preset(section.preset)
    elif section.hf is not None:
        values = read_config(Path(section.hf), section.dropout is not None)
    return _resolved(values, section, tokenizer_vocab_size)


def resolve_nearest(
    section: ModelSection, tokenizer_vocab_size: int | None = None
) -> tuple[ModelConfig, Nearest | None]:
    """Resolves a model as `resolve_model` does, a `config.json` that cannot be trained as the nearest decoder. Raises
    `UserError`."""
    try:
        return resolve_model(section, tokenizer_vocab_size), None
    except UserError as error:
        if section.hf is None or section.preset is not None:
            raise
        near = nearest_model(load_config(Path(section.hf)), str(Path(section.hf) / "config.json"))
        near = replace(near, refused=str(error))
    return _resolved(dict(near.values), section, tokenizer_vocab_size), near


def _resolved(values: dict[str, Any], section: ModelSection, tokenizer_vocab_size: int | None) -> ModelConfig:
    """Overrides the values that were read by stated dimensions, completes and checks them."""
    known = {f.name for f in fields(ModelConfig)}
    stated = {key: getattr(section, key) for key in known if getattr(section, key, None) is not None}
    values.update(stated)
    if "head_dim" not in stated and _HEAD_KEYS & stated.keys():
        values.pop("head_dim", None)
    if stated.get("key_value_rank") and "num_kv_heads" not in stated:
        values.pop("num_kv_heads", None)
    if "vocab_size" not in values and tokenizer_vocab_size is not None:
        multiple = section.vocab_multiple or 64
        values["vocab_size"] = -(-tokenizer_vocab_size // multiple) * multiple
    name = values.get("family", CUSTOM)
    if name in SAME_AS:
        name = values["family"] = SAME_AS[name]
    if name in FAMILIES:
        values = {**FAMILIES[name].implied, **values}
    elif name != CUSTOM:
        names = (*FAMILIES, CUSTOM)
        raise UserError(
            f"model.family = {name!r} is unknown; {did_you_mean(name, names)}allowed: {', '.join(names)}; a value that works: "
            f"{nearest(name, names) or 'llama'}"
        )
    _drop_unused(values, stated)
    config = _complete(values, section.hf)
    if tokenizer_vocab_size is not None and config.vocab_size < tokenizer_vocab_size:
        raise UserError(
            f"model.vocab_size = {config.vocab_size} is smaller than the tokenizer's {tokenizer_vocab_size} entries; "
            f"leave it out, or state at least {tokenizer_vocab_size}"
        )
    return config


def _complete(values: dict[str, Any], folder: str | None) -> ModelConfig:
    """Fills in what follows from what is stated, some of it by the `config.json` of a folder."""
    all_experts = (
        values.get("num_experts") and not values.get("first_dense_layers") and values.get("moe_period", 1) == 1
    )
    if all_experts and values.get("moe_ffn_size"):
        values.setdefault("ffn_size", values["moe_ffn_size"])
    required = {"num_layers": 4, "hidden_size": 256, "num_heads": 4, "ffn_size": 704, "vocab_size": 4096}
    missing = [key for key in required if key not in values]
    if missing and folder is not None:
        key, example = missing[0], required[missing[0]]
        theirs = FAMILIES.get(values.get("family", ""), FAMILIES["llama"]).their_name(key)
        raise UserError(
            f"{Path(folder) / 'config.json'}: {theirs} is missing; state it there, for example "
            f'"{theirs}": {example}, or in the run file as model.{key}',
            key=key,
        )
    if missing:
        raise UserError(
            f"model.{missing[0]} is missing; state it (for example {missing[0]} = {required[missing[0]]}) "
            f'or name a preset, for example preset = "tiny"',
            key=missing[0],
        )
    if values.get("num_experts") and not values.get("moe_ffn_size"):
        values["moe_ffn_size"] = values["ffn_size"]
    if values.get("mtp_layers"):
        values.setdefault("mtp_loss", _MTP_LOSS)
    if "key_value_rank" in values:
        values.setdefault("head_dim", max(1, values.get("nope_head_dim", 0) + values.get("rope_head_dim", 0)))
    elif "head_dim" not in values:
        if values["hidden_size"] % values["num_heads"]:
            raise UserError(
                f"model.num_heads = {values['num_heads']} does not divide model.hidden_size = {values['hidden_size']}; "
                + _heads_that_work(values)
            )
        values["head_dim"] = values["hidden_size"] // values["num_heads"]
    values.setdefault("num_kv_heads", values["num_heads"])
    config = ModelConfig(**values)
    check_model(config)
    config = replace(config, exceptions=written_once(config))
    return replace(config, family=family_of(config))


_MTP_LOSS = 0.3
"""Weight of multi-token prediction in the first 10T of DeepSeek-V3's 14.8T tokens (section 4.2)."""
_NONE_AS_ZERO = ("key_value_rank", "query_rank", "capacity_factor", *WITH_OFF)
_NEEDS: dict[str, tuple[str, ...]] = {
    "num_experts": (
        "top_k",
        "moe_ffn_size",
        "num_shared_experts",
        "shared_expert_gate",
        "first_dense_layers",
        "moe_period",
        "router",
        "router_bias",
        "expert_bias",
        "expert_scaling",
        "normalize_top_k",
        "routed_scaling",
        "num_expert_groups",
        "top_groups",
        "balance_loss",
        "z_loss",
        "balance_bias_speed",
        "capacity_factor",
    ),
    "key_value_rank": ("query_rank", "rope_head_dim", "nope_head_dim", "value_head_dim"),
    "delta_value_heads": (
        "delta_key_heads",
        "delta_key_dim",
        "delta_value_dim",
        "delta_projection",
        "delta_negative_eigenvalues",
        "delta_norm_eps",
        "delta_step_bias",
    ),
    "mtp_layers": ("mtp_loss",),
    "mup_base_hidden_size": ("mup_base_head_dim",),
}
"""Keys that mean nothing where another is 0."""
_EXAMPLES = {
    "num_experts": 8,
    "key_value_rank": 512,
    "delta_value_heads": 32,
    "mtp_layers": 1,
    "mup_base_hidden_size": 256,
}
"""Values that work, for messages."""


def _drop_unused(values: dict[str, Any], stated: Mapping[str, Any]) -> None:
    """Takes out what a preset says of experts or MLA where the run file has none of them; refuses what the run file
    itself says of them."""
    defaults = {f.name: f.default for f in fields(ModelConfig)}
    for key in _NONE_AS_ZERO:
        if values.get(key) == 0:
            del values[key]
    for needed, keys in _NEEDS.items():
        if values.get(needed):
            continue
        for key in keys:
            value = stated.get(key, defaults[key])
            if value != defaults[key] and not (key in _NONE_AS_ZERO and value == 0):
                raise UserError(
                    f"model.{key} = {_toml(value)} needs model.{needed} > 0; leave it out, or state for example "
                    f"{needed} = {_EXAMPLES[needed]}"
                )
            values.pop(key, None)
    if stated.get("key_value_rank") == 0 and "rope_interleave" not in stated:
        values.pop("rope_interleave", None)


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _heads_that_work(values: dict[str, Any]) -> str:
    """The most heads, at most as many as stated, with which the rest of the model is legal."""
    hidden = values["hidden_size"]
    for heads in range(min(values["num_heads"], 100_000), 0, -1):
        if hidden % (2 * heads) == 0 and heads % values.get("num_kv_heads", 1) == 0:
            return f"a value that works: num_heads = {heads}, or state head_dim"
    return f"a value that works: head_dim = {max(2, hidden // values['num_heads'] // 2 * 2)}"
