"""Models of families that nothing trains here, as the nearest decoder: with the parameters that transformers counts."""

import json
from pathlib import Path
from typing import Any

import pytest

from fourfold.config import ModelConfig, ModelSection, UserError
from fourfold.config.run_file import parse_run
from fourfold.huggingface import Nearest, nearest_model, resolve_model, resolve_nearest
from fourfold.launch.resolve import model_section, resolve_run

SIDE = "attention and feed-forward side by side as one after the other"
GEGLU = "a gated gelu_pytorch_tanh as a gated silu"
ROOT = "embeddings are not multiplied by the root of their width"
PARTLY = "rotary positions of a part of each head as of all of it"
NO_POSITIONS = "layers without positions have rotary ones"


def sizes(
    layers: int, hidden: int, heads: int, ffn: int, vocab: int, kv: int | None = None, **more: Any
) -> dict[str, Any]:
    """A config.json by the names that most families have."""
    names = {"num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads, "intermediate_size": ffn}
    return names | {"vocab_size": vocab, "num_key_value_heads": kv or heads} | more


RELEASED: dict[str, tuple[dict[str, Any], tuple[str, ...], float]] = {
    "gemma": (sizes(28, 3072, 16, 24576, 256000, head_dim=256, hidden_activation="gelu_pytorch_tanh"), (GEGLU, ROOT), 8.54),
    "olmoe": (sizes(16, 2048, 16, 1024, 50304, num_experts=64, num_experts_per_tok=8),
              ("norms of queries and keys are per head",), 6.92),
    "granite": (sizes(40, 4096, 32, 12800, 49155, 8, tie_word_embeddings=True), (), 8.17),
    "cohere": (sizes(40, 8192, 64, 22528, 256000), (SIDE,), 34.98),
    "gpt_neox": (sizes(44, 6144, 64, 24576, 50432, hidden_act="gelu_fast"), (SIDE, PARTLY), 20.55),
    "starcoder2": (sizes(40, 6144, 48, 24576, 49152, 4, use_bias=True, hidden_act="gelu_pytorch_tanh"), (), 15.66),
    "smollm3": (sizes(36, 2048, 16, 11008, 128256, 4), (NO_POSITIONS,), 3.08),
    "seed_oss": (sizes(64, 5120, 80, 27648, 155136, 8, head_dim=128, attention_bias=True), (), 36.15),
    "nemotron": (sizes(32, 6144, 48, 24576, 256000, 8, hidden_act="relu2", head_dim=128), ("relu2 as gelu", PARTLY), 15.64),
    "qwen2_moe": (sizes(28, 3584, 28, 18944, 151936, 4, moe_intermediate_size=2560, num_experts=64, num_experts_per_tok=8,
                        shared_expert_intermediate_size=20480), (), 57.41),
    "deepseek_v2": (sizes(60, 5120, 128, 12288, 102400, moe_intermediate_size=1536, n_routed_experts=160, n_shared_experts=2,
                          num_experts_per_tok=6, first_k_dense_replace=1, kv_lora_rank=512, q_lora_rank=1536,
                          qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128), (), 235.7),
    "opt": ({"num_hidden_layers": 64, "hidden_size": 9216, "num_attention_heads": 72, "ffn_dim": 36864, "vocab_size": 50272,
             "word_embed_proj_dim": 9216, "activation_function": "relu"}, ("relu as gelu",), 65.72),
    "bloom": ({"n_layer": 70, "hidden_size": 14336, "n_head": 112, "vocab_size": 250880}, ("ALiBi as rotary positions",), 176.2),
    "falcon": ({"num_hidden_layers": 60, "hidden_size": 8192, "num_attention_heads": 128, "num_kv_heads": 8,
                "vocab_size": 65024, "new_decoder_architecture": True, "parallel_attn": True, "bias": False}, (SIDE,), 41.3),
    "mpt": ({"n_layers": 32, "d_model": 4096, "n_heads": 32, "vocab_size": 50432, "attn_config": {"alibi": True}},
            ("ALiBi as rotary positions",), 6.65),
}  # fmt: skip
"""Families and sizes of models that were released: what is taken for what, and 10^9 parameters as transformers counts them."""


def counted(model: ModelConfig) -> int:
    """Parameters of the segments of which programs are lowered."""
    stated = {key: value for key, value in model_section(model, None).model_dump().items() if value is not None}
    table = {"model": stated, "batch": {"sequence_length": 16, "global_sequences": 1}}
    return resolve_run(parse_run(table), 1, None).num_parameters


def taken(folder: Path, raw: dict[str, Any]) -> tuple[ModelConfig, Nearest]:
    (folder / "config.json").write_text(json.dumps(raw))
    model, near = resolve_nearest(ModelSection(hf=str(folder)))
    assert near is not None
    return model, near


@pytest.mark.parametrize("family", RELEASED)
def test_parameters_are_those_that_transformers_counts(family: str, tmp_path: Path) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    values, differences, billions = RELEASED[family]
    model, near = taken(tmp_path, {"model_type": family} | values)
    with torch.device("meta"):
        theirs = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **values))
    numel = sum(parameter.numel() for parameter in theirs.parameters())
    assert near.differences == differences
    assert counted(model) == pytest.approx(numel, rel=5e-4)
    assert counted(model) / 1e9 == pytest.approx(billions, rel=2e-3)


