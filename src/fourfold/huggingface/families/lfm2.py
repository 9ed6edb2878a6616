"""LFM2: short convolutions in most layers and attention in the others, with names of its own (Liquid AI 2025)."""

from collections.abc import Mapping
from typing import Any

from fourfold.config.errors import UserError, shortened
from fourfold.config.model_config import ModelConfig
from fourfold.huggingface.family import FALSE, Family, Rename, TensorNames
from fourfold.huggingface.key import Key, decoder_keys, number, require, require_one_value
from fourfold.huggingface.layer_types import CONVOLUTION, FULL, layer_types, other_mixers, read_mixers, stated_kinds

_ATTENDING, _ADJUSTS, _FFN = "full_attn_idxs", "block_auto_adjust_ff_dim", ("intermediate_size", "block_ff_dim")


def _read(raw: Mapping[str, Any], values: dict[str, Any], source: str) -> None:
    _read_width(raw, values, source)
    layers = values.get("num_layers", 0)
    kinds = stated_kinds(raw, layers, source, (FULL, CONVOLUTION))
    if kinds is None:
        attending = raw.get(_ATTENDING)
        if attending is not None and not (
            isinstance(attending, list) and all(each in range(layers) for each in attending)
        ):
            raise UserError(
                f"{source}: {_ATTENDING} = {shortened(attending)} is not supported; allowed: a list of layers from 0 to "
                f"{layers - 1}, or null"
            )
        kinds = [FULL if attending is None or layer in attending else CONVOLUTION for layer in range(layers)]
    read_mixers(values, kinds, "short_convolution")


def _read_width(raw: Mapping[str, Any], values: dict[str, Any], source: str) -> None:
    """The feed-forward's width: as stated, or two thirds of it, scaled and rounded up."""
    require_one_value(raw, _FFN, source)
    require(raw, _ADJUSTS, (True, False), source)
    width = next((raw[key] for key in _FFN if raw.get(key) is not None), 12288)
    width = number(width, _FFN[0], source, int)
    if raw.get(_ADJUSTS, True):
        width = int(2 * width / 3)
        scale, multiple = raw.get("block_ffn_dim_multiplier", 1.0), raw.get("block_multiple_of", 256)
        if scale is not None:
            multiple = number(multiple, "block_multiple_of", source, int)
            width = int(number(scale, "block_ffn_dim_multiplier", source, float) * width)
            width = -(-width // multiple) * multiple
    values["ffn_size"] = width


def _write(model: ModelConfig) -> dict[str, Any]:
    return {_FFN[0]: model.ffn_size, _ADJUSTS: False, "layer_types": layer_types(model)}


LFM2 = Family(
    name="lfm2",
    architecture="Lfm2ForCausalLM",
    keys=(
        *decoder_keys("norm_eps", "ffn_size", max_position=128000, num_kv_heads=8, rope_theta=1e6),
        Key("norm_eps", "norm_eps", float, 1e-5),
        Key("convolution_kernel", "conv_L_cache", default=3),
    ),
    states={"conv_bias": FALSE},
    # transformers' own pad_token_id names a token, whose row of the embedding would get no gradient
    constants={"pad_token_id": None},
    read=_read,
    reads=("layer_types", _ATTENDING, _ADJUSTS, *_FFN, "block_ffn_dim_multiplier", "block_multiple_of"),
    write=_write,
    fixed={"qk_norm": True},
    usual={"tie_embeddings": True, "convolution_kernel": 3},
    may=("mixer", "ffn_size"),
    by_layer=("mixer",),
    departs=lambda model: other_mixers(model, "short_convolution"),
    tensors=TensorNames(
        outside=(("model.norm.weight", "model.embedding_norm.weight"),),
        modules=(
            Rename("operator_norm", ("input_layernorm",)),
            Rename("ffn_norm", ("post_attention_layernorm",)),
            Rename("self_attn.out_proj", ("self_attn.o_proj",)),
            Rename("self_attn.q_layernorm", ("self_attn.q_norm",)),
            Rename("self_attn.k_layernorm", ("self_attn.k_norm",)),
            Rename("conv.in_proj", ("conv.in_proj_b", "conv.in_proj_c", "conv.in_proj_x")),
            Rename("feed_forward.w1", ("mlp.gate_proj",)),
            Rename("feed_forward.w3", ("mlp.up_proj",)),
            Rename("feed_forward.w2", ("mlp.down_proj",)),
        ),
    ),
)
