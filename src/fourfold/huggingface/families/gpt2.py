"""GPT-2: LayerNorm, learned positions, biases; its `config.json` and its tensors have names of their own."""

from collections.abc import Mapping
from typing import Any

from fourfold.config.model_config import ModelConfig
from fourfold.huggingface.family import Family, Rename, TensorNames, width_departs
from fourfold.huggingface.key import Key


def _departs(model: ModelConfig) -> dict[str, Any]:
    grouped = {} if model.num_kv_heads == model.num_heads else {"num_kv_heads": model.num_kv_heads}
    return {**grouped, **width_departs(model)}


def _read(raw: Mapping[str, Any], values: dict[str, Any], source: str) -> None:
    if "hidden_size" in values:
        values.setdefault("ffn_size", 4 * values["hidden_size"])


def _write(model: ModelConfig) -> dict[str, Any]:
    return {"n_ctx": model.max_position}


GPT2 = Family(
    name="gpt2",
    architecture="GPT2LMHeadModel",
    keys=(
        Key("vocab_size", "vocab_size", default=50257),
        Key("max_position", "n_positions", default=1024, aliases=("max_position_embeddings",)),
        Key("hidden_size", "n_embd", default=768, aliases=("hidden_size",)),
        Key("num_layers", "n_layer", default=12, aliases=("num_hidden_layers",)),
        Key("num_heads", "n_head", default=12, aliases=("num_attention_heads",)),
        Key("ffn_size", "n_inner"),
        Key("norm_eps", "layer_norm_epsilon", float, 1e-5),
        Key("init_std", "initializer_range", float, 0.02),
    ),
    states={
        "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "add_cross_attention": (False,),
    },
    dropouts={"resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1},
    read=_read,
    write=_write,
    fixed={
        "norm": "layer",
        "activation": "gelu",
        "gated": False,
        "linear_bias": True,
        "qkv_bias": True,
        "positions": "learned",
    },
    usual={"tie_embeddings": True},
    rope_types=(),
    departs=_departs,
    tensors=TensorNames(
        outside=(
            ("model.embed_tokens.weight", "transformer.wte.weight"),
            ("model.embed_positions.weight", "transformer.wpe.weight"),
            ("model.norm.weight", "transformer.ln_f.weight"),
            ("model.norm.bias", "transformer.ln_f.bias"),
        ),
        block="transformer.h.{}.",
        modules=(
            Rename("ln_1", ("input_layernorm",)),
            Rename("ln_2", ("post_attention_layernorm",)),
            Rename("attn.c_attn", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), transposed=True),
            Rename("attn.c_proj", ("self_attn.o_proj",), transposed=True),
            Rename("mlp.c_fc", ("mlp.up_proj",), transposed=True),
            Rename("mlp.c_proj", ("mlp.down_proj",), transposed=True),
        ),
        optional_prefix="transformer.",  # OpenAI's own release lacks it
    ),
)
