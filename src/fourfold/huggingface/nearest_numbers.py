"""Numbers of any decoder's `config.json` that no size shows: rotary base and scaling, epsilon, scales; and keys that nothing
reads."""

from typing import Any

from fourfold.config.errors import UserError
from fourfold.huggingface.key import number
from fourfold.huggingface.rope import read_rope

EPSILONS = (
    "rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "layernorm_epsilon", "norm_eps",
)  # fmt: skip
_BASES = ("rope_theta", "rotary_emb_base", "rope_base", "rotary_base")
_PARTS = ("partial_rotary_factor", "rotary_pct", "rope_pct", "rotary_percent", "rope_partial_factor")
_PARTLY = {
    "glm": 0.5, "glm4": 0.5, "glm4_moe": 0.5, "chatglm": 0.5, "gpt_neox": 0.25, "stablelm": 0.25, "phi": 0.5, "nemotron": 0.5,
}  # fmt: skip
"""The part of a head that rotates, where a family's `config.json` may leave it out."""
_SCALES = (
    "embedding_multiplier", "logits_scaling", "residual_multiplier", "attention_multiplier", "logit_scale", "scale_emb",
    "scale_depth", "dim_model_base", "mup_width_scale", "mup_embeddings_scale", "lm_head_multiplier",
)  # fmt: skip
_SIGMOID = ("glm4_moe", "dots1", "minimax_m2", "llama4", "ernie4_5_moe_vl", "longcat", "bailing_moe")
_OF_FAMILIES: tuple[tuple[str, str], ...] = (
    ("gemma", "embeddings are not multiplied by the root of their width"),
    ("olmo2", "norms behind attention and feed-forward stand before them, those of queries and keys are per head"),
    ("olmo3", "norms behind attention and feed-forward stand before them, those of queries and keys are per head"),
    ("exaone4", "norms behind attention and feed-forward stand before them"),
    ("olmoe", "norms of queries and keys are per head"),
    ("minimax_m2", "norms of queries and keys are per head"),
    ("gpt_oss", "the experts' clamped activation as silu"),
    ("llama4", "routers scale what experts give, not what they get"),
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
    differences += [words for name, words in _OF_FAMILIES if family.startswith(name)]
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
        read_rope(stated, found, ("default", "llama3", "yarn"), source)
    except UserError as error:
        if error.key == "rope_theta":
            raise
        reason = str(error).removeprefix(f"{source}: ").partition(";")[0]
        differences.append(f"rotary scaling is left out ({reason})")
    others = [*(each.get("rope_theta") for each in kinds.values()), raw.get("rope_local_base_freq")]
    if any(each not in (None, found.get("rope_theta")) for each in others):
        differences.append("layers with windows have the rotary base of the others")
    without = raw.get("no_rope_layer_interval"), raw.get("no_rope_layers")
    if any(without) or family in ("smollm3", "llama4_text", "cohere2"):
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
