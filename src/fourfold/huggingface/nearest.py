"""Hugging Face models that no program trains here, as the nearest decoder of which programs are made: to be planned."""

from dataclasses import dataclass
from typing import Any

from fourfold.config.errors import UserError
from fourfold.huggingface.config_json import parse_config
from fourfold.huggingface.families import FAMILIES
from fourfold.huggingface.nearest_keys import (
    LAYER_NORM,
    LAYER_NORM_KEYS,
    LEARNED,
    TEXT,
    TIED,
    AskedKeys,
    flattened,
    is_gated,
    name_of,
    numbers,
    sizes,
    unread_keys,
)

_TILE = 16
"""Sizes of experts are multiples of it."""
_NO_DECODER = {
    "t5", "mt5", "bart", "mbart", "pegasus", "whisper", "vit", "clip", "siglip", "dinov2", "bert-generation",
}  # fmt: skip
_OTHER_LAYERS = {
    "mamba", "mamba2", "falcon_mamba", "rwkv", "jamba", "bamba", "zamba", "zamba2", "recurrent_gemma", "nemotron_h", "falcon_h1",
    "granitemoehybrid", "lfm2", "lfm2_moe", "minimax", "plamo2", "longcat_flash", "doge", "hrm_text",
    "moshi", "jetmoe",
}  # fmt: skip
_OTHER_KEYS = (
    "hybrid_override_pattern", "attn_layer_period", "layers_block_type", "full_attention_interval", "conv_L_cache", "state_size",
    "ssm_cfg", "lru_width", "linear_attn_config", "mamba_d_state", "linear_num_key_heads", "rescale_every",
)  # fmt: skip
"""Keys of families whose layers are not attention followed by a feed-forward."""
_ATTENTION = {"full_attention", "sliding_attention", "chunked_attention", "indexed_attention"}
_BIASES = ("attention_bias", "qkv_bias", "use_qkv_bias", "add_qkv_bias", "use_bias", "add_bias_linear")
_QK_NORM = ("olmoe",)
_SIDE_BY_SIDE = {"gptj", "phi", "cohere", "cohere2", "codegen"}
_MORE_NORMS = {"glm4"}
_DIMENSIONS = (
    "num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim", "ffn_size", "vocab_size", "max_position",
)  # fmt: skip
_WINDOWED: dict[str, float] = {"gpt_neo": 1 / 2}
"""The share of layers with a window, in families that mix both kinds."""


@dataclass(frozen=True)
class Nearest:
    """`values`: the decoder's dimensions, by this package's names. `differences`: what is taken for what, in words. `window`:
    tokens of its sliding windows, and the part of its layers that has them. `refused`: why it cannot be trained as it is. `family`:
    its `model_type`."""

    values: dict[str, Any]
    differences: tuple[str, ...]
    window: tuple[int, float] | None = None
    refused: str = ""
    family: str = ""


def nearest_model(raw: dict[str, Any], source: str) -> Nearest:
    """Reads the parsed `config.json` of any decoder. Raises `UserError` for other models, and for sizes that are missing."""
    pictures = any(isinstance(raw[key], dict) and key.startswith((*TEXT, "vision", "audio")) for key in raw)
    raw = AskedKeys(flattened(raw))
    family = str(raw.get("model_type"))
    differences = ["its parts for pictures or sound are left out"] if pictures else []
    if pictures and family in FAMILIES:
        return Nearest(parse_config(dict(raw), source), tuple(differences), family=family)
    _refuse(raw, family, source)
    found = sizes(raw, source)
    values = _dimensions(raw, family, found, source)
    values.update(_experts(raw, found, differences))
    values.update(_mla(found))
    values.update(_options(raw, family, values, differences))
    if found.get("mtp_layers") and values["norm"] == "rms" and values["positions"] == "rope":
        values["mtp_layers"] = found["mtp_layers"]
    differences += _left_out(raw, family)
    values.update(numbers(raw, family, values, differences, source))
    values = {**_fixed(family), **values}
    window = _window(raw, family, found)
    return Nearest(values, (*differences, *unread_keys(raw)), window, family=family)


def gated_width(size: int | None) -> int | None:
    """The size of a gated feed-forward with as many weights as one without a gate; None for None."""
    return _TILE * round(size * 2 / 3 / _TILE) if size else size


def _fixed(family: str) -> dict[str, Any]:
    """Values that all models of a family have that is trained here; this one has something beside them."""
    return dict(FAMILIES[family].fixed) if family in FAMILIES else {}


