"""The model of a published row as a `ModelConfig`, its unstated options filled."""

import re
from dataclasses import replace
from typing import Any

from case import NotACase
from defaults import ImputedDefaults
from fourfold.config import ModelConfig, UserError
from fourfold.config.check_model import check_model
from fourfold.huggingface import family_of, gated_width
from row import Row, StatedModel
from software import Trainer

_GATED_NAMES = re.compile(
    r"llama|qwen|mistral|mixtral|deepseek|moonlight|kimi|internlm|smollm|olmo|grok|gemma|yi-", re.I
)
_LLAMA_4 = 8192
"""Feed-forward size of each of its experts, the shared one among them (released configurations)."""
_ALTERNATING = re.compile(r"maverick", re.I)
"""Models of which every other block has experts."""
_VOCABULARIES = (
    (r"mixtral", 32000),
    (r"deepseek", 129280),
    (r"nemotron|15b_8t", 256000),
    (r"llama-?2", 32000),
    (r"llama-?3", 128256),
    (r"gpt3_mcore|gpt3_moe", 50257),
)
_MOONLIGHT = StatedModel(
    name="Moonlight-16B-A3B", num_layers=27, hidden_size=2048, num_heads=16, num_kv_heads=16, ffn_size=11264,
    vocab_size=163840, gated=True, tied=False, is_mla=True, query_rank=0, key_value_rank=512, nope_head_dim=128,
    rope_head_dim=64, value_head_dim=128, num_experts=64, top_k=6, moe_ffn_size=1408, shared_ffn_size=2816, dense_layers=1,
)  # fmt: skip
_PUBLIC = {"moonlight-16b-a3b": _MOONLIGHT}
"""Released configurations of models that rows name without dimensions (Moonlight: moonshotai/Moonlight-16B-A3B, config.json)."""


def model_of(row: Row, trainer: Trainer, tp: int, imputed: ImputedDefaults) -> tuple[ModelConfig, int]:
    """The model, and its vocabulary before padding.

    Raises `NotACase` where a dimension is missing, or the architecture is not one of ours.
    """
    stated = _gated_experts(_sized(_named(row.model, imputed), imputed), imputed)
    _check_kind(stated, row)
    missing = [key for key in ("num_layers", "hidden_size", "num_heads") if getattr(stated, key) is None]
    if missing:
        raise NotACase(f"the model's {missing[0].replace('_', ' ')} is not stated")
    layers, hidden, heads = stated.num_layers or 0, stated.hidden_size or 0, stated.num_heads or 0
    gated = _gated(stated, imputed)
    special = bool(stated.num_experts) or stated.is_mla
    ffn = stated.ffn_size or (stated.moe_ffn_size if stated.num_experts else None)
    if ffn is None and not stated.num_experts:
        raise NotACase("the model's feed-forward size is not stated")
    vocab_size = _vocabulary(stated, row, imputed)
    values: dict[str, Any] = {
        "num_layers": layers,
        "hidden_size": hidden,
        "num_heads": heads,
        "num_kv_heads": heads if stated.is_mla else stated.num_kv_heads or imputed.fill("num_kv_heads", heads),
        "head_dim": stated.head_dim or _head_dim(hidden, heads, stated, imputed),
        "ffn_size": ffn,
        "vocab_size": _padded(vocab_size, trainer, tp, imputed),
        "max_position": row.sequence_length or 1,
        **_options(stated, trainer, gated, special, imputed),
    }
    if stated.num_experts:
        values.update(_experts(stated, int(ffn or 0)))
    if stated.is_mla:
        values.update(_mla_sizes(stated))
    modules = _modules(stated, row, imputed)
    if modules:
        values.update(mtp_layers=modules, mtp_loss=0.3)
    model = ModelConfig(**values)
    try:
        check_model(model)
    except UserError as error:
        raise NotACase(f"the model cannot be expressed: {error}") from error
    return replace(model, family=family_of(model)), vocab_size


def _named(stated: StatedModel, imputed: ImputedDefaults) -> StatedModel:
    known = _PUBLIC.get(stated.name.lower())
    if known is None or stated.num_layers is not None:
        return stated
    imputed.approximate("known_model")
    return known


def _sized(stated: StatedModel, imputed: ImputedDefaults) -> StatedModel:
    """Llama 4's experts, where a row leaves out what they are."""
    if not stated.num_experts or stated.moe_ffn_size is not None or not re.search(r"llama-?4", stated.name, re.I):
        return stated
    imputed.approximate("known_model")
    return replace(stated, moe_ffn_size=_LLAMA_4, shared_ffn_size=stated.shared_ffn_size or _LLAMA_4)


def _gated_experts(stated: StatedModel, imputed: ImputedDefaults) -> StatedModel:
    """Experts without a gate as gated ones with as many weights."""
    if not stated.num_experts or stated.gated is not False:
        return stated
    imputed.approximate("gated_experts")
    expert = stated.moe_ffn_size or stated.ffn_size or 0
    shared, odd = divmod(stated.shared_ffn_size or 0, expert or 1)
    return replace(
        stated,
        gated=True,
        ffn_size=gated_width(stated.ffn_size),
        moe_ffn_size=gated_width(stated.moe_ffn_size),
        shared_ffn_size=gated_width(stated.shared_ffn_size) if odd else shared * (gated_width(expert) or 0),
    )


def _check_kind(stated: StatedModel, row: Row) -> None:
    if stated.hybrid or re.search(r"mamba|nemotron-?h|nemotron_?3", stated.name, re.I):
        raise NotACase("the model has layers that are neither attention nor feed-forward (state-space layers)")
    if not stated.name and stated == StatedModel():
        raise NotACase("the model is not stated")
    if row.model.num_layers is None and row.model.hidden_size is None and row.model.name.lower() not in _PUBLIC:
        raise NotACase("the model's dimensions are not stated")


