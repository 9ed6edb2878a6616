"""Small models of the families that people train, as run files state them: what is listed here gets its tests of parity,
of `config.json` by transformers and back, and of weights to and from transformers.

Sizes are odd where they may be; layers are enough for two stages with two virtual ones each, and for every kind of layer.
"""

from typing import Any

FAMILIES: dict[str, dict[str, Any]] = {
    "gemma3_text": {
        "family": "gemma3_text",
        "num_layers": 4,
        "head_dim": 6,
        "attention_scale": 0.5**1.5,
        "rope_theta": 10000.0,
        "sliding_window": 6,
        "exceptions": [{"every": 3, "sliding_window": 0, "rope_theta": 1000000.0, "linear_scaling": 8.0}],
    },
    "olmo2": {"family": "olmo2", "num_layers": 5, "num_kv_heads": 2, "head_dim": 12, "rope_theta": 5e5},
    "qwen3_next": {
        "family": "qwen3_next",
        "num_layers": 5,
        "num_kv_heads": 2,
        "head_dim": 8,
        "mixer": "gated_delta",
        "exceptions": [{"every": 3, "mixer": "attention"}],
        "delta_key_heads": 4,
        "delta_value_heads": 8,
        "delta_key_dim": 6,
        "delta_value_dim": 4,
        "delta_kernel": 3,
        "num_experts": 4,
        "top_k": 2,
        "moe_ffn_size": 20,
        "num_shared_experts": 2,
        "first_dense_layers": 1,
    },
    "qwen2": {
        "family": "qwen2",
        "num_layers": 4,
        "qkv_bias": True,
        "sliding_window": 5,
        "exceptions": [{"every": 2, "sliding_window": 0}],
    },
    "glm4_moe": {
        "family": "glm4_moe",
        "num_layers": 5,
        "rotary_fraction": 0.5,
        "qkv_bias": True,
        "qk_norm": True,
        "num_experts": 4,
        "top_k": 2,
        "moe_ffn_size": 20,
        "num_shared_experts": 2,
        "first_dense_layers": 1,
        "routed_scaling": 1.5,
        "balance_bias_speed": 0.01,
        "mtp_layers": 1,
    },
}
"""By name; the name begins with the family's `model_type`. Keys of `[model]` beside `parity_runs.DIMENSIONS`."""
