"""Keys of any decoder's `config.json`: names of sizes, defaults of families, kinds of feed-forward.

Numbers that no size shows follow: rotary base and scaling, epsilon, scales; and keys that nothing reads.
"""

from typing import Any

from fourfold.config.errors import UserError
from fourfold.huggingface.families import FAMILIES
from fourfold.huggingface.key import number
from fourfold.huggingface.rope import read_rope

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
    "mixtral": {"num_local_experts": 8, "num_experts_per_tok": 2},
    "gpt_neox": {"use_parallel_residual": True},
    "opt": {"max_position_embeddings": 2048},
    "gpt_neo": {"max_position_embeddings": 2048},
    "gpt_bigcode": {"n_positions": 1024},
}
"""Values that transformers takes where a family's `config.json` leaves a key out; only for keys that known files leave out."""
_GATED = ("gemma", "t5gemma", "vaultgemma", "modernbert", "grok", "bitnet")
"""Beginnings of families whose feed-forward has a gate, though its activation is not silu."""
_NO_GATE = ("mpt", "bloom", "falcon", "RefinedWeb", "RefinedWebModel", "gpt_neox", "gptj", "opt", "gpt2")
EPSILONS = (
    "rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "layernorm_epsilon", "norm_eps",
)  # fmt: skip
_BASES = ("rope_theta", "rotary_emb_base", "rope_base", "rotary_base")
_PARTS = ("partial_rotary_factor", "rotary_pct", "rope_pct", "rotary_percent", "rope_partial_factor")
_PARTLY = {
    "glm": 0.5, "glm4": 0.5, "chatglm": 0.5, "gpt_neox": 0.25, "stablelm": 0.25, "phi": 0.5, "nemotron": 0.5,
}  # fmt: skip
"""The part of a head that rotates, where a family's `config.json` may leave it out."""
_SCALES = (
    "embedding_multiplier", "logits_scaling", "residual_multiplier", "attention_multiplier", "logit_scale", "scale_emb",
    "scale_depth", "dim_model_base", "mup_width_scale", "mup_embeddings_scale", "lm_head_multiplier",
)  # fmt: skip
_SIGMOID = ("dots1", "minimax_m2", "ernie4_5_moe_vl", "longcat", "bailing_moe")
_OF_FAMILIES: tuple[tuple[str, str], ...] = (
    ("gemma", "embeddings are not multiplied by the root of their width"),
    ("exaone4", "norms behind attention and feed-forward stand before them"),
    ("olmoe", "norms of queries and keys are per head"),
    ("minimax_m2", "norms of queries and keys are per head"),
)
"""Beginnings of families, and what all of their models have that no key says."""
_NO_NUMBERS = {
    "architectures", "model_type", "auto_map", "transformers_version", "torch_dtype", "dtype", "use_cache", "return_dict",
    "return_dict_in_generate", "name_or_path", "pretraining_tp", "is_decoder", "chunk_size_feed_forward", "problem_type",
    "id2label", "label2id", "num_labels", "classifier_dropout", "ep_size", "seq_aux", "generation_config", "bad_words_ids",
    "use_parallel_residual", "gradient_checkpointing", "tokenizer_class", "task_specific_params", "attn_implementation",
    "use_flash_attn", "use_cache_quantization", "onnx_safe", "fp16", "bf16", "fp32", "max_window_layers", "quantization_config",
    "unsloth_version", "unsloth_fixed", "cross_attention_hidden_size", "rope_parameters", "topk_method", "qk_head_dim",
    "moe_layers", "attn_impl", "init_device", "word_embed_proj_dim", "attn_config", "ffn_config", "new_decoder_architecture",
}  # fmt: skip
"""Keys that say nothing of what the decoder computes in training."""
_MANY = 12
"""Unread keys that are named."""


def is_gated(family: str, activation: str | None) -> bool:
    """Whether the feed-forward has a gate. No `config.json` says it: with silu it has, otherwise in few families."""
    if activation is None:
        return family not in _NO_GATE
    return activation in ("silu", "swish", "swiglu") or family.startswith(_GATED)


