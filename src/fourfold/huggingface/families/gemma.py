"""Gemma-2: norms before and after each half with gains of 1 + w, a scaled embedding, GELU gates, windows in every other layer, and
caps of scores and logits (Gemma team 2024). Gemma-3's decoder of text: norms of queries and keys in place of the caps, and windows
in five layers of six, which have rotary positions of their own (Gemma team 2025)."""

from collections.abc import Mapping
from typing import Any

from fourfold.config.model_config import ModelConfig
from fourfold.huggingface.family import FALSE, Family
from fourfold.huggingface.key import Key, decoder_keys, number
from fourfold.huggingface.layer_types import FULL, SLIDING, layer_types, of_kinds, read_period, two_kinds, window_of
from fourfold.huggingface.rope import ROPE_KEYS, read_ropes, write_ropes

_GELU = ("gelu_pytorch_tanh",)
_STATES = {
    "hidden_activation": _GELU,
    "hidden_act": _GELU,  # in released files, and read by nobody
    "attention_bias": FALSE,
    "use_bidirectional_attention": FALSE,
}
_ROPES = {FULL: ("rope_theta", 1e6), SLIDING: ("rope_local_base_freq", 1e4)}
_SCALE, _USUAL_SCALE, _WINDOW = "query_pre_attn_scalar", 256, 4096
_PERIOD = "sliding_window_pattern"
_READS = (_SCALE, "layer_types", "sliding_window", "sliding_window_size", "cache_implementation")


def _read_scale(raw: Mapping[str, Any], values: dict[str, Any], source: str) -> None:
    scalar = number(raw.get(_SCALE, _USUAL_SCALE), _SCALE, source, int)
    if scalar != values.get("head_dim"):
        values["attention_scale"] = scalar**-0.5


def _scalar(model: ModelConfig) -> int:
    """The number of whose root the scale is the inverse."""
    return model.head_dim if model.attention_scale is None else max(1, round(model.attention_scale**-2))


def _departs(model: ModelConfig) -> dict[str, Any]:
    found = two_kinds(model)
    if model.attention_scale not in (None, _scalar(model) ** -0.5):
        found["attention_scale"] = model.attention_scale
    if model.hidden_size % model.num_heads:  # transformers refuses that, though heads have a width of their own
        found["num_heads"] = model.num_heads
    return found


def _write(model: ModelConfig) -> dict[str, Any]:
    return {
        _SCALE: _scalar(model),
        "layer_types": layer_types(model),
        "sliding_window": window_of(model) or _WINDOW,
    }


def _read_gemma2(raw: Mapping[str, Any], values: dict[str, Any], source: str) -> None:
    _read_scale(raw, values, source)
    read_period(raw, values, source, 2)


def _read_gemma3(raw: Mapping[str, Any], values: dict[str, Any], source: str) -> None:
    _read_scale(raw, values, source)
    period = number(raw.get(_PERIOD, 6), _PERIOD, source, int)
    read_period(raw, values, source, period, read_ropes(raw, _ROPES, GEMMA3.rope_types, source))


def _write_gemma3(model: ModelConfig) -> dict[str, Any]:
    return {**_write(model), **write_ropes(of_kinds(model), _ROPES)}


_FIXED = {"norm_placement": "sandwich", "zero_centered_norm": True, "scaled_embedding": True, "activation": "gelu"}
_SIZES = {"num_heads": 8, "num_kv_heads": 4, "head_dim": 256}
GEMMA2 = Family(
    name="gemma2",
    architecture="Gemma2ForCausalLM",
    keys=(
        *decoder_keys(vocab_size=256000, max_position=8192, **_SIZES),
        Key("attention_softcap", "attn_logit_softcapping", float, 50.0),
        Key("logit_softcap", "final_logit_softcapping", float, 30.0),
    ),
    states=_STATES,
    constants={"pad_token_id": None},
    read=_read_gemma2,
    reads=_READS,
    write=_write,
    fixed=_FIXED,
    usual={"tie_embeddings": True},
    may=("attention_scale", "sliding_window"),
    by_layer=("sliding_window",),
    departs=_departs,
)
GEMMA3 = Family(
    name="gemma3_text",
    architecture="Gemma3ForCausalLM",
    keys=(
        *decoder_keys("rope_theta", vocab_size=262208, max_position=131072, **_SIZES),
        Key("logit_softcap", "final_logit_softcapping", float),
    ),
    # transformers' code of Gemma-3 does not cap scores, whatever the key says
    states={**_STATES, "attn_logit_softcapping": (None,)},
    # transformers' own pad_token_id names a token, whose row of the embedding would get no gradient
    constants={"pad_token_id": None},
    read=_read_gemma3,
    reads=(*_READS, _PERIOD, "rope_local_base_freq"),
    write=_write_gemma3,
    fixed={**_FIXED, "qk_norm": True},
    usual={"tie_embeddings": True},
    may=("attention_scale", "sliding_window", "rope_theta"),
    by_layer=("sliding_window", *ROPE_KEYS),
    ropes=_ROPES,
    rope_types=("default", "llama3", "yarn", "linear"),  # of each kind of layer
    departs=_departs,
)
