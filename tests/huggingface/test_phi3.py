"""Phi-3: its released configs are read, short and long, what it cannot have is refused, and models that it cannot be are not it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding

from fourfold.config import ModelConfig, ModelSection, UserError
from fourfold.config.model_config import YarnScaling
from fourfold.huggingface import family_of, resolve_model, resolve_nearest, to_config
from fourfold.model.counts import num_parameters
from fourfold.model.layers import ropes_of
from fourfold.model.rope_tables import rope_frequencies

MINI: dict[str, Any] = {
    "model_type": "phi3", "hidden_act": "silu", "hidden_size": 3072, "initializer_range": 0.02, "intermediate_size": 8192,
    "max_position_embeddings": 4096, "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
    "original_max_position_embeddings": 4096, "pad_token_id": 32000, "resid_pdrop": 0.0, "rms_norm_eps": 1e-05,
    "rope_scaling": None, "rope_theta": 10000.0, "sliding_window": 2047, "tie_word_embeddings": False, "vocab_size": 32064,
}  # fmt: skip
"""config.json of microsoft/Phi-3-mini-4k-instruct, the keys that say what the model is."""


LONGROPE: dict[str, Any] = {
    "type": "longrope", "short_factor": [1.0 + n / 32 for n in range(48)], "long_factor": [1.0 + n * n / 32 for n in range(48)],
}  # fmt: skip
LONG: dict[str, Any] = {"max_position_embeddings": 131072, "sliding_window": 262144}


def _section(folder: Path, **changes: Any) -> ModelSection:
    (folder / "config.json").write_text(json.dumps({**MINI, **changes}))
    return ModelSection(hf=str(folder))


def test_the_released_config(tmp_path: Path) -> None:
    model = resolve_model(_section(tmp_path))
    assert (model.family, model.head_dim, model.sliding_window, model.norm_eps) == ("phi3", 96, 2047, 1e-5)
    with torch.device("meta"):
        theirs = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path))
    assert num_parameters(model) == sum(parameter.numel() for parameter in theirs.parameters())
    assert num_parameters(model) / 1e9 == pytest.approx(3.82, rel=2e-3)


def test_a_long_model(tmp_path: Path) -> None:
    """microsoft/Phi-3-mini-128k-instruct states it so."""
    model = resolve_model(_section(tmp_path, **LONG, rope_scaling=LONGROPE))
    scaling = model.longrope_scaling
    assert scaling is not None
    assert (scaling.original_max_position, scaling.factor, scaling.attention_factor) == (4096, 32.0, None)
    rotary = Phi3RotaryEmbedding(AutoConfig.from_pretrained(tmp_path))
    assert ropes_of(model)[0].table_scale == rotary.attention_scaling
    assert torch.equal(rope_frequencies(ropes_of(model)[0], 4096), rotary.inv_freq)
    rotary(torch.zeros(1), torch.arange(4097)[None])
    assert torch.equal(rope_frequencies(ropes_of(model)[0], 4097), rotary.inv_freq)
    written = to_config(model)
    assert written["original_max_position_embeddings"] == 4096
    (tmp_path / "config.json").write_text(json.dumps(written))
    assert resolve_model(ModelSection(hf=str(tmp_path))) == model


def test_a_model_of_whose_heads_a_part_is_rotated(tmp_path: Path) -> None:
    """microsoft/Phi-4-mini-instruct states it so."""
    changes = {"partial_rotary_factor": 0.75, "num_key_value_heads": 8, "num_attention_heads": 24}
    short = {key: LONGROPE[key] for key in ("short_factor", "long_factor")}
    model = resolve_model(_section(tmp_path, **LONG, **changes, rope_scaling={"type": "longrope", **short}))
    assert (model.head_dim, model.rotary_fraction, ropes_of(model)[0].width) == (128, 0.75, 96)
    assert to_config(model)["partial_rotary_factor"] == 0.75


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rope_scaling": {**LONGROPE, "short_factor": [1.0]}}, ["short_factor has 1 factors", "allowed: 48 factors"]),
        ({"rope_scaling": {**LONGROPE, "long_factor": None}}, ["long_factor = None must be a list of positive numbers"]),
        ({"rope_scaling": {**LONGROPE, "long_factor": [0.0] * 48}}, ["long_factor = 0.0", "positive number"]),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, ["rope_type = 'yarn'", "allowed: 'default', 'longrope'"]),
        (
            {"rope_scaling": {**LONGROPE, "original_max_position_embeddings": 1024}, "original_max_position_embeddings": None},
            ["original_max_position_embeddings = 1024", "left out: 4096"],
        ),
        ({"original_max_position_embeddings": 1, "rope_scaling": LONGROPE}, ["original_max_position_embeddings = 1", "at least 2"]),
        ({"attention_bias": True}, ["attention_bias = true is not supported for phi3"]),
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_trained_is_refused_and_planned(
    changes: dict[str, Any], words: list[str], tmp_path: Path
) -> None:
    section = _section(tmp_path, **changes)
    with pytest.raises(UserError) as caught:
        resolve_model(section)
    assert all(word in str(caught.value) for word in words)
    model, near = resolve_nearest(section)
    assert near is not None
    assert near.refused == str(caught.value)
    assert model.num_layers == 32


def test_models_that_phi3_cannot_be() -> None:
    model = ModelConfig(2, 32, 4, 2, 8, 56, 99, family="phi3")
    assert family_of(model) == "phi3"
    assert family_of(replace(model, head_dim=16)) == "llama"
    assert family_of(replace(model, yarn_scaling=YarnScaling(factor=4.0, original_max_position=32))) == "llama"
    assert family_of(replace(model, qk_norm=True)) == "qwen3"
