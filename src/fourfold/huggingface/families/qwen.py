"""Qwen2, with biases of queries, keys and values; Qwen3, with norms of queries and keys; Qwen3-MoE, with experts; Qwen3-Next and
Qwen3.5 (text), three of whose layers in four are recurrent (Gated DeltaNet)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fourfold.config.errors import UserError
from fourfold.config.model_config import ModelConfig
from fourfold.huggingface.family import FALSE, SILU, Family, Rename, TensorNames
from fourfold.huggingface.key import Key, decoder_keys, number
from fourfold.huggingface.layer_types import (
    FULL,
    LINEAR,
    SLIDING,
    layer_types,
    one_window,
    other_mixers,
    read_mixers,
    read_switched_window,
    stated_kinds,
    window_of,
)

_WINDOW = ("use_sliding_window", "sliding_window", "layer_types")


def _write_window(model: ModelConfig) -> dict[str, Any]:
    """A window of every layer, of some, or none."""
    kinds = layer_types(model)
    if SLIDING not in kinds:
        return {"use_sliding_window": False}
    full = kinds.count(FULL)
    written: dict[str, Any] = {
        "use_sliding_window": True,
        "sliding_window": window_of(model),
        "max_window_layers": full,
    }
    if kinds[:full] != [FULL] * full:
        written["layer_types"] = kinds
    return written


QWEN2 = Family(
    name="qwen2",
    architecture="Qwen2ForCausalLM",
    keys=decoder_keys(max_position=32768, num_kv_heads=32),
    states={"hidden_act": SILU},
    lacks=("mlp_bias",),
    read=read_switched_window,
    reads=(*_WINDOW, "max_window_layers"),
    write=_write_window,
    fixed={"qkv_bias": True},
    may=("sliding_window",),
    by_layer=("sliding_window",),
    departs=one_window,
)
QWEN3 = Family(
    name="qwen3",
    architecture="Qwen3ForCausalLM",
    keys=decoder_keys(max_position=32768, num_kv_heads=32, head_dim=128),
    states={"hidden_act": SILU, "attention_bias": FALSE},
    lacks=("mlp_bias",),
    read=read_switched_window,
    reads=(*_WINDOW, "max_window_layers"),
    write=_write_window,
    fixed={"qk_norm": True},
    may=("sliding_window",),
    by_layer=("sliding_window",),
    departs=one_window,
)


def _read_moe(raw: Mapping[str, Any], values: dict[str, Any], source: str) -> None:
    read_switched_window(raw, values, source, split=False)
    _read_dense_layers(raw, values, source)


def _read_dense_layers(raw: Mapping[str, Any], values: dict[str, Any], source: str) -> None:
    layers = raw.get("mlp_only_layers")
    dense = layers or []
    if not isinstance(dense, list) or sorted(map(str, dense)) != sorted(map(str, range(len(dense)))):
        raise UserError(
            f"{source}: mlp_only_layers = {layers!r} is not supported: dense layers must be the first ones; allowed: for "
            f"example [], [0], [0, 1]"
        )
    values["first_dense_layers"] = len(dense)


def _write_moe(model: ModelConfig) -> dict[str, Any]:
    return {**_write_window(model), **_write_dense_layers(model)}


def _write_dense_layers(model: ModelConfig) -> dict[str, Any]:
    return {"mlp_only_layers": list(range(model.first_dense_layers))}


_EXPERTS = (
    Key("normalize_top_k", "norm_topk_prob", bool, False),
    Key("balance_loss", "router_aux_loss_coef", float, 0.001, zero=True, switch="output_router_logits"),
    Key("moe_period", "decoder_sparse_step", default=1),
)
QWEN3_MOE = Family(
    name="qwen3_moe",
    architecture="Qwen3MoeForCausalLM",
    keys=(
        *decoder_keys(max_position=32768, num_kv_heads=4),
        Key("num_experts", "num_experts", default=128, aliases=("num_local_experts",)),
        Key("top_k", "num_experts_per_tok", default=8),
        Key("moe_ffn_size", "moe_intermediate_size", default=768),
        *_EXPERTS,
    ),
    states={"hidden_act": SILU, "attention_bias": FALSE},
    lacks=("mlp_bias",),
    read=_read_moe,
    reads=(*_WINDOW, "mlp_only_layers"),
    write=_write_moe,
    fixed={"qk_norm": True},
    may=("sliding_window", "first_dense_layers"),
    needs=("num_experts",),
)


_SHARED, _INTERVAL = "shared_expert_intermediate_size", "full_attention_interval"


def _read_next(raw: Mapping[str, Any], values: dict[str, Any], source: str) -> None:
    _read_dense_layers(raw, values, source)
    _read_shared(raw, values, source)
    _read_recurrent(raw, values, source)


def _read_shared(raw: Mapping[str, Any], values: dict[str, Any], source: str) -> None:
    shared = number(raw.get(_SHARED, 512), _SHARED, source, int)
    size = number(values.get("moe_ffn_size"), "moe_intermediate_size", source, int)
    if shared % size:
        raise UserError(
            f"{source}: {_SHARED} = {shared} is not supported: shared experts are as wide as routed ones; allowed: a multiple of "
            f"moe_intermediate_size = {size}, for example {size}"
        )
    values["num_shared_experts"] = shared // size


def _read_recurrent(raw: Mapping[str, Any], values: dict[str, Any], source: str) -> None:
    layers = values.get("num_layers", 0)
    kinds = stated_kinds(raw, layers, source, (FULL, LINEAR))
    if kinds is None:
        interval = number(raw.get(_INTERVAL, 4), _INTERVAL, source, int)
        kinds = [LINEAR if (layer + 1) % interval else FULL for layer in range(layers)]
    read_mixers(values, kinds, "gated_delta")


def _write_shared(model: ModelConfig) -> dict[str, Any]:
    return {_SHARED: model.num_shared_experts * model.moe_ffn_size, **_write_recurrent(model)}


def _write_recurrent(model: ModelConfig) -> dict[str, Any]:
    return {"layer_types": layer_types(model)}


def _write_next(model: ModelConfig) -> dict[str, Any]:
    return {**_write_dense_layers(model), **_write_shared(model)}


def _departs(model: ModelConfig) -> dict[str, Any]:
    return other_mixers(model, "gated_delta")


_HYBRID = (
    Key("rotary_fraction", "partial_rotary_factor", float, 0.25),
    Key("delta_key_heads", "linear_num_key_heads", default=16),
    Key("delta_value_heads", "linear_num_value_heads", default=32),
    Key("delta_key_dim", "linear_key_head_dim", default=128),
    Key("delta_value_dim", "linear_value_head_dim", default=128),
    Key("convolution_kernel", "linear_conv_kernel_dim", default=4),
)
_GATED = {"qk_norm": True, "zero_centered_norm": True, "attention_output_gate": True}
_CONVOLUTION = Rename("linear_attn.conv1d", ("linear_attn.conv_q", "linear_attn.conv_k", "linear_attn.conv_v"))
_SHARED_EXPERT = tuple(
    Rename(f"mlp.shared_expert.{each}", (f"mlp.shared_experts.{each}",))
    for each in ("gate_proj", "up_proj", "down_proj")
)
QWEN3_NEXT = Family(
    name="qwen3_next",
    architecture="Qwen3NextForCausalLM",
    keys=(
        *decoder_keys(max_position=32768, num_kv_heads=2, head_dim=256),
        *_HYBRID,
        Key("num_experts", "num_experts", default=512, aliases=("num_local_experts",)),
        Key("top_k", "num_experts_per_tok", default=10),
        Key("moe_ffn_size", "moe_intermediate_size", default=512),
        replace(_EXPERTS[0], default=True),
        *_EXPERTS[1:],
    ),
    states={"hidden_act": SILU, "attention_bias": FALSE},
    lacks=("mlp_bias",),
    read=_read_next,
    reads=(_SHARED, _INTERVAL, "layer_types", "mlp_only_layers"),
    write=_write_next,
    fixed={**_GATED, "shared_expert_gate": True},
    usual={"rotary_fraction": 0.25},
    may=("mixer", "num_shared_experts", "first_dense_layers"),
    by_layer=("mixer",),
    departs=_departs,
    needs=("num_experts", "num_shared_experts", "delta_value_heads"),
    tensors=TensorNames(modules=(_CONVOLUTION, *_SHARED_EXPERT)),
)

_SEPARATE = Rename("linear_attn.in_proj_qkv", tuple(f"linear_attn.in_proj_{each}" for each in "qkv"))
QWEN3_5 = Family(
    name="qwen3_5_text",
    architecture="Qwen3_5ForCausalLM",
    keys=(*decoder_keys(max_position=32768, num_kv_heads=4, head_dim=256), *_HYBRID),
    states={"hidden_act": SILU, "attention_bias": FALSE, "attn_output_gate": (True,)},
    lacks=("mlp_bias",),
    read=_read_recurrent,
    reads=(_INTERVAL, "layer_types"),
    write=_write_recurrent,
    fixed={**_GATED, "delta_projection": "separate"},
    usual={"rotary_fraction": 0.25},
    may=("mixer",),
    by_layer=("mixer",),
    needs=("delta_value_heads",),
    departs=_departs,
    tensors=TensorNames(modules=(_CONVOLUTION, _SEPARATE)),
)


def _read_5_moe(raw: Mapping[str, Any], values: dict[str, Any], source: str) -> None:
    values.setdefault("ffn_size", values.get("moe_ffn_size"))
    _read_shared(raw, values, source)
    _read_recurrent(raw, values, source)


QWEN3_5_MOE = replace(
    QWEN3_5,
    name="qwen3_5_moe_text",
    architecture="Qwen3_5MoeForCausalLM",
    keys=(
        *decoder_keys(max_position=32768, num_kv_heads=2, head_dim=256),
        *_HYBRID,
        Key("num_experts", "num_experts", default=256, aliases=("num_local_experts",)),
        Key("top_k", "num_experts_per_tok", default=8),
        Key("moe_ffn_size", "moe_intermediate_size", default=512),
        _EXPERTS[1],
    ),
    read=_read_5_moe,
    reads=(*QWEN3_5.reads, _SHARED),
    write=_write_shared,
    fixed={**QWEN3_5.fixed, "shared_expert_gate": True},
    may=("mixer", "num_shared_experts"),
    needs=("num_experts", "num_shared_experts", "delta_value_heads"),
    tensors=TensorNames(modules=(_CONVOLUTION, _SEPARATE, *_SHARED_EXPERT)),
)
