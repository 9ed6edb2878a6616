"""Mistral, and Mixtral (Jiang et al. 2024): Mistral with a mixture of experts in every block."""

from typing import Any

from fourfold.config.model_config import ModelConfig
from fourfold.huggingface.family import SILU, Family, Rename, TensorNames
from fourfold.huggingface.key import Key, decoder_keys
from fourfold.huggingface.layer_types import require_same_layers

MISTRAL = Family(
    name="mistral",
    architecture="MistralForCausalLM",
    keys=(
        *decoder_keys(max_position=131072, num_kv_heads=8),
        Key("sliding_window", "sliding_window", default=4096),
    ),
    states={"hidden_act": SILU},
    lacks=("attention_bias", "mlp_bias"),
    read=require_same_layers,
    reads=("layer_types",),
)


def _write(model: ModelConfig) -> dict[str, Any]:
    return {"intermediate_size": model.moe_ffn_size}


MIXTRAL = Family(
    name="mixtral",
    architecture="MixtralForCausalLM",
    keys=(
        *decoder_keys(num_kv_heads=8, norm_eps=1e-5, rope_theta=1e6),
        Key("sliding_window", "sliding_window"),
        Key("num_experts", "num_local_experts", default=8, aliases=("num_experts",)),
        Key("top_k", "num_experts_per_tok", default=2),
        Key("balance_loss", "router_aux_loss_coef", float, 0.001, zero=True, switch="output_router_logits"),
    ),
    states={"hidden_act": SILU, "router_jitter_noise": (0.0,)},
    lacks=("attention_bias", "mlp_bias"),
    read=require_same_layers,
    reads=("layer_types",),
    write=_write,
    may=("moe_ffn_size",),
    needs=("num_experts",),
    tensors=TensorNames(
        modules=(Rename("block_sparse_moe.gate", ("mlp.gate",)),),
        experts=("block_sparse_moe.experts", "w1", "w3", "w2"),
    ),
)
