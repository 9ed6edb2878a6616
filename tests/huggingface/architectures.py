"""Small models of families whose `config.json` says more than Llama's: as they are stated, and resolved."""

from typing import Any

from fourfold.config import ModelConfig, ModelSection
from fourfold.config.model_config import YarnScaling
from fourfold.huggingface import resolve_model
from tests.support.model_families import FAMILIES

DIMENSIONS: dict[str, Any] = {"num_layers": 4, "hidden_size": 32, "num_heads": 4, "vocab_size": 99, "ffn_size": 56}
MLA: dict[str, Any] = {
    **DIMENSIONS,
    "key_value_rank": 16,
    "query_rank": 24,
    "rope_head_dim": 4,
    "nope_head_dim": 8,
    "value_head_dim": 6,
}
YARN = YarnScaling(factor=40.0, original_max_position=64, mscale=1.0, mscale_all_dim=1.0)
LONGER = {"factor": 8.0, "original_max_position": 8, "attention_factor": 1.25}
SHORT, LONG = (1.0, 1.25, 1.5, 1.75), (1.5, 3.0, 6.5, 9.0)
LONGROPE: dict[str, Any] = {"factor": 3.0, "original_max_position": 32, "attention_factor": 1.1}
STATED: dict[str, dict[str, Any]] = {
    "mixtral": {**DIMENSIONS, "num_kv_heads": 2, "num_experts": 8, "top_k": 2, "balance_loss": 0.02},
    "mixtral tied, windowed": {
        **DIMENSIONS, "num_experts": 8, "top_k": 3, "family": "mixtral", "tie_embeddings": True, "sliding_window": 64,
        "balance_loss": 0.0,
    },
    "qwen3_moe": {
        **DIMENSIONS, "num_kv_heads": 2, "family": "qwen3_moe", "num_experts": 16, "top_k": 4, "moe_ffn_size": 24,
        "head_dim": 16, "normalize_top_k": False, "norm_eps": 1e-6,
    },
    "qwen3_moe with dense layers": {
        **DIMENSIONS, "family": "qwen3_moe", "num_experts": 16, "top_k": 4, "moe_ffn_size": 24, "first_dense_layers": 2,
    },
    "qwen3_moe, experts in every other block": {
        **DIMENSIONS, "family": "qwen3_moe", "num_experts": 16, "top_k": 4, "moe_ffn_size": 24, "moe_period": 2,
    },
    "deepseek_v3": {
        **MLA, "family": "deepseek_v3", "num_experts": 8, "top_k": 3, "moe_ffn_size": 24, "num_shared_experts": 2,
        "first_dense_layers": 1, "num_expert_groups": 4, "top_groups": 2, "routed_scaling": 2.5, "balance_loss": 1e-4,
    },
    "deepseek_v3 with yarn": {
        **MLA, "family": "deepseek_v3", "num_experts": 8, "top_k": 3, "num_shared_experts": 1, "yarn_scaling": YARN,
        "mtp_layers": 1, "mtp_loss": 0.3, "rope_interleave": False,
    },
    "deepseek_v3 without a query rank": {
        **MLA, "query_rank": 0, "family": "deepseek_v3", "num_experts": 8, "top_k": 3, "num_shared_experts": 1,
    },
    "latent and dense": {**MLA, "family": "deepseek_v3"},
    "glm4_moe in groups": {
        **DIMENSIONS, "num_kv_heads": 2, "family": "glm4_moe", "head_dim": 12, "num_experts": 8, "top_k": 3, "moe_ffn_size": 24,
        "num_shared_experts": 2, "first_dense_layers": 1, "num_expert_groups": 4, "top_groups": 2, "qkv_bias": True,
        "routed_scaling": 2.5, "rotary_fraction": 2 / 3, "mtp_layers": 1,
    },
    "glm4_moe with yarn and norms": {
        **DIMENSIONS, "family": "glm4_moe", "num_experts": 8, "top_k": 3, "yarn_scaling": YARN, "qk_norm": True,
        "num_shared_experts": 1,
    },
    "gpt2": {**DIMENSIONS, "family": "gpt2", "max_position": 64},
    "gpt2 untied": {**DIMENSIONS, "family": "gpt2", "tie_embeddings": False},
    **{name: {**DIMENSIONS, **stated, "balance_bias_speed": 0} for name, stated in FAMILIES.items()},  # it stands in no config.json
    "olmo3 without windows": {**DIMENSIONS, "family": "olmo3", "rope_theta": 1e6},
    "olmo3 in two": {
        **DIMENSIONS, "family": "olmo3", "num_kv_heads": 2, "head_dim": 12, "rope_theta": 5e5, "sliding_window": 16,
        "exceptions": [{"layers": [1, 2], "sliding_window": 0, "yarn_scaling": LONGER}],
    },
    "gemma2 without caps": {**DIMENSIONS, "family": "gemma2", "tie_embeddings": False},
    "gemma3_text without windows": {**DIMENSIONS, "family": "gemma3_text", "rope_theta": 1e6, "tie_embeddings": False},
    "gpt_oss in two": {
        **DIMENSIONS, "family": "gpt_oss", "num_kv_heads": 2, "head_dim": 12, "num_experts": 6, "top_k": 3,
        "swiglu_limit": 2.0, "sliding_window": 7, "exceptions": [{"every": 2, "sliding_window": 0}],
    },
    "gpt_oss, one window, yarn": {
        **DIMENSIONS, "family": "gpt_oss", "num_experts": 6, "top_k": 3, "sliding_window": 1,
        "yarn_scaling": YarnScaling(factor=32.0, original_max_position=16, truncate=False),
        "exceptions": [{"layers": [0, 1, 3], "sliding_window": 0}],
    },
    "llama4_text without norms and temperature": {
        **DIMENSIONS, "family": "llama4_text", "num_experts": 4, "top_k": 2, "moe_ffn_size": 24, "first_dense_layers": 1,
        "attention_chunk": 1, "exceptions": [{"layers": [1], "positions": "none"}, {"layers": [2], "attention_chunk": 0}],
    },
    "llama with yarn": {**DIMENSIONS, "yarn_scaling": YarnScaling(factor=4.0, original_max_position=32)},
    "llama with yarn and its factor": {
        **DIMENSIONS, "yarn_scaling": YarnScaling(factor=40.0, original_max_position=32, attention_factor=1.25),
    },
    "llama with linear scaling": {**DIMENSIONS, "linear_scaling": 3.0},
    "llama with dynamic scaling": {**DIMENSIONS, "dynamic_scaling": 3.0, "max_position": 64},
    "llama with longrope": {
        **DIMENSIONS, "longrope_scaling": {**LONGROPE, "short_factor": SHORT, "long_factor": LONG}, "max_position": 96,
    },
    "deepseek_v3 with linear scaling": {**MLA, "family": "deepseek_v3", "linear_scaling": 3.0},
}  # fmt: skip


def resolve(**stated: Any) -> ModelConfig:
    return resolve_model(ModelSection(**stated))


MODELS = {name: resolve(**stated) for name, stated in STATED.items()}