def test_every_other_layer_has_experts() -> None:
    raw = sizes(48, 5120, 40, 8192, 202048, 8, num_local_experts=128, n_shared_experts=1, interleave_moe_layer_step=2)
    near = nearest_model({"model_type": "new"} | raw, "config.json")
    assert (near.values["num_experts"], near.values["num_shared_experts"], near.values["moe_period"]) == (128, 1, 2)
    assert near.differences == ()


def test_a_decoder_that_is_trained_is_planned_as_it_is_beside_parts_for_pictures(tmp_path: Path) -> None:
    text = {"model_type": "llama4_text"} | sizes(4, 64, 4, 32, 99, 2, head_dim=16, num_local_experts=4)
    (tmp_path / "config.json").write_text(json.dumps(text))
    alone = resolve_model(ModelSection(hf=str(tmp_path)))
    raw = {"model_type": "llama4", "text_config": text, "vision_config": {"hidden_size": 8}}
    model, near = taken(tmp_path, raw)
    assert model == alone
    assert near.differences == ("its parts for pictures or sound are left out",)
    with pytest.raises(UserError, match=r"Llama4ForCausalLM\.from_pretrained"):
        resolve_model(ModelSection(hf=str(tmp_path)))


@pytest.mark.parametrize(
    ("more", "window"),
    [
        ({}, None),
        ({"sliding_window": None}, None),
        ({"sliding_window": 512}, (512, 1.0)),
        ({"sliding_window": 512, "use_sliding_window": False}, None),
        ({"sliding_window": 512, "sliding_window_pattern": 4}, (512, 0.75)),
        ({"sliding_window": 512, "layer_types": ["full_attention"] + ["sliding_attention"] * 2}, (512, 2 / 3)),
        ({"sliding_window": 512, "layer_types": ["full_attention"] * 3}, None),
        ({"sliding_window": 512, "model_type": "gpt_neo"}, (512, 0.5)),
    ],
)
def test_windows_and_the_layers_that_have_them(more: dict[str, Any], window: tuple[int, float] | None) -> None:
    assert nearest_model({"model_type": "exaone4"} | sizes(4, 64, 4, 128, 512) | more, "config.json").window == window


