"""GPT-2's `config.json`, which has names of its own."""

from typing import Any

from fourfold.config.model_config import ModelConfig
from fourfold.huggingface.families import IMPLIED
from fourfold.huggingface.values import number, require

_DEFAULTS = {
    "vocab_size": 50257,
    "n_positions": 1024,
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "layer_norm_epsilon": 1e-5,
    "initializer_range": 0.02,
}
_NAMES = {
    "vocab_size": "vocab_size",
    "max_position": "n_positions",
    "hidden_size": "n_embd",
    "num_layers": "n_layer",
    "num_heads": "n_head",
    "norm_eps": "layer_norm_epsilon",
    "init_std": "initializer_range",
}
_TANH_GELU = ("gelu_new", "gelu_pytorch_tanh")


def read_gpt2(raw: dict[str, Any], source: str) -> dict[str, Any]:
    """Our values of a GPT-2 config. Raises `UserError` for what cannot be run right. Dropout is not applied."""
    require(raw, "activation_function", _TANH_GELU, source)
    for key, value in (
        ("scale_attn_weights", True),
        ("scale_attn_by_inverse_layer_idx", False),
        ("add_cross_attention", False),
    ):
        require(raw, key, (value,), source)
    raw = {**_DEFAULTS, **raw}
    values: dict[str, Any] = {"family": "gpt2", **IMPLIED["gpt2"]}
    for ours, theirs in _NAMES.items():
        values[ours] = number(raw[theirs], theirs, source, float if ours in ("norm_eps", "init_std") else int)
    inner = raw.get("n_inner")
    values["ffn_size"] = 4 * values["hidden_size"] if inner is None else number(inner, "n_inner", source, int)
    values["tie_embeddings"] = bool(raw.get("tie_word_embeddings", True))
    return values


def write_gpt2(model: ModelConfig) -> dict[str, Any]:
    """The keys that describe the model."""
    return {
        **{theirs: getattr(model, ours) for ours, theirs in _NAMES.items()},
        "n_inner": model.ffn_size,
        "n_ctx": model.max_position,
        "activation_function": "gelu_new",
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    }
