"""GLM-4.5: DeepSeek-V3's experts behind attention with grouped queries, of whose heads a part is rotated."""

from fourfold.huggingface.family import SILU, Family
from fourfold.huggingface.key import Key, decoder_keys
from fourfold.huggingface.layer_types import require_same_layers

GLM4_MOE = Family(
    name="glm4_moe",
    architecture="Glm4MoeForCausalLM",
    keys=(
        *decoder_keys(max_position=131072, num_kv_heads=8, norm_eps=1e-5),
        Key("rotary_fraction", "partial_rotary_factor", float, 0.5),
        Key("qkv_bias", "attention_bias", bool, False),
        Key("qk_norm", "use_qk_norm", bool, False),
        Key("num_experts", "n_routed_experts", default=128, aliases=("num_local_experts",)),
        Key("top_k", "num_experts_per_tok", default=8),
        Key("moe_ffn_size", "moe_intermediate_size", default=1408),
        Key("num_shared_experts", "n_shared_experts", default=1),
        Key("first_dense_layers", "first_k_dense_replace", default=1, zero=True),
        Key("normalize_top_k", "norm_topk_prob", bool, True),
        Key("routed_scaling", "routed_scaling_factor", float, 1.0),
        Key("num_expert_groups", "n_group", default=1),
        Key("top_groups", "topk_group", default=1),
        Key("mtp_layers", "num_nextn_predict_layers", default=0, zero=True, aliases=("num_mtp_layers",)),
    ),
    states={"hidden_act": SILU},
    lacks=("mlp_bias",),
    constants={"output_router_logits": False},
    read=require_same_layers,
    reads=("layer_types",),
    fixed={"router": "sigmoid"},
    may=("balance_bias_speed",),
    usual={"rotary_fraction": 0.5},
    needs=("num_experts", "num_shared_experts"),
    balance_bias=True,
)
