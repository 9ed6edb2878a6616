"""Experts and latent attention in a Hugging Face `config.json` (Mixtral, Qwen3-MoE, DeepSeek-V3)."""

from dataclasses import dataclass
from typing import Any

from fourfold.config.errors import UserError
from fourfold.config.model_config import ModelConfig
from fourfold.huggingface.values import number, require


@dataclass(frozen=True)
class _Key:
    """A key of config.json: our name, other names of it, its type, and what transformers takes where it is left out."""

    ours: str
    theirs: str
    kind: type
    default: Any
    zero: bool = False
    aliases: tuple[str, ...] = ()


_MIXTRAL = (
    _Key("num_experts", "num_local_experts", int, 8, aliases=("num_experts",)),
    _Key("top_k", "num_experts_per_tok", int, 2),
    _Key("balance_loss", "router_aux_loss_coef", float, 0.001, zero=True),
)
_QWEN3_MOE = (
    _Key("num_experts", "num_experts", int, 128, aliases=("num_local_experts",)),
    _Key("top_k", "num_experts_per_tok", int, 8),
    _Key("moe_ffn_size", "moe_intermediate_size", int, 768),
    _Key("normalize_top_k", "norm_topk_prob", bool, False),
    _Key("balance_loss", "router_aux_loss_coef", float, 0.001, zero=True),
    _Key("moe_period", "decoder_sparse_step", int, 1),
)
_DEEPSEEK_EXPERTS = (
    _Key("num_experts", "n_routed_experts", int, 256, aliases=("num_local_experts",)),
    _Key("top_k", "num_experts_per_tok", int, 8),
    _Key("moe_ffn_size", "moe_intermediate_size", int, 2048),
    _Key("num_shared_experts", "n_shared_experts", int, 1),
    _Key("first_dense_layers", "first_k_dense_replace", int, 3, zero=True),
    _Key("normalize_top_k", "norm_topk_prob", bool, True),
    _Key("routed_scaling", "routed_scaling_factor", float, 2.5),
    _Key("num_expert_groups", "n_group", int, 8),
    _Key("top_groups", "topk_group", int, 4),
    _Key("balance_loss", "aux_loss_alpha", float, 0.0, zero=True),
)
_DEEPSEEK_ATTENTION = (
    _Key("query_rank", "q_lora_rank", int, 1536),
    _Key("key_value_rank", "kv_lora_rank", int, 512),
    _Key("rope_head_dim", "qk_rope_head_dim", int, 64),
    _Key("nope_head_dim", "qk_nope_head_dim", int, 128),
    _Key("value_head_dim", "v_head_dim", int, 128),
    _Key("rope_interleave", "rope_interleave", bool, True),
    _Key("mtp_layers", "num_nextn_predict_layers", int, 0, zero=True, aliases=("num_mtp_layers",)),
)
_KEYS = {
    "mixtral": _MIXTRAL,
    "qwen3_moe": _QWEN3_MOE,
    "deepseek_v3": (*_DEEPSEEK_EXPERTS, *_DEEPSEEK_ATTENTION),
}
_ALLOWED: dict[str, dict[str, tuple[Any, ...]]] = {
    "mixtral": {"router_jitter_noise": (0.0,)},
    "deepseek_v3": {
        "scoring_func": ("sigmoid",),
        "topk_method": ("noaux_tc",),
        "moe_layer_freq": (1,),
        "rms_norm_eps": (1e-6,),
    },
}
"""What else a config may say, and the values that can be run right. transformers norms the latent vectors of DeepSeek-V3 with
an epsilon of 1e-6 whatever `rms_norm_eps` says, and the other norms with that."""


def read_experts(raw: dict[str, Any], family: str, values: dict[str, Any], source: str) -> None:
    """Fills what a family says of experts and latent attention. Raises `UserError` for what cannot be run right."""
    for stated, allowed in _ALLOWED.get(family, {}).items():
        require(raw, stated, allowed, source)
    for key in _KEYS.get(family, ()):
        name = next((n for n in (key.theirs, *key.aliases) if n in raw), None)
        value = raw[name] if name is not None else key.default
        if value is None:
            continue
        if key.kind is bool:
            require({key.theirs: value}, key.theirs, (True, False), source)
            values[key.ours] = value
        else:
            values[key.ours] = number(value, name or key.theirs, source, key.kind, key.zero)
    if family == "qwen3_moe":
        values["first_dense_layers"] = _leading(raw.get("mlp_only_layers"), source)
    if family == "deepseek_v3":
        values["router"] = "sigmoid"
        values.pop("head_dim", None)  # transformers writes the rotary part's there
        if values["first_dense_layers"] >= values.get("num_layers", 0):
            for key in _DEEPSEEK_EXPERTS:
                values.pop(key.ours, None)
            del values["router"]


def _leading(layers: Any, source: str) -> int:
    """How many layers from the first on are dense."""
    dense = layers or []
    if not isinstance(dense, list) or sorted(map(str, dense)) != sorted(map(str, range(len(dense)))):
        raise UserError(
            f"{source}: mlp_only_layers = {layers!r} is not supported: dense layers must be the first ones; allowed: for "
            f"example [], [0], [0, 1]"
        )
    return len(dense)


def write_experts(model: ModelConfig) -> dict[str, Any]:
    """The keys of the model's family."""
    keys = _KEYS.get(model.family, ())
    raw = {key.theirs: getattr(model, key.ours) for key in keys}
    if model.family == "mixtral":
        raw.update(intermediate_size=model.moe_ffn_size, router_jitter_noise=0.0)
    if model.family == "qwen3_moe":
        raw.update(mlp_only_layers=list(range(model.first_dense_layers)))
    if model.family == "deepseek_v3":
        raw.update(scoring_func="sigmoid", topk_method="noaux_tc", moe_layer_freq=1)
        if not model.num_experts:  # no layer has them, but transformers wants a number
            raw.update(
                n_routed_experts=1,
                num_experts_per_tok=1,
                moe_intermediate_size=model.ffn_size,
                n_shared_experts=1,
                first_k_dense_replace=model.num_layers,
            )
    if keys:
        raw["output_router_logits"] = False
    return raw
