"""Small models of every family, their weights written, and loaded by transformers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from fourfold.checkpoint import write_huggingface
from fourfold.config import ModelConfig, ModelSection
from fourfold.config.model_config import RopeScaling
from fourfold.huggingface import resolve_model
from fourfold.model.spec import build_segments
from tests.support.model_families import FAMILIES
from tests.support.reference_names import view_of

LLAMA = ModelConfig(
    num_layers=2, hidden_size=32, num_heads=4, num_kv_heads=2, head_dim=8, ffn_size=48, vocab_size=96, max_position=128
)
STRETCHED = RopeScaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=16)
DENSE = {
    "llama": LLAMA,
    "llama tied": replace(LLAMA, tie_embeddings=True),
    "llama scaled rope": replace(LLAMA, rope_scaling=STRETCHED, rope_theta=5e5),
    "llama wide heads": replace(LLAMA, head_dim=12, num_kv_heads=4),
    "mistral": replace(LLAMA, family="mistral", rope_theta=1e6, norm_eps=1e-6),
    "mistral window": replace(LLAMA, family="mistral", sliding_window=64),
    "qwen2": replace(LLAMA, family="qwen2", qkv_bias=True, tie_embeddings=True),
    "qwen3": replace(LLAMA, family="qwen3", qk_norm=True, head_dim=16),
    "phi3": replace(LLAMA, family="phi3", sliding_window=64),
}
_SIZES: dict[str, Any] = {"num_layers": 3, "hidden_size": 32, "num_heads": 4, "ffn_size": 48, "vocab_size": 96}
_MLA: dict[str, Any] = {
    "key_value_rank": 16, "query_rank": 24, "rope_head_dim": 4, "nope_head_dim": 8, "value_head_dim": 6,
    "family": "deepseek_v3", "top_k": 3, "num_shared_experts": 2, "moe_ffn_size": 24,
}  # fmt: skip
_NOT_SAVED = {"mtp_layers": 0, "balance_bias_speed": 0}
"""transformers writes no MTP modules, and no speed."""
BALANCED = ("deepseek_v3", "glm4_moe", "kimi_linear")
"""Families whose routers have balancing biases."""
STATED: dict[str, dict[str, Any]] = {
    "mixtral": {**_SIZES, "num_experts": 4, "top_k": 2, "num_kv_heads": 2},
    "qwen3_moe": {
        **_SIZES, "family": "qwen3_moe", "num_experts": 6, "top_k": 2, "moe_ffn_size": 20, "first_dense_layers": 1,
        "tie_embeddings": True,
    },
    "deepseek_v3": {
        **_SIZES, **_MLA, "num_experts": 8, "first_dense_layers": 1, "num_expert_groups": 4, "top_groups": 2,
        "routed_scaling": 2.5,
    },
    "deepseek_v3 without a query rank": {**_SIZES, **_MLA, "num_experts": 4, "query_rank": 0},
    **{name: {**_SIZES, **stated, **_NOT_SAVED} for name, stated in FAMILIES.items()},
    "gpt2": {**_SIZES, "family": "gpt2", "max_position": 64},
    "gpt2 untied": {**_SIZES, "family": "gpt2", "max_position": 64, "tie_embeddings": False},
}  # fmt: skip
MODELS = {**DENSE, **{name: resolve_model(ModelSection(**stated)) for name, stated in STATED.items()}}


def named_tensors(model: ModelConfig) -> dict[str, Tensor]:
    """Random parameters, norms and biases too, so that none of them can be lost unseen."""
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for segment in build_segments(model):
        for spec in segment.parameters:
            values = torch.randn(spec.shape, generator=generator) * 0.2
            tensors[spec.name] = values + 1 if spec.init_std is None else values
    return tensors


def write(folder: Path, model: ModelConfig, tensors: dict[str, Tensor], dtype: str = "fp32", **rest: Any) -> None:
    options = {"tokenizer_file": None, "eos": None, **rest}
    write_huggingface(folder, model, tensors.items(), dtype=dtype, **options)


def loaded(folder: Path) -> Any:
    """The model as transformers loads it, with nothing missing and nothing left over."""
    theirs, problems = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert not any(problems.values()), problems
    return theirs.eval()


def as_in_memory(name: str, theirs: dict[str, Tensor], model: ModelConfig) -> Tensor:
    """transformers' own tensor of one of our parameters."""
    query, key_value = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    fused = {
        "q_proj": ("qkv_proj", 0, query), "k_proj": ("qkv_proj", query, key_value),
        "v_proj": ("qkv_proj", query + key_value, key_value), "gate_proj": ("gate_up_proj", 0, model.ffn_size),
        "up_proj": ("gate_up_proj", model.ffn_size, model.ffn_size),
    }  # fmt: skip
    gpt2 = {
        "embed_tokens": "wte", "embed_positions": "wpe", "model.norm": "ln_f", "input_layernorm": "ln_1",
        "post_attention_layernorm": "ln_2", "o_proj": "attn.c_proj", "up_proj": "mlp.c_fc", "down_proj": "mlp.c_proj",
        "q_proj": "attn.c_attn", "k_proj": "attn.c_attn", "v_proj": "attn.c_attn",
    }  # fmt: skip
    if model.family in ("gpt_oss", "llama4_text"):
        return view_of(name, theirs)
    if name in theirs:
        return theirs[name]
    module = name.split(".")[-2]
    if module in fused and name.replace(module, fused[module][0]) in theirs:
        full, start, rows = fused[module]
        return theirs[name.replace(module, full)][start : start + rows]
    if model.family != "gpt2":
        return view_of(name, theirs)
    key = next(key for key in gpt2 if key in name)
    parts = name.split(".")
    where = f"transformer.h.{parts[2]}." if parts[1] == "layers" else "transformer."
    tensor = theirs[where + gpt2[key] + "." + parts[-1]]
    tensor = tensor.t() if tensor.dim() == 2 and parts[1] == "layers" else tensor
    return tensor.chunk(3)["qkv".index(key[0])] if gpt2[key].endswith("c_attn") else tensor


def check_same(model: ModelConfig, tensors: dict[str, Tensor], theirs: Any) -> None:
    """Every parameter is the one that transformers computes with, bit for bit."""
    state = theirs.state_dict()
    for name, tensor in tensors.items():
        assert torch.equal(as_in_memory(name, state, model).reshape(tensor.shape), tensor), name
    biases = [name for name in state if name.endswith("e_score_correction_bias")]
    assert len(biases) == (sum(map(model.is_moe, range(model.num_layers))) if model.family in BALANCED else 0)