def test_the_decoder_of_a_model_of_text_and_pictures(tmp_path: Path) -> None:
    text = {"model_type": "gemma3_text"} | sizes(62, 5376, 32, 21504, 262208, 16, head_dim=128, sliding_window=1024)
    model, near = taken(tmp_path, {"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 1152}})
    (tmp_path / "config.json").write_text(json.dumps(text))
    assert model == resolve_model(ModelSection(hf=str(tmp_path)))
    assert near.differences == ("its parts for pictures or sound are left out",)


@pytest.mark.parametrize(
    ("raw", "part"),
    [
        ({"model_type": "bert", "type_vocab_size": 2}, "'bert' is no decoder alone"),
        ({"model_type": "t5", "is_encoder_decoder": True}, "'t5' is no decoder alone"),
        ({"model_type": "jamba"} | sizes(4, 64, 4, 128, 512), "model_type = jamba"),
        ({"model_type": "new", "layer_types": ["linear_attention"]} | sizes(4, 64, 4, 128, 512), "linear_attention"),
        ({"model_type": "new", "attn_type_list": [0, 1]} | sizes(4, 64, 4, 128, 512), "attn_type_list = [0, 1]"),
        ({"model_type": "new", "hidden_size": 64}, "num_hidden_layers is missing"),
        ({"model_type": "new"} | sizes(4, 64, 4, 128, 512) | {"num_hidden_layers": "many"}, "num_hidden_layers = 'many'"),
        ({"model_type": "new"} | sizes(4, 64, 4, 128, 512) | {"vocab_size": -5}, "vocab_size = -5"),
        ({"model_type": "new"} | sizes(4, 64, 4, 128, 512) | {"n_routed_experts": {"a": 1}}, "n_routed_experts = {'a': 1}"),
        ({"model_type": "new", "rope_theta": [1e4]} | sizes(4, 64, 4, 128, 512), "rope_theta = [10000.0]"),
        ({"model_type": "new", "rms_norm_eps": "small"} | sizes(4, 64, 4, 128, 512), "rms_norm_eps = 'small'"),
        ({"model_type": "new"} | sizes(4, 66, 4, 128, 512), "num_heads = 4 does not divide model.hidden_size = 66"),
        ({"model_type": "new"} | sizes(4, 64, 10**12, 128, 512), "num_heads = 1000000000000 does not divide"),
        ({"model_type": "llama"} | sizes(4, 64, 4, 128, 512, 3), "num_kv_heads = 3"),
        ({}, "num_hidden_layers is missing"),
    ],
)  # fmt: skip
def test_what_is_no_such_decoder_is_refused(raw: dict[str, Any], part: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        taken(tmp_path, raw)
    assert part in str(error.value)


def test_a_family_that_is_trained_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"} | sizes(4, 64, 4, 128, 512)))
    section = ModelSection(hf=str(tmp_path))
    assert resolve_nearest(section) == (resolve_model(section), None)


def test_what_a_family_cannot_be_trained_with_is_reported(tmp_path: Path) -> None:
    model, near = taken(tmp_path, {"model_type": "llama", "mlp_bias": True} | sizes(4, 64, 4, 128, 512))
    assert "mlp_bias = true is not supported" in near.refused
    assert near.differences == ("biases are left out",)
    assert model.hidden_size == 64


NUMBERS: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]] = {
    "gemma3n": (
        {"model_type": "gemma3n_text", "rms_norm_eps": 1e-6, "rope_theta": 1e6, "rope_local_base_freq": 1e4,
         "initializer_range": 0.01},
        {"rope_theta": 1e6, "norm_eps": 1e-6, "init_std": 0.01},
        ("rotary base of the others", "root of their width"),
    ),
    "a key that gemma3 is not trained with": (
        {"model_type": "gemma3_text", "use_bidirectional_attention": True},
        {"norm_placement": "sandwich", "zero_centered_norm": True, "scaled_embedding": True, "qk_norm": True, "activation": "gelu"},
        ("use_bidirectional_attention: not read",),
    ),
    "bases by kind of layer": (
        {"model_type": "new", "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "full_attention": {"rope_type": "yarn", "rope_theta": 5e5, "factor": 8.0, "original_max_position_embeddings": 4096}}},
        {"rope_theta": 5e5},
        ("rotary base of the others",),
    ),
    "a router with groups": (
        {"model_type": "dots1", "n_routed_experts": 8, "moe_intermediate_size": 32, "routed_scaling_factor": 2.5, "n_group": 1,
         "topk_group": 1, "norm_topk_prob": True, "rms_norm_eps": 1e-5, "rope_theta": 1e6, "partial_rotary_factor": 0.5},
        {"routed_scaling": 2.5, "router": "sigmoid", "normalize_top_k": True, "norm_eps": 1e-5},
        ("rotary positions of a part of each head",),
    ),
    "scales": (
        {"model_type": "granite", "embedding_multiplier": 12, "residual_multiplier": 1, "query_pre_attn_scalar": 99},
        {},
        ("embedding_multiplier, query_pre_attn_scalar: nothing is scaled so",),
    ),
    "what nobody knows": (
        {"model_type": "new", "wobble": 3, "flag": False, "bos_token_id": 1, "attention_dropout": 0.1,
         "partial_rotary_factor": 0.5},
        {},
        ("wobble: not read", "attention_dropout: there is no dropout", "rotary positions of a part"),
    ),
    "scaling of another kind": (
        {"model_type": "new", "rope_scaling": {"type": "proportional", "factor": 4.0}, "layer_norm_epsilon": 1e-3},
        {"norm_eps": 1e-3},
        ("rotary scaling is left out (rope_type = 'proportional' is not supported)",),
    ),
    "scaling by one factor": (
        {"model_type": "new", "rope_scaling": {"type": "linear", "factor": 4.0}},
        {"linear_scaling": 4.0},
        (),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", NUMBERS)
def test_numbers_are_carried_and_what_is_lost_is_named(case: str) -> None:
    stated, carried, lost = NUMBERS[case]
    near = nearest_model(sizes(4, 64, 4, 128, 512) | stated, "config.json")
    assert {key: near.values[key] for key in carried} == carried
    assert all(any(part in each for each in near.differences) for part in lost), near.differences
    assert len(near.differences) == len(lost), near.differences


def test_wild_values_of_a_kind_of_layer_are_lost_and_no_error() -> None:
    """A base of one kind of layer that is a list; the other kind's counts."""
    kinds = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": [1, {}]}}
    near = nearest_model({"model_type": "new", "rope_parameters": kinds} | sizes(4, 64, 4, 128, 512), "config.json")
    assert near.values["rope_theta"] == 1e6
    assert near.differences == ("layers with windows have the rotary base of the others",)