TIED = {
    "gemma", "gemma3n_text", "gemma4_text", "vaultgemma", "opt", "bloom", "mpt", "gpt_bigcode", "gpt_neo",
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
    family = str(raw.get("model_type"))
    keys = FAMILIES[family].keys if family in FAMILIES else ()
    usual = {key.theirs: key.default for key in keys if key.default is not None and not key.switch}
    return {**usual, **_LEFT_OUT.get(family, {}), **raw}


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


class AskedKeys(dict[str, Any]):
    """The object of a `config.json` that notes which of its keys were asked for."""

    def __init__(self, raw: dict[str, Any]) -> None:
        super().__init__(raw)
        self.keys_asked: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.keys_asked.add(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self.keys_asked.add(key)
        return super().__getitem__(key)

    def unread(self) -> list[str]:
        """Keys with values of which none was asked for."""
        return [
            key
            for key, value in self.items()
            if value not in (None, False, 0, "", [], {})
            and key not in self.keys_asked
            and key not in _NO_NUMBERS
            and not key.startswith(("_", "output_", "summary_", "vision_", "image_", "audio_", "video_"))
            and not key.endswith(("_token_id", "_token_index"))
        ]


def numbers(raw: AskedKeys, family: str, values: dict[str, Any], differences: list[str], source: str) -> dict[str, Any]:
    """Rotary positions, epsilon, initial weights and the router's numbers, by this package's names; adds to `differences` what has
    no such name. `values`: the dimensions. Raises `UserError` for what is no number."""
    found: dict[str, Any] = {}
    epsilon = next((key for key in EPSILONS if raw.get(key) is not None), None)
    if epsilon is not None and "key_value_rank" not in values:
        found["norm_eps"] = number(raw[epsilon], epsilon, source, float)
    if raw.get("initializer_range"):
        found["init_std"] = number(raw["initializer_range"], "initializer_range", source, float)
    found.update(_rotary(raw, family, values, differences, source))
    if values.get("num_experts"):
        found.update(_router(raw, family, source))
    differences += _scales(raw, values)
    differences += [words for name, words in _OF_FAMILIES if family.startswith(name) and family not in FAMILIES]
    if dropouts := [
        key
        for key in raw
        if key.endswith(("dropout", "pdrop", "dropout_prob")) and raw.get(key) and key not in _NO_NUMBERS
    ]:
        differences.append(f"{', '.join(dropouts[:_MANY])}: there is no dropout")
    return found


def unread_keys(raw: AskedKeys) -> list[str]:
    """One line on the keys that nothing read; none where there are none."""
    names = [key if key.isidentifier() else ascii(key)[:40] for key in raw.unread()]
    more = f" and {len(names) - _MANY} more" if len(names) > _MANY else ""
    return [f"{', '.join(names[:_MANY])}{more}: not read"] if names else []


def _rotary(raw: AskedKeys, family: str, values: dict[str, Any], differences: list[str], source: str) -> dict[str, Any]:
    """Base and scaling. Where layers of two kinds have their own, those of full attention."""
    if values.get("positions") == "learned":
        return {}
    found: dict[str, Any] = {}
    parameters = _table(raw, "rope_parameters")
    kinds = {name: each for name, each in parameters.items() if isinstance(each, dict)}
    if kinds:
        parameters = kinds.get("full_attention", next(iter(kinds.values())))
    base = next((key for key in _BASES if raw.get(key) is not None), None)
    if base is not None:
        found["rope_theta"] = number(raw[base], base, source, float)
    if _rotating(raw, parameters, family, values) != 1:
        differences.append("rotary positions of a part of each head as of all of it")
    stated = {"rope_parameters": {**_table(raw, "rope_scaling"), **parameters, "partial_rotary_factor": 1}}
    try:
        read_rope(stated, found, ("default", "llama3", "yarn", "linear", "dynamic"), source)
    except UserError as error:
        if error.key == "rope_theta":
            raise
        reason = str(error).removeprefix(f"{source}: ").partition(";")[0]
        differences.append(f"rotary scaling is left out ({reason})")
    others = [*(each.get("rope_theta") for each in kinds.values()), raw.get("rope_local_base_freq")]
    if any(each not in (None, found.get("rope_theta")) for each in others):
        differences.append("layers with windows have the rotary base of the others")
    without = raw.get("no_rope_layer_interval"), raw.get("no_rope_layers")
    if any(without) or family in ("smollm3", "cohere2"):
        differences.append("layers without positions have rotary ones")
    return found


def _rotating(raw: AskedKeys, parameters: dict[str, Any], family: str, values: dict[str, Any]) -> Any:
    """The part of a head that rotates."""
    if isinstance(raw.get("rotary_dim"), int) and "head_dim" in values:
        return raw["rotary_dim"] / values["head_dim"]
    stated = [value for key in _PARTS if (value := parameters.get(key, raw.get(key))) is not None]
    return stated[0] if stated else _PARTLY.get(family, 1)


def _table(raw: AskedKeys, key: str) -> dict[str, Any]:
    value = raw.get(key)
    return value if isinstance(value, dict) else {}


def _router(raw: AskedKeys, family: str, source: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if family.startswith(_SIGMOID):
        found["router"] = "sigmoid"
    if isinstance(raw.get("norm_topk_prob"), bool):
        found["normalize_top_k"] = raw["norm_topk_prob"]
    if raw.get("routed_scaling_factor"):
        found["routed_scaling"] = number(raw["routed_scaling_factor"], "routed_scaling_factor", source, float)
    for ours, theirs in (("num_expert_groups", "n_group"), ("top_groups", "topk_group")):
        if raw.get(theirs):
            found[ours] = number(raw[theirs], theirs, source, int)
    for theirs in ("aux_loss_alpha", "router_aux_loss_coef", "moe_aux_loss_coef"):
        if raw.get(theirs) is not None:
            found["balance_loss"] = number(raw[theirs], theirs, source, float, zero=True)
            break
    return found


def _scales(raw: AskedKeys, values: dict[str, Any]) -> list[str]:
    """Factors of embeddings, residuals, attention and logits, which no model has here."""
    scales = [key for key in _SCALES if raw.get(key) not in (None, 1)]
    scalar = raw.get("query_pre_attn_scalar")
    if scalar is not None and scalar != values.get("head_dim"):
        scales.append("query_pre_attn_scalar")
    if raw.get("attn_temperature_tuning"):
        scales.append("attn_temperature_tuning")
    if raw.get("clip_qkv"):
        scales.append("clip_qkv")
    return [f"{', '.join(scales)}: nothing is scaled so"] if scales else []
