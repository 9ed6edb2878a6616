"""Qwen2, with biases of queries, keys and values; Qwen3, with norms of queries and keys; Qwen3-MoE, with experts."""

from collections.abc import Mapping
from typing import Any

from fourfold.config.errors import UserError
from fourfold.config.model_config import ModelConfig
from fourfold.huggingface.family import DENSE, FALSE, GROUPED, SILU, SOFTMAX, Family
from fourfold.huggingface.key import Key, decoder_keys
from fourfold.huggingface.layer_types import layer_types, read_switched_window

_WINDOW = ("use_sliding_window", "sliding_window", "layer_types")


def _write_window(model: ModelConfig) -> dict[str, Any]:
    """A window of every layer, of some, or none."""
    if model.sliding_window is None:
        return {"use_sliding_window": False}
    full = model.full_attention_layers
    written: dict[str, Any] = {
        "use_sliding_window": True,
        "sliding_window": model.sliding_window,
        "max_window_layers": len(full),
    }
    if full != tuple(range(len(full))):
        written["layer_types"] = layer_types(model)
    return written


def _some_layers(fixed: Mapping[str, Any]) -> dict[str, Any]:
    """Fixed values of a family in which some layers may have no window."""
    return {key: value for key, value in fixed.items() if key != "full_attention_layers"}


QWEN2 = Family(
    name="qwen2",
    architecture="Qwen2ForCausalLM",
    keys=decoder_keys(max_position=32768, num_kv_heads=32),
    states={"hidden_act": SILU},
    lacks=("mlp_bias",),
    read=read_switched_window,
    reads=(*_WINDOW, "max_window_layers"),
    write=_write_window,
    fixed={**_some_layers(DENSE), "qkv_bias": True},
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
    fixed={**_some_layers(DENSE), "qk_norm": True},
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
    fixed={**GROUPED, **SOFTMAX, "qk_norm": True},
    needs=("num_experts",),
)