def _refuse(raw: dict[str, Any], family: str, source: str) -> None:
    if raw.get("is_encoder_decoder") or family in _NO_DECODER or "type_vocab_size" in raw:
        raise UserError(
            f"{source}: model_type = {family!r} is no decoder alone; allowed: decoders, for example llama or gemma2"
        )
    other = next((key for key in _OTHER_KEYS if raw.get(key) is not None), None)
    if family in _OTHER_LAYERS:
        other = "model_type"
    if 0 in _listed(raw, "attn_type_list"):
        other = "attn_type_list"
    if {str(kind) for kind in _listed(raw, "layer_types")} - _ATTENTION:
        other = "layer_types"
    if other is not None:
        raise UserError(
            f"{source}: {other} = {str(raw[other])[:80]}: layers that are not attention and then a feed-forward (state spaces, "
            "linear attention) have no instructions here; allowed: models of such layers alone, for example llama or gpt_oss"
        )


def _listed(raw: dict[str, Any], key: str) -> list[Any]:
    """The values for each layer; empty where the key holds no list."""
    value = raw.get(key)
    return value if isinstance(value, list) else []


def _dimensions(raw: dict[str, Any], family: str, found: dict[str, int], source: str) -> dict[str, Any]:
    values: dict[str, Any] = {key: found[key] for key in _DIMENSIONS if key in found}
    if raw.get("multi_query") and "num_kv_heads" not in found:
        values["num_kv_heads"] = 1
    if family == "falcon" and raw.get("multi_query") and not raw.get("new_decoder_architecture"):
        values["num_kv_heads"] = 1
    if family == "qwen" and "ffn_size" in values:  # both halves of the gate
        values["ffn_size"] //= 2
    if not is_gated(family, _activation(raw)) and "hidden_size" in values:
        values.setdefault("ffn_size", 4 * values["hidden_size"])
    if "ffn_size" not in values and "moe_ffn_size" in found:
        values["ffn_size"] = found["moe_ffn_size"]
    examples = {"num_layers": 32, "hidden_size": 4096, "num_heads": 32, "ffn_size": 14336, "vocab_size": 128256}
    missing = next((key for key in examples if key not in values), None)
    if missing is not None:
        raise UserError(
            f'{source}: {name_of(missing)} is missing (model_type = {family!r}); state it there, for example "{name_of(missing)}": '
            f"{examples[missing]}, or in a run file as model.{missing}"
        )
    tied = raw.get("tie_word_embeddings")
    values["tie_embeddings"] = family in TIED if tied is None else bool(tied)
    return values


def _experts(raw: dict[str, Any], found: dict[str, int], differences: list[str]) -> dict[str, Any]:
    experts = found.get("num_experts", 0)
    if experts < 2:
        return {}
    size = found.get("moe_ffn_size") or _of_experts(raw, found)
    dense = found.get("first_dense_layers", 0)
    kinds = _without_experts(raw)
    if kinds:
        dense = len(kinds)
        if sorted(kinds) != list(range(dense)):
            differences.append(f"its {dense} dense layers are the first ones")
    shared = found.get("num_shared_experts", 0)
    if found.get("shared_size"):
        shared = max(1, round(found["shared_size"] / size))
        if shared * size != found["shared_size"]:
            differences.append(f"a shared expert of {found['shared_size']} as {shared} of {size}")
    sigmoid = raw.get("scoring_func") == "sigmoid"
    return {
        "num_experts": experts,
        "top_k": min(found.get("top_k", 2), experts),
        "moe_ffn_size": size,
        "num_shared_experts": shared,
        "first_dense_layers": min(dense, found["num_layers"]),
        "moe_period": found.get("period", 1),
        "router": "sigmoid" if sigmoid else "softmax",
    }


def _without_experts(raw: dict[str, Any]) -> list[int]:
    """Layers that are listed as dense."""
    kinds, steps = _listed(raw, "mlp_layer_types"), _listed(raw, "moe_layer_freq")
    if kinds or steps:
        return [i for i, kind in enumerate(kinds or steps) if kind in ("dense", 0)]
    return [i for i in _listed(raw, "mlp_only_layers") if isinstance(i, int)]


def _of_experts(raw: dict[str, Any], found: dict[str, int]) -> int:
    """An expert's size where no key is for it alone: that of the feed-forward."""
    stated = raw.get("intermediate_size")
    return stated if isinstance(stated, int) and stated > 0 else found["ffn_size"]


def _mla(found: dict[str, int]) -> dict[str, Any]:
    names = ("key_value_rank", "rope_head_dim", "nope_head_dim", "value_head_dim")
    if not all(found.get(name) for name in names):
        return {}
    head = found["rope_head_dim"] + found["nope_head_dim"]
    return {
        **{name: found[name] for name in names},
        **({"query_rank": found["query_rank"]} if found.get("query_rank") else {}),
        **{"head_dim": head, "num_kv_heads": found["num_heads"], "norm_eps": 1e-6},
    }


