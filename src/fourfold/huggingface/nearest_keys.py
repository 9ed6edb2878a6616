"""Keys of any decoder's `config.json`: names of sizes, defaults of families, kinds of feed-forward."""

from typing import Any

from fourfold.huggingface.key import number

TEXT = ("text_config", "language_config", "llm_config")
"""Keys under which a model of text and pictures describes its decoder."""
_NESTED = ("attn_config", "ffn_config")
_NAMES: dict[str, tuple[str, ...]] = {
    "num_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden_size": ("hidden_size", "n_embd", "d_model", "hidden_dim"),
    "num_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads"),
    "num_kv_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv", "kv_n_heads", "multi_query_group_num"),
    "head_dim": ("head_dim", "kv_channels", "attention_head_dim"),
    "ffn_size": ("intermediate_size_mlp", "intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", "d_ff"),
    "vocab_size": ("vocab_size", "padded_vocab_size"),
    "max_position": (
        "max_position_embeddings",
        "n_positions",
        "max_seq_len",
        "max_sequence_length",
        "seq_length",
        "n_ctx",
    ),
    "num_experts": ("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts"),
    "top_k": ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k", "moe_k"),
    "moe_ffn_size": ("moe_intermediate_size", "expert_ffn_hidden_size"),
    "num_shared_experts": ("n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts"),
    "shared_size": ("shared_expert_intermediate_size", "shared_intermediate_size"),
    "first_dense_layers": ("first_k_dense_replace", "moe_layer_start_index", "num_dense_layers"),
    "period": ("interleave_moe_layer_step", "decoder_sparse_step", "moe_layer_freq", "moe_layer_interval"),
    "query_rank": ("q_lora_rank",),
    "key_value_rank": ("kv_lora_rank",),
    "rope_head_dim": ("qk_rope_head_dim",),
    "nope_head_dim": ("qk_nope_head_dim",),
    "value_head_dim": ("v_head_dim",),
    "mtp_layers": ("num_nextn_predict_layers", "num_mtp_layers"),
    "window": ("sliding_window", "sliding_window_size", "window_size"),
}
_NONE = ("num_experts", "num_shared_experts", "shared_size", "first_dense_layers", "mtp_layers", "window", "query_rank")
"""Sizes that may be 0: there is none of it."""
_LEFT_OUT: dict[str, dict[str, Any]] = {
    "gemma": {"num_attention_heads": 16, "head_dim": 256, "vocab_size": 256000, "rms_norm_eps": 1e-6},
    "gemma2": {
        **{
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "vocab_size": 256000,
            "rms_norm_eps": 1e-6,
        },
        **{"hidden_activation": "gelu_pytorch_tanh"},
    },
    "gemma3_text": {
        **{
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "vocab_size": 262208,
            "rms_norm_eps": 1e-6,
        },
        **{"rope_theta": 1e6, "rope_local_base_freq": 1e4, "hidden_activation": "gelu_pytorch_tanh"},
    },
    "gpt_oss": {"rope_theta": 150000.0},
    "mixtral": {"num_local_experts": 8, "num_experts_per_tok": 2},
    "glm4_moe": {"head_dim": 128},
    "gpt_neox": {"use_parallel_residual": True},
    "opt": {"max_position_embeddings": 2048},
    "gpt_neo": {"max_position_embeddings": 2048},
    "gpt_bigcode": {"n_positions": 1024},
    "llama4_text": {"n_shared_experts": 1, "head_dim": 128, "rope_theta": 500000.0},
}
"""Values that transformers takes where a family's `config.json` leaves a key out; only for keys that known files leave out."""
_GATED = ("gemma", "t5gemma", "vaultgemma", "modernbert", "grok", "bitnet")
"""Beginnings of families whose feed-forward has a gate, though its activation is not silu."""
_NO_GATE = ("mpt", "bloom", "falcon", "RefinedWeb", "RefinedWebModel", "gpt_neox", "gptj", "opt", "gpt2")


def is_gated(family: str, activation: str | None) -> bool:
    """Whether the feed-forward has a gate. No `config.json` says it: with silu it has, otherwise in few families."""
    if activation is None:
        return family not in _NO_GATE
    return activation in ("silu", "swish", "swiglu") or family.startswith(_GATED)


TIED = {
    "gemma", "gemma2", "gemma3_text", "gemma3n_text", "gemma4_text", "vaultgemma", "opt", "bloom", "mpt", "gpt_bigcode", "gpt_neo",
    "falcon", "starcoder2", "cohere", "cohere2", "biogpt", "ernie4_5", "ernie4_5_moe", "gpt2", "gpt-sw3", "openai-gpt",
    "granite_swa", "minicpm3", "smollm3", "xglm", "modernbert-decoder", "youtu",
}  # fmt: skip
"""Families whose head is the embedding, where `tie_word_embeddings` is left out."""
LEARNED = {"opt", "gpt_bigcode", "gpt_neo", "gpt2", "gpt-sw3", "openai-gpt", "biogpt"}
LAYER_NORM = {"opt", "mpt", "dbrx", "cohere", "cohere2", "olmo", "nemotron"}
"""Families with means in their norms whose `config.json` does not show it; others name an epsilon of theirs."""
LAYER_NORM_KEYS = ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "layernorm_epsilon")


def flattened(raw: dict[str, Any]) -> dict[str, Any]:
    """The decoder's own keys, with what its family leaves out."""
    for key in TEXT:
        if isinstance(raw.get(key), dict):
            raw = {**{k: v for k, v in raw.items() if not isinstance(v, dict)}, **raw[key]}
    for key in _NESTED:
        if isinstance(raw.get(key), dict):
            raw = {**raw[key], **raw}
    return {**_LEFT_OUT.get(str(raw.get("model_type")), {}), **raw}


def sizes(raw: dict[str, Any], source: str) -> dict[str, int]:
    """All sizes that it states, by this package's names. Raises `UserError` for one that is no number."""
    found: dict[str, int] = {}
    for ours, names in _NAMES.items():
        name = next((name for name in names if raw.get(name) is not None), None)
        if name is None or (ours == "period" and isinstance(raw[name], list)):
            continue
        value = raw[name]
        if isinstance(value, list) and value:  # a value for each layer, or two where the second is of pictures
            value = value[-1] if ours != "moe_ffn_size" else value[0]
        found[ours] = number(value, name, source, int, zero=ours in _NONE)
    return found


def name_of(key: str) -> str:
    """The key that most families have for a size of ours."""
    return _NAMES[key][1 if key == "ffn_size" else 0]
