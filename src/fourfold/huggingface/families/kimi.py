"""Kimi-Linear: Kimi Delta Attention in three layers of four, MLA without positions in the fourth, DeepSeek-V3's experts (Kimi Team
2025). Released files have names of their own for sizes and tensors; transformers reads these and writes others."""

from collections.abc import Mapping
from typing import Any

from fourfold.config.errors import UserError, shortened
from fourfold.config.model_config import ModelConfig
from fourfold.huggingface.families.deepseek import experts_depart, no_experts
from fourfold.huggingface.family import FALSE, SILU, Family, Rename, TensorNames
from fourfold.huggingface.key import Key, decoder_keys, number, require_one_value
from fourfold.huggingface.layer_types import FULL, LINEAR, layer_types, other_mixers, read_mixers, stated_kinds

_LINEAR, _KDA, _ATTENDING = "linear_attn_config", "kda_layers", "full_attn_layers"
_SIZES = {
    "linear_num_heads": ("num_heads", 32),
    "linear_head_dim": ("head_dim", 128),
    "linear_conv_kernel_dim": ("short_conv_kernel_size", 4),
}
"""transformers' keys, with the names of released files in `linear_attn_config`, and the values where neither is stated."""
_PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
_DENSE, _FED = "first_k_dense_replace", "mlp_layer_types"
_EXPERTS = (
    Key("num_experts", "num_experts", default=256, aliases=("num_local_experts",)),
    Key("top_k", "num_experts_per_token", default=8, aliases=("num_experts_per_tok",)),
    Key("moe_ffn_size", "moe_intermediate_size", default=1024),
    Key("num_shared_experts", "num_shared_experts", default=1, aliases=("n_shared_experts",)),
    Key("normalize_top_k", "moe_renormalize", bool, True, aliases=("norm_topk_prob",)),
    Key("routed_scaling", "routed_scaling_factor", float, 2.446),
    Key("num_expert_groups", "num_expert_group", default=1, aliases=("n_group",)),
    Key("top_groups", "topk_group", default=1),
)


def _read(raw: Mapping[str, Any], values: dict[str, Any], source: str) -> None:
    linear = _table(raw, source)
    for theirs, (released, usual) in _SIZES.items():
        stated = {f"{_LINEAR}.{released}": linear.get(released), theirs: raw.get(theirs)}
        require_one_value(stated, tuple(stated), source)
        name, value = next(((key, value) for key, value in stated.items() if value is not None), (theirs, usual))
        size = number(value, name, source, int)
        if theirs == "linear_conv_kernel_dim":
            values["convolution_kernel"] = size
        else:
            kind = "heads" if theirs == "linear_num_heads" else "dim"
            values.update({f"delta_key_{kind}": size, f"delta_value_{kind}": size})
    layers = values.get("num_layers", 0)
    kinds, listed = stated_kinds(raw, layers, source, (FULL, LINEAR)), _listed(linear, layers, source)
    if kinds is not None and listed is not None and kinds != listed:
        raise UserError(f"{source}: layer_types and {_LINEAR} contradict each other; keep one of them")
    if kinds is None:
        kinds = listed or [FULL if layer and layer % 4 == 0 else LINEAR for layer in range(layers)]
    read_mixers(values, kinds, "kimi_delta")
    _read_dense_layers(raw, values, source)
    if values["first_dense_layers"] >= layers:
        no_experts(values, _EXPERTS)


def _table(raw: Mapping[str, Any], source: str) -> Mapping[str, Any]:
    """The keys of the recurrent layers in released files."""
    linear = raw.get(_LINEAR, {})
    known = (*(released for released, _ in _SIZES.values()), _KDA, _ATTENDING)
    unknown = [key for key, value in linear.items() if key not in known and value] if isinstance(linear, dict) else []
    if not isinstance(linear, dict) or unknown:
        what = f"{_LINEAR}.{shortened(unknown[0])}" if unknown else f"{_LINEAR} = {shortened(linear)}"
        raise UserError(f"{source}: {what} is not supported; allowed: an object of {', '.join(known)}, or leave it out")
    return linear


def _listed(linear: Mapping[str, Any], layers: int, source: str) -> list[str] | None:
    """The kind of every layer by released files' lists, which count layers from 1; None without both of them."""
    if linear.get(_KDA) is None or linear.get(_ATTENDING) is None:
        return None
    kinds: dict[int, str] = {}
    for key, kind in ((_KDA, LINEAR), (_ATTENDING, FULL)):
        numbers = linear[key]
        good = isinstance(numbers, list) and all(type(each) is int and 0 < each <= layers for each in numbers)
        if not good or any(each in kinds for each in numbers):
            raise UserError(
                f"{source}: {_LINEAR}.{key} = {shortened(numbers)} is not supported; allowed: a list of layers from 1 "
                f"to {layers}, none of which is in {_KDA} and in {_ATTENDING}"
            )
        kinds.update(dict.fromkeys(numbers, kind))
    if len(kinds) < layers:
        missing = next(layer for layer in range(1, layers + 1) if layer not in kinds)
        raise UserError(
            f"{source}: layer {missing} is neither in {_LINEAR}.{_KDA} nor in {_ATTENDING}; state each once"
        )
    return [kinds[layer] for layer in sorted(kinds)]