def _options(raw: dict[str, Any], family: str, values: dict[str, Any], differences: list[str]) -> dict[str, Any]:
    """Norm, activation, biases, positions."""
    special = "num_experts" in values or "key_value_rank" in values
    activation = _activation(raw)
    gated = is_gated(family, activation)
    options: dict[str, Any] = {"gated": gated, "activation": "silu" if gated else "gelu"}
    if gated and "activation" in (fixed := _fixed(family)):
        options["activation"] = fixed["activation"]
    elif gated and activation not in ("silu", "swish", "swiglu", None):
        differences.append(f"a gated {activation} as a gated silu")
    if not gated and special:
        width = gated_width(values.get("moe_ffn_size", values["ffn_size"]))
        options.update(gated=True, activation="silu", moe_ffn_size=width)
        differences.append("experts without a gate as gated ones with as many weights")
    elif not gated and activation is not None and not activation.startswith("gelu"):
        differences.append(f"{activation} as gelu")
    names_mean = _has(raw, *LAYER_NORM_KEYS) and not _has(raw, "rms_norm_eps")
    options["norm"] = "layer" if family in LAYER_NORM or names_mean else "rms"
    if options["norm"] == "layer" and special:
        options["norm"] = "rms"
        differences.append("layer norms as RMS norms")
    options["positions"] = "learned" if family in LEARNED and "key_value_rank" not in values else "rope"
    options.update(_biases(raw, family, values, options["gated"], differences))
    return options


def _biases(
    raw: dict[str, Any], family: str, values: dict[str, Any], gated: bool, differences: list[str]
) -> dict[str, Any]:
    if "key_value_rank" in values:
        return {"qk_norm": False, "qkv_bias": False, "linear_bias": False}
    qk_norm = bool(raw.get("use_qk_norm") or raw.get("qk_layernorm")) or family.startswith(_QK_NORM)
    qk_norm = qk_norm or bool(_fixed(family).get("qk_norm"))
    stated = any(raw.get(key) for key in _BIASES)
    if not gated:
        none = raw.get("bias") is False or raw.get("use_bias") is False or raw.get("no_bias") is True
        has = (not none and family not in ("nemotron", "arcee", "falcon", "mpt")) or bool(raw.get("bias"))
        return {"linear_bias": has, "qkv_bias": has and family != "gptj", "qk_norm": False}
    of_queries = stated or family in ("qwen", "qwen2", "qwen2_moe", "chatglm")
    if (of_queries and qk_norm) or raw.get("mlp_bias"):
        but = "" if qk_norm or not of_queries else " but those of queries, keys and values"
        differences.append(f"biases{but} are left out")
    return {"qk_norm": qk_norm, "qkv_bias": of_queries and not qk_norm, "linear_bias": False}


def _activation(raw: dict[str, Any]) -> str | None:
    keys = ("hidden_activation", "hidden_act", "activation_function", "activation", "afn")
    return next((str(raw[key]) for key in keys if raw.get(key) is not None), None)


def _left_out(raw: dict[str, Any], family: str) -> list[str]:
    """Differences in how layers are put together."""
    notes = []
    if raw.get("use_parallel_residual") or raw.get("parallel_attn") or family in _SIDE_BY_SIDE:
        notes.append("attention and feed-forward side by side as one after the other")
    if family in _MORE_NORMS:
        notes.append("norms behind attention and feed-forward are left out")
    if raw.get("alibi") or family == "bloom":
        notes.append("ALiBi as rotary positions")
    if [key for key in ("attn_logit_softcapping", "final_logit_softcapping") if raw.get(key)]:
        notes.append("soft caps of logits are left out")
    if raw.get("index_topk") or "indexed_attention" in _listed(raw, "layer_types"):
        notes.append("sparse attention as full attention")
    if raw.get("vocab_size_per_layer_input"):
        notes.append("embeddings of every layer are left out")
    if raw.get("attention_chunk_size"):
        notes.append("attention within chunks as full attention")
    return notes


def _window(raw: dict[str, Any], family: str, found: dict[str, int]) -> tuple[int, float] | None:
    tokens = found.get("window")
    if not tokens or raw.get("use_sliding_window") is False:
        return None
    kinds, pattern = _listed(raw, "layer_types"), raw.get("sliding_window_pattern")
    if kinds:
        sliding = kinds.count("sliding_attention")
        return (tokens, sliding / len(kinds)) if sliding else None
    if isinstance(pattern, int) and pattern > 1:
        return tokens, (pattern - 1) / pattern
    return tokens, _WINDOWED.get(family, 1.0)


def _has(raw: dict[str, Any], *keys: str) -> bool:
    return any(raw.get(key) is not None for key in keys)
