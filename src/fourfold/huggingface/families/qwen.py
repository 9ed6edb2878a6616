"""Qwen2, with biases of queries, keys and values; Qwen3, with norms of queries and keys; Qwen3-MoE, with experts."""

from collections.abc import Mapping
from typing import Any

from fourfold.config.errors import UserError
from fourfold.config.model_config import ModelConfig
from fourfold.huggingface.family import FALSE, SILU, Family
from fourfold.huggingface.key import Key, decoder_keys
from fourfold.huggingface.layer_types import FULL, SLIDING, layer_types, one_window, read_switched_window, window_of

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
    layers = raw.get("mlp_only_layers")
    dense = layers or []
    if not isinstance(dense, list) or sorted(map(str, dense)) != sorted(map(str, range(len(dense)))):
        raise UserError(
            f"{source}: mlp_only_layers = {layers!r} is not supported: dense layers must be the first ones; allowed: for "
            f"example [], [0], [0, 1]"
        )
    values["first_dense_layers"] = len(dense)


def _write_moe(model: ModelConfig) -> dict[str, Any]:
    return {**_write_window(model), "mlp_only_layers": list(range(model.first_dense_layers))}


QWEN3_MOE = Family(
    name="qwen3_moe",
    architecture="Qwen3MoeForCausalLM",
    keys=(
        *decoder_keys(max_position=32768, num_kv_heads=4),
        Key("num_experts", "num_experts", default=128, aliases=("num_local_experts",)),
        Key("top_k", "num_experts_per_tok", default=8),
        Key("moe_ffn_size", "moe_intermediate_size", default=768),
        Key("normalize_top_k", "norm_topk_prob", bool, False),
        Key("balance_loss", "router_aux_loss_coef", float, 0.001, zero=True, switch="output_router_logits"),
        Key("moe_period", "decoder_sparse_step", default=1),
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
