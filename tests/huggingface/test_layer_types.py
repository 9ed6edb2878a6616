"""Layers with a window are those that transformers gives one, whichever keys say so."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from fourfold.config import ModelSection
from fourfold.huggingface import resolve_model, to_config
from fourfold.model.layers import layers_of

SIZES: dict[str, Any] = {
    "num_hidden_layers": 4, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48,
    "vocab_size": 99, "sliding_window": 16,
}  # fmt: skip
FULL, SLIDING = "full_attention", "sliding_attention"
STATED: tuple[dict[str, Any], ...] = (
    {},
    {"use_sliding_window": False},
    {"use_sliding_window": True},
    *({"use_sliding_window": True, "max_window_layers": first} for first in (0, 1, 3, 4, 9)),
    {"use_sliding_window": True, "max_window_layers": 4, "layer_types": [SLIDING] * 4},
    {"use_sliding_window": True, "max_window_layers": 0, "layer_types": [FULL] * 4},
    {"use_sliding_window": True, "layer_types": [FULL, SLIDING, FULL, FULL]},
    {"use_sliding_window": True, "max_window_layers": 1, "layer_types": None},
)


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
@pytest.mark.parametrize("stated", STATED, ids=json.dumps)
def test_the_window_and_its_layers_are_those_of_transformers(
    family: str, stated: dict[str, Any], tmp_path: Path
) -> None:
    raw = {"model_type": family, **SIZES, **stated}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    theirs = AutoConfig.from_pretrained(tmp_path)
    model = resolve_model(ModelSection(hf=str(tmp_path)))
    assert model.sliding_window == (16 if SLIDING in theirs.layer_types else None)
    if model.sliding_window:
        windowed = [SLIDING if layer.mixer.window else FULL for layer in layers_of(model) if layer is not None]
        assert windowed == theirs.layer_types
    (tmp_path / "config.json").write_text(json.dumps(to_config(model)))
    assert AutoConfig.from_pretrained(tmp_path).layer_types == theirs.layer_types
    assert resolve_model(ModelSection(hf=str(tmp_path))) == model


@pytest.mark.parametrize("window", [None, 16])
@pytest.mark.parametrize("family", ["qwen2", "qwen3", "mistral"])
def test_a_window_that_is_written_is_of_every_layer(family: str, window: int | None, tmp_path: Path) -> None:
    keys = {"num_layers": 4, "hidden_size": 32, "num_heads": 4, "ffn_size": 48, "vocab_size": 99}
    model = resolve_model(ModelSection(family=family, sliding_window=window or 0, **keys))
    (tmp_path / "config.json").write_text(json.dumps(to_config(model)))
    theirs = AutoConfig.from_pretrained(tmp_path)
    assert theirs.sliding_window == window
    assert getattr(theirs, "layer_types", []) in ([], [SLIDING if window else FULL] * 4)
    assert resolve_model(ModelSection(hf=str(tmp_path))) == model


@pytest.mark.parametrize(
    "stated",
    [{}, {"layer_types": [FULL, SLIDING, SLIDING, FULL]}, {"rope_parameters": {"rope_type": "default"}}],
    ids=json.dumps,
)
def test_gpt_oss_without_keys_has_the_windows_and_the_scaling_of_transformers(
    stated: dict[str, Any], tmp_path: Path
) -> None:
    sizes = {key: value for key, value in SIZES.items() if key != "sliding_window"}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt_oss", **sizes, **stated}))
    theirs = AutoConfig.from_pretrained(tmp_path)
    model = resolve_model(ModelSection(hf=str(tmp_path)))
    windows = [layer.mixer.window for layer in layers_of(model) if layer is not None]
    assert windows == [theirs.sliding_window if kind == SLIDING else None for kind in theirs.layer_types]
    scaling = to_config(model)["rope_parameters"]
    assert {**scaling, "truncate": scaling.get("truncate", True)} == {"truncate": True, **theirs.rope_parameters}
    assert (model.top_k, model.num_experts, model.head_dim) == (4, 128, theirs.head_dim)
