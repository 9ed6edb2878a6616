"""OLMo-Hybrid's `config.json` and weights, as released and as transformers saves them, mean one model; others are refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fourfold.checkpoint import WeightFolder
from fourfold.config import ModelConfig, ModelSection, UserError
from fourfold.huggingface import FAMILIES, resolve_model, to_config
from fourfold.huggingface.config_json import unread_keys
from fourfold.huggingface.layer_types import layer_types
from fourfold.huggingface.tensors import written_forms
from fourfold.model.layers import layers_of
from tests.checkpoint.huggingface_models import MODELS, loaded, named_tensors, write
from tests.huggingface.architectures import STATED, resolve

SIZES: dict[str, Any] = {
    "model_type": "olmo_hybrid",
    "num_hidden_layers": 6,
    "vocab_size": 99,
    "hidden_size": 64,
    "num_attention_heads": 8,
    "intermediate_size": 40,
    "pad_token_id": None,
    "eos_token_id": 1,
}


def _read(raw: dict[str, Any], folder: Path) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps(raw))
    return resolve_model(ModelSection(hf=str(folder)))


def test_the_preset_is_what_transformers_takes_without_rotation(tmp_path: Path) -> None:
    from transformers import AutoConfig

    AutoConfig.for_model("olmo_hybrid", rope_theta=None).save_pretrained(tmp_path)
    raw = json.loads((tmp_path / "config.json").read_text())
    assert _read(raw, tmp_path) == resolve(preset="olmo-hybrid-7b")
    assert unread_keys(raw, FAMILIES["olmo_hybrid"]) == []


@pytest.mark.parametrize("layers", [2, 3, 4, 5, 9])
def test_keys_left_out_mean_what_they_mean_to_transformers(layers: int, tmp_path: Path) -> None:
    from transformers import AutoConfig

    model = _read({**SIZES, "num_hidden_layers": layers}, tmp_path)
    theirs = AutoConfig.from_pretrained(tmp_path)
    assert layer_types(model) == theirs.layer_types
    assert (model.delta_key_heads, model.delta_value_heads, model.delta_key_dim, model.delta_value_dim) == (
        theirs.linear_num_key_heads,
        theirs.linear_num_value_heads,
        theirs.linear_key_head_dim,
        theirs.linear_value_head_dim,
    )
    assert model.delta_negative_eigenvalues is theirs.linear_allow_neg_eigval
    placements = {layer.mixer.attends: layer.placement for layer in layers_of(model) if layer is not None}
    assert placements == {True: "post", False: "pre"}


@pytest.mark.parametrize(
    ("keys", "base"),
    [
        ({}, 1e4),
        ({"rope_parameters": None}, 1e4),
        ({"rope_theta": 5e5}, 5e5),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, 5e5),
        ({"rope_theta": None}, None),
        ({"rope_theta": None, "rope_parameters": None}, None),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": None}}, None),
    ],
    ids=str,
)
def test_nothing_is_rotated_where_the_base_is_null(keys: dict[str, Any], base: float | None, tmp_path: Path) -> None:
    from transformers import AutoConfig

    model = _read({**SIZES, **keys}, tmp_path)
    assert AutoConfig.from_pretrained(tmp_path).rope_parameters["rope_theta"] == base
    assert (model.positions, model.rope_theta) == (("none", 1e4) if base is None else ("rope", base))
    assert _read(to_config(model), tmp_path) == model


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"layer_types": ["linear_attention"] * 6}, "layer_types = .*at least one 'linear_attention' and one"),
        ({"layer_types": ["full_attention"] * 6}, "layer_types = .*at least one 'linear_attention' and one"),
        ({"num_hidden_layers": 1}, "layer_types = .*at least one 'linear_attention' and one"),
        ({"layer_types": ["sliding_attention"] * 6}, "layer_types = "),
        ({"attention_bias": True}, "attention_bias = true is not supported"),
        ({"linear_num_key_heads": 3}, "delta_key_heads = 3 does not divide"),
    ],
    ids=str,
)
def test_what_is_another_model_is_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=words):
        _read({**SIZES, **changes}, tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"exceptions": [{"every": 3, "mixer": "attention"}]},
        {"norm_placement": "post"},
        {"delta_norm_eps": 1e-6},
        {"delta_projection": "heads"},
        {"rope_theta": 5e5},
        {"qk_norm_over": "head"},
    ],
    ids=str,
)
def test_a_model_that_departs_is_of_another_family_or_none(changes: dict[str, Any]) -> None:
    assert resolve(**{**STATED["olmo_hybrid"], **changes}).family != "olmo_hybrid"


def test_tensors_are_written_as_released() -> None:
    """Norms before have names of their own, in layers of the delta rule alone; each convolution has its channels."""
    model = MODELS["olmo_hybrid"]
    shapes = {name: tuple(tensor.shape) for name, tensor in named_tensors(model).items()}
    written = {p.name: p.shape for form in written_forms(shapes, "olmo_hybrid").values() for p in form}
    norms = {name.removeprefix("model.layers.") for name in written if "norm.weight" in name and "attn" not in name}
    assert {"0.attention_layer_norm.weight", "0.feedforward_layer_norm.weight"} <= norms
    assert {name for name in norms if name.startswith("2.")} == {
        "2.post_attention_layernorm.weight",
        "2.post_feedforward_layernorm.weight",
    }
    assert [written[f"model.layers.0.linear_attn.{each}_conv1d.weight"] for each in "qkv"] == [
        (20, 1, 3),
        (20, 1, 3),
        (48, 1, 3),
    ]


@pytest.mark.parametrize("value_dim", [6, 7])
def test_what_transformers_saves_is_read_though_it_cuts_convolutions_evenly(value_dim: int, tmp_path: Path) -> None:
    """Also where its three parts are not of one size."""
    model = replace(MODELS["olmo_hybrid"], delta_value_dim=value_dim)
    tensors = named_tensors(model)
    write(tmp_path / "ours", model, tensors)
    loaded(tmp_path / "ours").save_pretrained(tmp_path / "theirs")
    folder = WeightFolder(tmp_path / "theirs")
    folder.check_against(model)
    sizes = {folder.shape_on_disk(f"model.layers.0.linear_attn.{each}_conv1d.weight")[0] for each in "qkv"}
    assert max(sizes) < model.delta_value_heads * value_dim
    for name, tensor in tensors.items():
        assert torch.equal(folder.get(name), tensor), name
