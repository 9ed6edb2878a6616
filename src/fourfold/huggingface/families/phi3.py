"""Phi-3 and Phi-4: Llama's block, with fused tensors on disk; LongRoPE, and rotary positions of a part of each head
(Phi-4-mini)."""

from collections.abc import Mapping
from typing import Any

from fourfold.config.errors import UserError, shortened
from fourfold.config.model_config import ModelConfig
from fourfold.huggingface.family import SILU, Family, Rename, TensorNames, width_departs
from fourfold.huggingface.key import Key, decoder_keys
from fourfold.huggingface.layer_types import require_same_layers

_ORIGINAL, _ORIGINAL_DEFAULT = "original_max_position_embeddings", 4096


def _read(raw: Mapping[str, Any], values: dict[str, Any], source: str) -> None:
    hidden, heads = values.get("hidden_size", 0), values.get("num_heads", 1)
    if raw.get("head_dim") not in (None, hidden / heads):
        raise UserError(
            f"{source}: head_dim = {shortened(raw['head_dim'])} is not supported for phi3; allowed: hidden_size / "
            f"num_attention_heads = {hidden // heads}, or leave it out"
        )
    require_same_layers(raw, values, source)
    scaling = values.get("longrope_scaling")
    if scaling is not None and raw.get(_ORIGINAL) is None and scaling.original_max_position != _ORIGINAL_DEFAULT:
        raise UserError(
            f"{source}: {_ORIGINAL} = {scaling.original_max_position} stands in rope_scaling alone, where transformers passes over "
            f"it in phi3; allowed: {_ORIGINAL} beside rope_scaling (left out: {_ORIGINAL_DEFAULT})"
        )


def _write(model: ModelConfig) -> dict[str, Any]:
    return {} if model.longrope_scaling is None else {_ORIGINAL: model.longrope_scaling.original_max_position}


PHI3 = Family(
    name="phi3",
    architecture="Phi3ForCausalLM",
    keys=(
        *decoder_keys("head_dim", max_position=4096, norm_eps=1e-5),
        Key("sliding_window", "sliding_window"),
        Key("rotary_fraction", "partial_rotary_factor", float, 1.0),
    ),
    states={"hidden_act": SILU},
    lacks=("attention_bias", "mlp_bias"),
    # transformers' own pad_token_id lies outside of a small vocabulary
    dropouts={"attention_dropout": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0},
    constants={"pad_token_id": None},
    read=_read,
    write=_write,
    reads=("layer_types", "head_dim"),
    rope_types=("default", "longrope"),
    departs=width_departs,
    tensors=TensorNames(
        modules=(
            Rename("self_attn.qkv_proj", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
            Rename("mlp.gate_up_proj", ("mlp.gate_proj", "mlp.up_proj")),
        )
    ),
)