def _gated(stated: StatedModel, imputed: ImputedDefaults) -> bool:
    if stated.gated is not None:
        return stated.gated
    special = bool(stated.num_experts) or stated.is_mla
    return imputed.fill("gated", special or bool(_GATED_NAMES.search(stated.name)))


def _head_dim(hidden: int, heads: int, stated: StatedModel, imputed: ImputedDefaults) -> int:
    if stated.is_mla:
        return (stated.nope_head_dim or 0) + (stated.rope_head_dim or 0)
    if hidden % heads:
        raise NotACase(f"{heads} heads do not divide hidden size {hidden}, and the head size is not stated")
    return imputed.fill("head_dim", hidden // heads)


def _vocabulary(stated: StatedModel, row: Row, imputed: ImputedDefaults) -> int:
    if stated.vocab_size is not None:
        return stated.vocab_size
    names = f"{stated.name} {row.notes} {row.source}".lower()
    return imputed.fill("vocab_size", next((v for name, v in _VOCABULARIES if re.search(name, names)), 51200))


def _padded(size: int, trainer: Trainer, tp: int, imputed: ImputedDefaults) -> int:
    multiple = 128 * tp if trainer.is_megatron_family else tp
    padded = -(-size // multiple) * multiple
    return size if padded == size else imputed.fill("vocab_size", padded, "vocab_padding")


def _options(
    stated: StatedModel, trainer: Trainer, gated: bool, special: bool, imputed: ImputedDefaults
) -> dict[str, Any]:
    """Norm, activation, biases, positions, ties."""
    if gated:
        qwen = re.search(r"qwen-?([123])", stated.name, re.I)
        options: dict[str, Any] = {
            "qkv_bias": qwen is not None and qwen[1] in "12" and not stated.is_mla,
            "qk_norm": qwen is not None and qwen[1] == "3" and not stated.is_mla,
            "tie_embeddings": stated.tied if stated.tied is not None else imputed.fill("tie_embeddings", False),
        }
        if stated.norm == "layer":
            if special:
                imputed.approximate("layer_norm")
            else:
                options["norm"] = "layer"
        if stated.positions == "learned" and not stated.is_mla:
            options["positions"] = "learned"
        if stated.bias:
            imputed.approximate("gated_bias")
        return options
    squared = "squared" in (stated.activation or "") or bool(re.search(r"nemotron|gpt3_15b|gpt3_7b", stated.name, re.I))
    bias = stated.bias
    if squared:
        imputed.approximate("squared_relu")
        bias = False
    elif bias is None and trainer.framework == "llm-foundry":
        imputed.approximate("no_bias")
        bias = False
    elif bias is None:
        imputed.approximate("gpt_options")
        bias = True
    if special:
        imputed.approximate("layer_norm")
    tied = stated.tied
    return {
        "norm": "rms" if special else stated.norm or "layer",
        "activation": "gelu",
        "gated": False,
        "linear_bias": bias and not stated.is_mla,
        "qkv_bias": bias and not stated.is_mla,
        "positions": "rope" if stated.is_mla or squared else stated.positions or "learned",
        "tie_embeddings": tied if tied is not None else imputed.fill("tie_embeddings", not squared),
    }


def _experts(stated: StatedModel, ffn: int) -> dict[str, Any]:
    size = stated.moe_ffn_size or ffn
    if not stated.top_k or not size:
        raise NotACase("experts are stated without how many a token takes, or without their size")
    shared = stated.shared_ffn_size or 0
    if shared % size:
        raise NotACase(f"the shared expert's size {shared} is no multiple of an expert's, {size}")
    deepseek = bool(re.search(r"deepseek-?v3|moonlight|kimi", stated.name, re.I))
    return {
        "num_experts": stated.num_experts,
        "top_k": stated.top_k,
        "moe_ffn_size": size,
        "num_shared_experts": shared // size,
        "first_dense_layers": min(stated.dense_layers or 0, stated.num_layers or 0),
        "moe_period": stated.moe_period or (2 if _ALTERNATING.search(stated.name) else 1),
        "router": "sigmoid" if deepseek else "softmax",
    }


def _mla_sizes(stated: StatedModel) -> dict[str, Any]:
    sizes = (stated.key_value_rank, stated.nope_head_dim, stated.rope_head_dim, stated.value_head_dim)
    if not all(sizes):
        raise NotACase("MLA is stated without all of its sizes")
    return {
        "query_rank": stated.query_rank or None,
        "key_value_rank": stated.key_value_rank,
        "nope_head_dim": stated.nope_head_dim,
        "rope_head_dim": stated.rope_head_dim,
        "value_head_dim": stated.value_head_dim,
        "head_dim": (stated.nope_head_dim or 0) + (stated.rope_head_dim or 0),
        "rope_interleave": True,
        "norm_eps": 1e-6,
    }


DEEPSEEK_V3_LAYERS = 61


def _modules(stated: StatedModel, row: Row, imputed: ImputedDefaults) -> int:
    """MTP modules."""
    if stated.mtp_layers is not None:
        return stated.mtp_layers
    if "w/o mtp" in row.notes.lower() or not re.search(r"deepseek-?v3$", stated.name, re.I):
        return 0
    if "w/ mtp" in row.notes.lower():
        return 1
    return imputed.fill("mtp_layers", int((stated.num_layers or 0) >= DEEPSEEK_V3_LAYERS), "multi_token")
