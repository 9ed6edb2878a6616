"""DeepSeek-V3, and Kimi-K2, which is one: multi-head latent attention, experts with sigmoid scores, shared experts, multi-token
prediction."""

from collections.abc import Mapping, Sequence
from typing import Any

from fourfold.config.errors import UserError, shortened
from fourfold.config.model_config import ModelConfig
from fourfold.huggingface.family import FALSE, SILU, Family
from fourfold.huggingface.key import Key, decoder_keys
from fourfold.huggingface.layer_types import require_same_layers

_EXPERTS = (
    Key("num_experts", "n_routed_experts", default=256, aliases=("num_local_experts",)),
    Key("top_k", "num_experts_per_tok", default=8),
    Key("moe_ffn_size", "moe_intermediate_size", default=2048),
    Key("num_shared_experts", "n_shared_experts", default=1),
    Key("first_dense_layers", "first_k_dense_replace", default=3, zero=True),
    Key("normalize_top_k", "norm_topk_prob", bool, True),
    Key("routed_scaling", "routed_scaling_factor", float, 2.5),
    Key("num_expert_groups", "n_group", default=8),
    Key("top_groups", "topk_group", default=4),
    Key("balance_loss", "aux_loss_alpha", float, 0.0, zero=True),
)
_ATTENTION = (
    Key("query_rank", "q_lora_rank", default=1536),
    Key("key_value_rank", "kv_lora_rank", default=512),
    Key("rope_head_dim", "qk_rope_head_dim", default=64),
    Key("nope_head_dim", "qk_nope_head_dim", default=128),
    Key("value_head_dim", "v_head_dim", default=128),
    Key("rope_interleave", "rope_interleave", bool, True),
)


def experts_depart(model: ModelConfig) -> dict[str, Any]:
    """Keys of a model whose experts are not routed by sigmoids, or of which no token passes all."""
    result: dict[str, Any] = {}
    if model.num_experts and model.router != "sigmoid":
        result["router"] = model.router
    if model.num_experts and not model.num_shared_experts:
        result["num_shared_experts"] = 0
    return result


def no_experts(values: dict[str, Any], keys: Sequence[Key]) -> None:
    """Takes out what `keys` read of experts, where no layer has any."""
    for key in (*(key.ours for key in keys), "router"):
        values.pop(key, None)


def _read(raw: Mapping[str, Any], values: dict[str, Any], source: str) -> None:
    if raw.get("head_dim") not in (None, values.get("rope_head_dim")):  # transformers rotates so many elements
        raise UserError(
            f"{source}: head_dim = {shortened(raw['head_dim'])} is not supported for deepseek_v3, in which it is the size of the "
            f"rotated part; allowed: qk_rope_head_dim = {values.get('rope_head_dim')}, or leave it out"
        )
    require_same_layers(raw, values, source)
    for table in (
        raw.get("rope_parameters") or {},
        raw.get("rope_scaling") or {},
    ):  # of any kind it scales the scores there
        if (
            table.get("mscale_all_dim")
            and values.get("yarn_scaling") is None
            and table.get("rope_type", "default") != "default"
        ):
            raise UserError(
                f"{source}: rope scaling's mscale_all_dim = {shortened(table['mscale_all_dim'])} is not supported for rope_type = "
                f"{table['rope_type']!r}; allowed: 0, or leave it out"
            )
    if values.get("first_dense_layers", 0) >= values.get("num_layers", 0):  # no layer has experts
        no_experts(values, _EXPERTS)


def _write(model: ModelConfig) -> dict[str, Any]:
    if model.num_experts:
        return {}
    return {  # transformers wants numbers even where no layer has experts
        "n_routed_experts": 1,
        "num_experts_per_tok": 1,
        "moe_intermediate_size": model.ffn_size,
        "n_shared_experts": 1,
        "first_k_dense_replace": model.num_layers,
    }


DEEPSEEK_V3 = Family(
    name="deepseek_v3",
    architecture="DeepseekV3ForCausalLM",
    keys=(  # transformers writes the rotary part's size as head_dim
        *decoder_keys("head_dim", max_position=4096),
        *_EXPERTS,
        *_ATTENTION,
        Key("mtp_layers", "num_nextn_predict_layers", default=0, zero=True, aliases=("num_mtp_layers",)),
    ),
    states={
        "hidden_act": SILU,
        "attention_bias": FALSE,
        "scoring_func": ("sigmoid",),
        "topk_method": ("noaux_tc",),
        "moe_layer_freq": (1,),
    },
    lacks=("mlp_bias",),
    constants={"output_router_logits": False},
    read=_read,
    reads=("head_dim", "layer_types"),
    write=_write,
    may=("router", "balance_bias_speed"),
    usual={"router": "sigmoid", "rope_interleave": True, "norm_eps": 1e-6},
    needs=("key_value_rank",),
    departs=experts_depart,
    balance_bias=True,
)
