"""Valid configurations of every family, and the values that `tests/support/config_mutations.py` puts in place of theirs."""

import random
from collections.abc import Iterator
from typing import Any

LEFT_OUT = "<left out>"
SIZES: dict[str, Any] = {
    "vocab_size": 272, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "initializer_range": 0.2, "bos_token_id": None, "eos_token_id": 256,
    "pad_token_id": None,
}  # fmt: skip
_MLA: dict[str, Any] = {
    "num_key_value_heads": 4, "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 16, "n_shared_experts": 1,
    "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "q_lora_rank": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8, "v_head_dim": 8,
}  # fmt: skip
_GLM: dict[str, Any] = {
    "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 16, "n_shared_experts": 1, "n_group": 2,
    "topk_group": 1, "first_k_dense_replace": 1, "head_dim": 8, "use_qk_norm": True,
}  # fmt: skip
_QWEN_MOE: dict[str, Any] = {
    "moe_intermediate_size": 16, "num_experts": 8, "num_experts_per_tok": 2, "head_dim": 8
}  # fmt: skip
_QWEN_NEXT: dict[str, Any] = {
    **_QWEN_MOE, "shared_expert_intermediate_size": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 8, "linear_value_head_dim": 4, "linear_conv_kernel_dim": 3, "full_attention_interval": 2,
    "partial_rotary_factor": 0.5,
}  # fmt: skip
_KIMI: dict[str, Any] = {
    "num_key_value_heads": 4, "moe_intermediate_size": 16, "num_experts": 8, "num_experts_per_token": 3, "num_expert_group": 2,
    "topk_group": 2, "kv_lora_rank": 16, "qk_rope_head_dim": 3, "qk_nope_head_dim": 5, "v_head_dim": 6,
    "routed_scaling_factor": 1.5,
}  # fmt: skip
_LINEAR = {
    "kda_layers": [1], "full_attn_layers": [2], "num_heads": 2, "head_dim": 8, "short_conv_kernel_size": 3,
}  # fmt: skip
_QWEN_5: dict[str, Any] = {
    **{key: value for key, value in _QWEN_NEXT.items() if key.startswith("linear")}, "head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5, "mrope_interleaved": True,
        "mrope_section": [1, 1, 0],
    },
}  # fmt: skip
_LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 1e4, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
_YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
_DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 3.0}
_LONGROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0, 1.5, 2.0, 2.5],
    "long_factor": [2.0, 3.0, 5.0, 9.0],
}
_WINDOW = {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}
BASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama tied": ("llama", {"tie_word_embeddings": True}),
    "llama scaled": ("llama", {"rope_parameters": _LLAMA3}),
    "llama yarn": ("llama", {"rope_parameters": _YARN}),
    "llama linear": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0}}),
    "llama dynamic": ("llama", {"rope_parameters": _DYNAMIC}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral windowed": ("mistral", {"sliding_window": 16}),
    "qwen2": ("qwen2", {}),
    "qwen2 windowed": ("qwen2", _WINDOW),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "qwen3 windowed": ("qwen3", {**_WINDOW, "head_dim": 8}),
    "mixtral": ("mixtral", {"num_local_experts": 4}),
    "qwen3_moe": ("qwen3_moe", _QWEN_MOE),
    "qwen3_moe windowed": ("qwen3_moe", {**_QWEN_MOE, "use_sliding_window": True, "sliding_window": 16}),
    "deepseek_v3": ("deepseek_v3", _MLA),
    "deepseek_v3 yarn": ("deepseek_v3", {**_MLA, "rope_parameters": {**_YARN, "mscale": 1.0, "mscale_all_dim": 0.7}}),
    "glm4_moe": ("glm4_moe", _GLM),
    "gpt2": ("gpt2", {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "n_inner": 64}),
    "gpt_oss": ("gpt_oss", {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8, "sliding_window": 16}),
    "llama4_text": (
        "llama4_text",
        {
            **{
                "num_local_experts": 4,
                "num_experts_per_tok": 1,
                "head_dim": 8,
                "intermediate_size_mlp": 48,
                "floor_scale": 4,
            },
            **{"attention_chunk_size": 16, "no_rope_layer_interval": 2},
        },
    ),
    "olmo2": ("olmo2", {}),
    "olmo3": ("olmo3", {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}),
    "olmo_hybrid": (
        "olmo_hybrid",
        {"layer_types": ["full_attention", "linear_attention"], "linear_num_value_heads": 8, "linear_key_head_dim": 6},
    ),
    "gemma2": (
        "gemma2",
        {"head_dim": 16, "sliding_window": 16, "attn_logit_softcapping": 0.5, "final_logit_softcapping": 2.0},
    ),
    "gemma3_text": ("gemma3_text", {"head_dim": 16, "sliding_window": 16, "sliding_window_pattern": 2}),
    "lfm2": ("lfm2", {"layer_types": ["conv", "full_attention"], "block_multiple_of": 8}),
    "phi3": ("phi3", {"sliding_window": None}),
    "qwen3_next": ("qwen3_next", _QWEN_NEXT),
    "kimi_linear": (
        "kimi_linear",
        {
            **_KIMI,
            **{"linear_num_heads": 2, "linear_head_dim": 8, "linear_conv_kernel_dim": 3},
            **{"layer_types": ["full_attention", "linear_attention"], "mlp_layer_types": ["dense", "sparse"]},
        },
    ),
    "kimi_linear released": ("kimi_linear", {**_KIMI, "linear_attn_config": _LINEAR, "first_k_dense_replace": 1}),
    "qwen3_5_text": ("qwen3_5_text", _QWEN_5),
    "qwen3_5_moe_text": (
        "qwen3_5_moe_text",
        {
            **_QWEN_MOE,
            **_QWEN_5,
            "shared_expert_intermediate_size": 32,
            "layer_types": None,
            "full_attention_interval": 2,
        },
    ),
    "phi3 long": (
        "phi3",
        {"sliding_window": None, "rope_parameters": _LONGROPE, "original_max_position_embeddings": 16},
    ),
}
"""Families and keys of valid folders."""
_STRINGS: dict[str, tuple[str, ...]] = {
    "hidden_act": ("gelu", "relu", "gelu_pytorch_tanh", "swish"),
    "activation_function": ("gelu", "relu", "silu", "gelu_pytorch_tanh", "gelu_fast"),
    "rope_type": ("default", "linear", "dynamic", "yarn", "llama3", "longrope", "proportional"),
    "model_type": ("llama", "mistral", "qwen2", "qwen3", "phi3", "gemma", "mixtral"),
}
OTHERS: dict[str, tuple[Any, ...]] = {
    "is_causal": (False, True), "partial_rotary_factor": (0.5, 1.0), "attention_chunk_size": (16,), "rope_theta": (5e5, None),
    "original_max_position_embeddings": (8, 48),
    "rope_scaling": (
        None, {"type": "linear", "factor": 2.0}, {"rope_type": "dynamic", "factor": 2.0}, {**_YARN},
        {"rope_type": "default"}, {"type": "default"}, {"factor": 8.0}, {**_LLAMA3}, [], {**_YARN, "attention_factor": 0.5},
        {"rope_type": "yarn", "factor": 2.0}, {**_YARN, "beta_fast": 4, "beta_slow": 2}, {**_YARN, "mscale": 0.7},
        {**_YARN, "mscale": 0.7, "mscale_all_dim": 0.3}, {**_YARN, "truncate": False},
    ),
    "head_dim": (8, 4, 16), "num_key_value_heads": (1, 4), "sliding_window": (8, 64), "use_sliding_window": (True, False),
    "max_window_layers": (0, 1, 2), "attention_bias": (True, False), "mlp_bias": (True, False), "qkv_bias": (True, False),
    "layer_types": (
        ["sliding_attention", "sliding_attention"], ["full_attention", "full_attention"], ["full_attention", "sliding_attention"],
        ["chunked_attention", "full_attention"], ["full_attention"], ["full_attention"] * 3, ["linear_attention"] * 2,
    ),
    "num_experts": (0, 4, 8, 16), "num_local_experts": (0, 4, 8), "n_routed_experts": (0, 4), "moe_layer_freq": (1, 2, [0, 1]),
    "hidden_size": (32, 64), "num_attention_heads": (2, 4, 8), "num_hidden_layers": (1, 2, 3), "max_position_embeddings": (48, 128),
    "use_qk_norm": (True,), "qk_layernorm": (True,), "scoring_func": ("softmax", "sigmoid"), "topk_method": ("greedy", "noaux_tc"),
    "attn_logit_softcapping": (5.0,), "final_logit_softcapping": (3.0,), "logit_scale": (2.0,), "embedding_multiplier": (2.0,),
    "residual_multiplier": (2.0,), "logits_scaling": (2.0,), "attention_multiplier": (2.0,), "query_pre_attn_scalar": (2.0,),
    "clip_qkv": (0.1,), "no_rope_layers": ([0, 1],), "no_rope_layer_interval": (2,), "rope_interleave": (True, False),
    "rope_interleaved": (True,), "mlp_only_layers": ([0], [1], [0, 1], [5], [0, 0]), "decoder_sparse_step": (2, 0),
    "num_mtp_layers": (0, 1), "num_nextn_predict_layers": (0, 1), "qk_head_dim": (12, 6), "attention_dropout": (0.1,),
    "hidden_dropout": (0.1,), "resid_pdrop": (0.1,), "embd_pdrop": (0.1,), "attn_pdrop": (0.1,), "dropout": (0.1,),
    "summary_first_dropout": (0.3,), "classifier_dropout": (0.1,), "reorder_and_upcast_attn": (True,),
    "scale_attn_weights": (False,),
    "router_jitter_noise": (0.1,), "add_cross_attention": (True,), "is_decoder": (False, True), "is_encoder_decoder": (True,),
    "chunk_size_feed_forward": (8,), "pretraining_tp": (2,), "tie_word_embeddings": (True, False), "output_router_logits": (True,),
    "norm_topk_prob": (True, False), "n_inner": (None, 64, 128), "quantization_config": ({"quant_method": "fp8"}, {}),
    "text_config": ({"num_hidden_layers": 1}, {}), "per_layer_config": ({"0": {"sliding_window": 4}},),
    "pruned_heads": ({"0": [0]},),
    "mlp_layer_types": (["dense"] * 2, ["sparse"] * 2, ["sparse", "dense"], ["dense"]), "first_k_dense_replace": (0, 1, 2, 3),
    "linear_attn_config": (
        {}, _LINEAR, {**_LINEAR, "kda_layers": [1, 2]}, {**_LINEAR, "kda_layers": [2]}, {**_LINEAR, "num_heads": 4},
        {**_LINEAR, "full_attn_layers": [3]}, {"head_dim": 4}, {**_LINEAR, "gate_lower_bound": -5.0},
        {**_LINEAR, "kda_layers": None},
    ),
    "linear_num_heads": (4,), "linear_head_dim": (4,), "linear_conv_kernel_dim": (1, 4), "n_group": (1, 2),
    "num_expert_group": (1,),
    "moe_renormalize": (False,), "n_shared_experts": (2,), "model_max_length": (48,), "mla_use_nope": (False, True),
    "moe_router_activation_func": ("softmax",), "use_grouped_topk": (False,),
    "layer_norm_epsilon": (0.5,), "rms_norm_eps": (0.5, 0.0),
}  # fmt: skip
"""Values of keys that a folder need not have: other spellings, and keys of other families."""
ROPE_VALUES = {
    "partial_rotary_factor": (0.5, 1.0), "attention_factor": (0.5,), "truncate": (False,), "mscale": (0.5, 0.0),
    "mscale_all_dim": (0.5, 0.0), "beta_fast": (4, None, 0), "beta_slow": (2, None, 0), "type": ("linear", "yarn", "default"),
    "short_factor": ([2.0] * 4,), "long_factor": ([2.0] * 4,), "factor": (2.0, 0.5, None), "rope_theta": (5e5, None),
    "original_max_position_embeddings": (8, 64, None), "low_freq_factor": (2.0,), "high_freq_factor": (2.0, 8.0),
    "full_attention": ({"rope_type": "default", "rope_theta": 5e5},),
}  # fmt: skip


def changes(key: str, value: Any, name: str) -> Iterator[Any]:
    """Other values of a key: one of each type, and its neighbours."""
    if (
        key == "model_type" and name == "gpt2"
    ):  # the others' own sizes, whose keys it has not, do not fit a small machine
        return
    draw = random.Random(f"{name} {key}")
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value + 1, 2 * value, value // 2, 0, -1, value + 0.5, float(value), str(value))
    elif key == "rope_theta":
        yield from (2 * value, value + 0.5, 0, -1, str(value))
    elif isinstance(value, float):
        yield from (value * 2 + 0.25, round(draw.uniform(0.1, 0.9), 3), 0.0, 0, -value - 1, str(value))
    elif isinstance(value, str):
        yield from (*_STRINGS.get(key, ()), "x")
    elif isinstance(value, list):
        yield from ([], value[:1], [*value, *value[:1]], value[::-1])
    elif value is None:
        yield from (True, 1, 2, 0.5, "x")
    yield from (None, [value], LEFT_OUT)
