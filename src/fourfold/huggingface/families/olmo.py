"""OLMo-2: norms after attention and feed-forward, and of queries and keys over all heads (OLMo team 2024, section 3.2). OLMo-3:
with windows in three layers of four; the others may have YaRN (OLMo team 2025). OLMo-Hybrid: three layers of four have the gated
delta rule, with negative eigenvalues, and norms before it; the fourth is OLMo-2's, perhaps without rotation (OLMo team 2026)."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from fourfold.config.errors import UserError, shortened
from fourfold.config.model_config import ModelConfig
from fourfold.huggingface.family import FALSE, SCALINGS, SILU, EqualParts, Family, Rename, TensorNames
from fourfold.huggingface.key import Key, decoder_keys
from fourfold.huggingface.layer_types import (
    FULL,
    LINEAR,
    SLIDING,
    layer_types,
    of_kinds,
    other_mixers,
    read_mixers,
    read_period,
    stated_kinds,
    two_kinds,
    window_of,
)
from fourfold.huggingface.rope import ROPE_KEYS, read_ropes, write_ropes

_PERIOD, _WINDOW, _BASE = 4, 4096, 5e5
_ROPES = {FULL: ("rope_theta", _BASE), SLIDING: ("", _BASE)}
_FIXED = {"norm_placement": "post", "qk_norm": True, "qk_norm_over": "all"}


def _read(raw: Mapping[str, Any], values: dict[str, Any], source: str) -> None:
    ropes = read_ropes(raw, _ROPES, OLMO3.rope_types, source)
    kinds = stated_kinds(raw, values.get("num_layers", 0), source) or [SLIDING]
    if (
        raw.get("rope_theta") not in (None, _BASE)
        and SLIDING in kinds
        and not (raw.get("rope_parameters") or {}).get(SLIDING)
    ):
        tables = {kind: {"rope_type": "default", "rope_theta": raw["rope_theta"]} for kind in _ROPES}
        raise UserError(
            f"{source}: rope_theta = {shortened(raw['rope_theta'])}: transformers 5 takes it for layers of full attention alone, "
            f"version 4 for all; state both instead: rope_parameters = {tables}"
        )
    read_period(raw, values, source, _PERIOD, ropes)


def _write(model: ModelConfig) -> dict[str, Any]:
    return {
        "layer_types": layer_types(model),
        "sliding_window": window_of(model) or _WINDOW,
        **write_ropes(of_kinds(model), _ROPES),
    }


OLMO2 = Family(
    name="olmo2",
    architecture="Olmo2ForCausalLM",
    keys=decoder_keys(max_position=2048, norm_eps=1e-5),
    states={"hidden_act": SILU, "attention_bias": FALSE},
    lacks=("mlp_bias",),
    # transformers' own pad_token_id names a token of a small vocabulary, whose row of the embedding would get no gradient
    constants={"pad_token_id": None},
    fixed=_FIXED,
)
OLMO3 = Family(
    name="olmo3",
    architecture="Olmo3ForCausalLM",
    keys=decoder_keys("rope_theta", max_position=2048, norm_eps=1e-5),
    states=OLMO2.states,
    lacks=OLMO2.lacks,
    constants=OLMO2.constants,
    read=_read,
    reads=("layer_types", "sliding_window"),
    write=_write,
    fixed=_FIXED,
    may=("sliding_window", "rope_theta"),
    by_layer=("sliding_window", *ROPE_KEYS),
    ropes=_ROPES,
    rope_types=("default", "llama3", "yarn", "linear"),  # of each kind of layer
    departs=two_kinds,
)


_BASE_OF_ALL = 1e4
"""The rotary base that transformers takes for OLMo-Hybrid where no key states one; where one is null, nothing is rotated."""
_ROTARY = ("rope_theta", *SCALINGS)
_PLACEMENT = {"attention": "post", "gated_delta": "pre"}


def _read_hybrid(raw: Mapping[str, Any], values: dict[str, Any], source: str) -> None:
    heads, layers = values.get("num_heads", 0), values.get("num_layers", 0)
    for key in ("delta_key_heads", "delta_value_heads"):
        values.setdefault(key, heads)
    if values["delta_key_heads"]:
        values.setdefault("delta_key_dim", int(0.75 * values.get("hidden_size", 0) / values["delta_key_heads"]))
        values.setdefault("delta_value_dim", 2 * values["delta_key_dim"])
    kinds = stated_kinds(raw, layers, source, (FULL, LINEAR))
    if kinds is None:
        kinds = [LINEAR if (layer + 1) % min(_PERIOD, layers) else FULL for layer in range(layers)]
    if layers and len(set(kinds)) < 2:
        raise UserError(
            f"{source}: layer_types = {shortened(kinds)}: this family has layers of both kinds; allowed: at least one "
            f"{LINEAR!r} and one {FULL!r}, for example {[LINEAR] * (_PERIOD - 1) + [FULL]} for num_hidden_layers = {_PERIOD}"
        )
    read_mixers(values, kinds, "gated_delta", norm_placement="post")
    if not _rotates(raw):
        for key in _ROTARY:
            values.pop(key, None)
        values["positions"] = "none"


def _rotates(raw: Mapping[str, Any]) -> bool:
    table = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    return table.get("rope_theta", raw.get("rope_theta", _BASE_OF_ALL)) is not None


def _write_hybrid(model: ModelConfig) -> dict[str, Any]:
    written: dict[str, Any] = {"layer_types": layer_types(model)}
    if model.positions == "none":
        written |= {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": None}}
    return written


def _hybrid_departs(model: ModelConfig) -> dict[str, Any]:
    found = other_mixers(model, "gated_delta")
    mixers = {each.mixer for each in model.layer_configs}
    if len(mixers) < 2 or any(each.norm_placement != _PLACEMENT.get(each.mixer) for each in model.layer_configs):
        found["exceptions"] = model.exceptions
    if model.positions == "learned":
        found["positions"] = "learned"
    if model.positions == "none":  # which is written in their place
        usual = {each.name: each.default for each in fields(ModelConfig)}
        found |= {key: getattr(model, key) for key in _ROTARY if getattr(model, key) != usual[key]}
    return found


OLMO_HYBRID = Family(
    name="olmo_hybrid",
    architecture="OlmoHybridForCausalLM",
    keys=(
        *decoder_keys(max_position=65536),
        Key("delta_key_heads", "linear_num_key_heads"),
        Key("delta_value_heads", "linear_num_value_heads"),
        Key("delta_key_dim", "linear_key_head_dim"),
        Key("delta_value_dim", "linear_value_head_dim"),
        Key("delta_negative_eigenvalues", "linear_allow_neg_eigval", bool, True),
        Key("convolution_kernel", "linear_conv_kernel_dim", default=4),
    ),
    states=OLMO2.states,
    lacks=OLMO2.lacks,
    constants=OLMO2.constants,
    read=_read_hybrid,
    # the others are of initial values, and those here are the usual ones
    reads=(
        "layer_types",
        *(f"linear_{each}" for each in ("a_log_min", "a_log_max", "dt_min", "dt_max", "dt_init_floor")),
    ),
    write=_write_hybrid,
    fixed={"qk_norm": True, "qk_norm_over": "all", "delta_projection": "separate", "delta_norm_eps": 1e-5},
    usual={"delta_negative_eigenvalues": True, "delta_step_bias": "log_uniform"},
    may=("mixer", "norm_placement", "positions"),
    by_layer=("mixer", "norm_placement"),
    needs=("delta_value_heads",),
    departs=_hybrid_departs,
    tensors=TensorNames(
        modules=(
            Rename("attention_layer_norm", ("input_layernorm",)),
            Rename("feedforward_layer_norm", ("post_attention_layernorm",), beside="input_layernorm"),
            *(Rename(f"linear_attn.{each}_proj", (f"linear_attn.in_proj_{each}",)) for each in "qkvab"),
            Rename("linear_attn.g_proj", ("linear_attn.in_proj_z",)),
            Rename("linear_attn.o_proj", ("linear_attn.out_proj",)),
            Rename("linear_attn.o_norm", ("linear_attn.norm",)),
            *(Rename(f"linear_attn.{each}_conv1d", (f"linear_attn.conv_{each}",)) for each in "qkv"),
        ),
        read_too=(Rename("feedforward_layer_norm", ("post_attention_layernorm",)),),
        equal_parts=(
            EqualParts(
                tuple(f"linear_attn.{each}_conv1d" for each in "qkv"),
                tuple(f"linear_attn.conv_{each}" for each in "qkv"),
            ),
        ),
    ),
)