def _read_dense_layers(raw: Mapping[str, Any], values: dict[str, Any], source: str) -> None:
    layers, stated = values.get("num_layers", 0), raw.get(_FED)
    first = number(raw.get(_DENSE, 1), _DENSE, source, int, zero=True)
    if stated is not None:
        dense = stated.count("dense") if isinstance(stated, list) else 0
        if not isinstance(stated, list) or stated != ["dense"] * dense + ["sparse"] * (layers - dense):
            raise UserError(
                f"{source}: {_FED} = {shortened(stated)} is not supported; allowed: null, or a list of 'dense' for the first "
                "layers and 'sparse' for all others"
            )
        if _DENSE in raw and min(first, layers) != dense:
            raise UserError(f"{source}: {_FED} and {_DENSE} = {first} contradict each other; keep one of them")
        first = dense
    values["first_dense_layers"] = first


def _write(model: ModelConfig) -> dict[str, Any]:
    kinds = list(enumerate(layer_types(model), start=1))
    linear: dict[str, Any] = {
        _KDA: [layer for layer, kind in kinds if kind == LINEAR],
        _ATTENDING: [layer for layer, kind in kinds if kind == FULL],
        "num_heads": model.delta_key_heads,
        "head_dim": model.delta_key_dim,
        "short_conv_kernel_size": model.convolution_kernel,
    }
    if model.num_experts:
        return {_LINEAR: linear, _DENSE: model.first_dense_layers}
    return {  # transformers wants numbers even where no layer has experts
        **{_LINEAR: linear, _DENSE: model.num_layers, "num_experts": 1, "num_experts_per_token": 1},
        **{"moe_intermediate_size": model.ffn_size, "num_shared_experts": 1},
    }


def _departs(model: ModelConfig) -> dict[str, Any]:
    tied = {"tie_embeddings": True} if model.tie_embeddings else {}
    return {**tied, **experts_depart(model), **other_mixers(model, "kimi_delta")}


KIMI_LINEAR = Family(
    name="kimi_linear",
    architecture="KimiLinearForCausalLM",
    keys=(
        *decoder_keys("head_dim", "max_position", "rope_theta", num_kv_heads=32, norm_eps=1e-5),
        Key("max_position", "model_max_length", default=1048576, aliases=("max_position_embeddings",)),
        *_EXPERTS,
        Key("query_rank", "q_lora_rank"),
        Key("key_value_rank", "kv_lora_rank", default=512),
        Key("rope_head_dim", "qk_rope_head_dim", default=64),
        Key("nope_head_dim", "qk_nope_head_dim", default=128),
        Key("value_head_dim", "v_head_dim", default=128),
    ),
    states={
        "hidden_act": SILU,
        "attention_bias": FALSE,
        "moe_router_activation_func": ("sigmoid",),
        "moe_layer_freq": (1,),
        "use_grouped_topk": (True,),
        "mla_use_nope": (True,),
        "num_nextn_predict_layers": (0, None),
        "tie_word_embeddings": FALSE,  # transformers ties nothing, whatever it says
    },
    lacks=("mlp_bias",),
    # transformers' own pad_token_id names a token, whose row of the embedding would get no gradient
    constants={"output_router_logits": False, "pad_token_id": None},
    rope_types=(),
    read=_read,
    reads=(*_SIZES, _LINEAR, "layer_types", _DENSE, _FED, "head_dim"),
    write=_write,
    fixed={"positions": "none"},
    usual={"router": "sigmoid"},
    may=(
        *("mixer", "router", "balance_bias_speed", "first_dense_layers", "convolution_kernel"),
        *("delta_key_heads", "delta_value_heads", "delta_key_dim", "delta_value_dim"),
    ),
    by_layer=("mixer",),
    needs=("key_value_rank", "delta_value_heads"),
    departs=_departs,
    tensors=TensorNames(
        modules=(
            Rename("block_sparse_moe.gate", ("mlp.gate",)),
            *(
                Rename(f"block_sparse_moe.shared_experts.{each}", (f"mlp.shared_experts.{each}",))
                for each in _PROJECTIONS
            ),
        ),
        experts=("block_sparse_moe.experts", "w1", "w3", "w2"),
        read_too=tuple(
            Rename(f"block_sparse_moe.{each}", (f"mlp.{each}",)) for each in _PROJECTIONS
        ),  # of dense layers
    ),
    balance_bias=True,
)
