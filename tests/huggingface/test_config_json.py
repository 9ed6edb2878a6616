"""Configs of Hugging Face are read and written without loss; what cannot be run right is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fourfold.config import ModelConfig, ModelSection, UserError, parse_run
from fourfold.config.model_config import RopeScaling
from fourfold.huggingface import FAMILIES, parse_config, resolve_model, to_config
from fourfold.huggingface.layer_types import FULL, SLIDING, layer_types, window_of
from fourfold.layout import resolve_layout
from tests.huggingface import architectures

DIMENSIONS: dict[str, Any] = {
    "num_layers": 2,
    "hidden_size": 32,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 8,
    "ffn_size": 56,
    "vocab_size": 99,
}
SCALING = RopeScaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=64)
MODELS = {
    "llama": ModelConfig(**DIMENSIONS),
    "llama tied": ModelConfig(**DIMENSIONS, tie_embeddings=True, norm_eps=1e-6, init_std=0.01),
    "llama scaled": ModelConfig(**DIMENSIONS, rope_theta=5e5, rope_scaling=SCALING, max_position=512),
    "llama wide heads": ModelConfig(**{**DIMENSIONS, "head_dim": 16}),
    "mistral": ModelConfig(**DIMENSIONS, family="mistral", rope_theta=1e6),
    "mistral windowed": ModelConfig(**DIMENSIONS, family="mistral", sliding_window=128, max_position=512),
    "qwen2": ModelConfig(**DIMENSIONS, family="qwen2", qkv_bias=True, norm_eps=1e-6),
    "qwen2 tied": ModelConfig(**DIMENSIONS, family="qwen2", qkv_bias=True, tie_embeddings=True),
    "qwen3": ModelConfig(**{**DIMENSIONS, "head_dim": 16}, family="qwen3", qk_norm=True, rope_theta=1e6),
    **{name: each for name, each in architectures.MODELS.items() if FAMILIES[each.family].ropes},
}


def _through_transformers(raw: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The config.json that transformers writes after reading this one."""
    from transformers import AutoConfig

    (folder / "in").mkdir()
    (folder / "in" / "config.json").write_text(json.dumps(raw))
    AutoConfig.from_pretrained(folder / "in").save_pretrained(folder / "out")
    return dict(json.loads((folder / "out" / "config.json").read_text()))


@pytest.mark.parametrize("name", MODELS)
def test_our_own_config_reads_back(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(to_config(MODELS[name])))
    assert resolve_model(ModelSection(hf=str(tmp_path))) == MODELS[name]


@pytest.mark.parametrize("name", MODELS)
def test_what_transformers_makes_of_our_config_reads_back(name: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    raw = _through_transformers(to_config(MODELS[name]), tmp_path)
    assert "rope_parameters" in raw, "transformers 5 writes its own form"
    assert resolve_model(ModelSection(hf=str(tmp_path / "out"))) == MODELS[name]


def _in_the_form_of_version_4(raw: dict[str, Any]) -> dict[str, Any]:
    raw = dict(raw)
    rope = dict(raw.pop("rope_parameters"))
    for kind, (key, _) in FAMILIES[raw["model_type"]].ropes.items():
        if key:
            raw[key] = rope[kind]["rope_theta"]
    rope = dict(rope.get(FULL, rope))
    raw["rope_theta"] = rope.pop("rope_theta")
    raw["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    raw["torch_dtype"] = raw.pop("dtype", "float32")
    return raw


@pytest.mark.parametrize("name", MODELS)
def test_the_form_of_transformers_4_reads_the_same(name: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    raw = _in_the_form_of_version_4(_through_transformers(to_config(MODELS[name]), tmp_path))
    assert "rope_parameters" not in raw
    (tmp_path / "config.json").write_text(json.dumps(raw))
    assert resolve_model(ModelSection(hf=str(tmp_path))) == MODELS[name]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("form", ["rope_scaling", "rope_parameters"])
def test_transformers_reads_either_rope_form_that_we_write(name: str, form: str, tmp_path: Path) -> None:
    """Either half alone of what we write gives transformers the same frequencies."""
    from transformers import AutoConfig

    raw, model = to_config(MODELS[name]), MODELS[name]
    raw = _in_the_form_of_version_4(raw) if form == "rope_scaling" else {**raw}
    if form == "rope_parameters":
        del raw["rope_scaling"], raw["rope_theta"]
    (tmp_path / "config.json").write_text(json.dumps(raw))
    theirs = AutoConfig.from_pretrained(tmp_path).rope_parameters
    kinds = dict.fromkeys(layer_types(model)) if FAMILIES[model.family].ropes else [None]
    for kind in kinds:
        rope = theirs[kind] if kind else theirs
        each = model.of_layer(layer_types(model).index(kind)) if kind else model
        assert rope["rope_theta"] == each.rope_theta
        scalings = {"llama3": each.rope_scaling, "linear": each.linear_scaling != 1, "yarn": each.yarn_scaling}
        assert rope["rope_type"] == next((name for name, scaling in scalings.items() if scaling), "default")
        assert rope.get("factor") in (
            None, each.linear_scaling, *(table.factor for table in (each.rope_scaling, each.yarn_scaling) if table)
        )  # fmt: skip
        if each.rope_scaling:
            assert rope["original_max_position_embeddings"] == each.rope_scaling.original_max_position


BARE = {
    "num_hidden_layers": 2,
    "hidden_size": 1024,
    "num_attention_heads": 32,
    "intermediate_size": 56,
    "vocab_size": 99,
}


@pytest.mark.parametrize("family", [f.name for f in FAMILIES.values() if f.rope_types and not f.has_experts])
def test_keys_left_out_mean_what_they_mean_to_transformers(family: str, tmp_path: Path) -> None:
    from transformers import AutoConfig

    (tmp_path / "config.json").write_text(json.dumps({"model_type": family, **BARE}))
    theirs = AutoConfig.from_pretrained(tmp_path)
    ours = resolve_model(ModelSection(hf=str(tmp_path)))
    assert ours.family == family
    assert ours.num_kv_heads == theirs.num_key_value_heads
    assert ours.head_dim == (getattr(theirs, "head_dim", None) or 1024 // 32)
    assert ours.norm_eps == getattr(theirs, FAMILIES[family].their_name("norm_eps"))
    assert ours.max_position == theirs.max_position_embeddings
    for kind in dict.fromkeys(layer_types(ours)):
        rope = theirs.rope_parameters.get(kind, theirs.rope_parameters)
        assert ours.of_layer(layer_types(ours).index(kind)).rope_theta == rope["rope_theta"]
    assert ours.init_std == theirs.initializer_range
    assert ours.tie_embeddings == theirs.tie_word_embeddings
    kinds = getattr(theirs, "layer_types", None)
    windowed = family == "mistral" or SLIDING in (kinds or ())
    assert window_of(ours) == (theirs.sliding_window if windowed else None)
    assert kinds in (None, layer_types(ours))


@settings(max_examples=100, deadline=None)
@given(
    family=st.sampled_from(["llama", "mistral", "qwen2", "qwen3"]),
    layers=st.integers(1, 200),
    kv_heads=st.integers(1, 16),
    group=st.integers(1, 8),
    half=st.integers(1, 128),
    hidden=st.integers(1, 2**15),
    theta=st.floats(1, 1e8),
    eps=st.floats(1e-12, 1e-1),
    tied=st.booleans(),
    scaled=st.booleans(),
)
def test_any_model_reads_back_from_its_config(
    family: str, layers: int, kv_heads: int, group: int, half: int, hidden: int,
    theta: float, eps: float, tied: bool, scaled: bool,
) -> None:  # fmt: skip
    model = ModelConfig(
        layers, hidden, kv_heads * group, kv_heads, 2 * half, 7, 11, family, tie_embeddings=tied, rope_theta=theta,
        rope_scaling=SCALING if scaled else None, norm_eps=eps, qkv_bias=family == "qwen2", qk_norm=family == "qwen3",
    )  # fmt: skip
    values = parse_config(json.loads(json.dumps(to_config(model))))
    assert resolve_model(ModelSection(**values)) == model


# The family follows the architecture, so that what is exported is what was trained


@pytest.mark.parametrize(
    ("stated", "family", "bias", "norm"),
    [
        ({}, "llama", False, False),
        ({"family": "mistral"}, "mistral", False, False),
        ({"family": "qwen2"}, "qwen2", True, False),
        ({"family": "qwen3"}, "qwen3", False, True),
        ({"qkv_bias": True}, "qwen2", True, False),
        ({"qk_norm": True}, "qwen3", False, True),
        ({"family": "mistral", "qk_norm": True}, "qwen3", False, True),
        ({"family": "qwen2", "qkv_bias": False}, "llama", False, False),
        ({"family": "qwen3", "qk_norm": False}, "llama", False, False),
    ],
    ids=str,
)
def test_the_family_is_one_that_has_this_architecture(
    stated: dict[str, Any], family: str, bias: bool, norm: bool
) -> None:
    model = resolve_model(ModelSection(**DIMENSIONS, **stated))
    assert (model.family, model.qkv_bias, model.qk_norm) == (family, bias, norm)
    assert resolve_model(ModelSection(**parse_config(to_config(model)))) == model


# Refusals


def _config(**changes: Any) -> dict[str, Any]:
    return {"model_type": "llama", **BARE, **changes}


YARN: dict[str, Any] = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "bert"}, ["model_type = 'bert'", "llama, mistral, qwen2, qwen3, mixtral, qwen3_moe, deepseek_v3"]),
        ({"model_type": None}, ["model_type = None", "llama"]),
        ({"model_type": ["llama"]}, ["model_type"]),
        ({"mlp_bias": True}, ["mlp_bias = true", "false"]),
        ({"attention_bias": True}, ["attention_bias = true", "false"]),
        ({"model_type": "qwen3", "attention_bias": True}, ["attention_bias = true", "qwen3"]),
        ({"hidden_act": "gelu"}, ["hidden_act = 'gelu'", "'silu'"]),
        ({"rope_scaling": {**YARN, "attention_factor": "x"}}, ["attention_factor = 'x'", "positive number"]),
        ({"model_type": "olmo3", "rope_theta": 1e4}, ["rope_theta = 10000.0", "state both", "sliding_attention"]),
        ({"model_type": "olmo3", "rope_parameters": YARN}, ["rope_parameters has {'rope_type': 'yarn'}", "full_attention"]),
        ({"model_type": "olmo3", "rope_parameters": [3]}, ["rope_parameters = [3]"]),
        ({"model_type": "gemma3_text", "rope_parameters": {"full_attention": 3}}, ["has {'full_attention': 3}"]),
        ({"rope_scaling": {**YARN, "truncate": None}}, ["truncate = null", "true"]),
        ({"rope_scaling": {**YARN, "factor": 0.5}}, ["factor = 0.5", "at least 1"]),
        ({"rope_scaling": {**YARN, "beta_slow": 64.0}}, ["beta_slow = 64.0", "beta_fast = 32.0"]),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, ["lacks the key 'original_max_position_embeddings'"]),
        ({"rope_scaling": {"type": "dynamic"}}, ["factor = None", "positive number"]),
        ({"rope_scaling": {"rope_type": "proportional", "factor": 2.0}}, ["rope_type = 'proportional'", "'dynamic'", "'longrope'"]),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, ["lacks the key 'low_freq_factor'"]),
        ({"rope_scaling": "llama3"}, ["rope_scaling = 'llama3'"]),
        ({"rope_scaling": {"rope_type": "llama3", "factor": "x", "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                           "original_max_position_embeddings": 8192}}, ["factor = 'x'"]),
        ({"rope_scaling": {"rope_type": "llama3", "factor": -8, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                           "original_max_position_embeddings": 8192}}, ["factor = -8"]),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.5, "high_freq_factor": 4.0,
                           "original_max_position_embeddings": 8192}}, ["low_freq_factor = 4.5"]),
        ({"hidden_size": "1024"}, ["hidden_size = '1024'", "positive integer"]),
        ({"hidden_size": 1024.5}, ["hidden_size = 1024.5", "positive integer"]),
        ({"hidden_size": True}, ["hidden_size = True", "positive integer"]),
        ({"num_hidden_layers": 0}, ["num_hidden_layers = 0"]),
        ({"num_hidden_layers": [2]}, ["num_hidden_layers = [2]"]),
        ({"rms_norm_eps": -1}, ["rms_norm_eps = -1"]),
        ({"rms_norm_eps": float("nan")}, ["rms_norm_eps = nan"]),
        ({"num_attention_heads": float("inf")}, ["num_attention_heads = inf"]),
        ({"rope_theta": 0}, ["rope_theta = 0"]),
        ({"head_dim": 33}, ["head_dim = 33", "34"]),
        ({"num_attention_heads": 5}, ["num_heads = 5"]),
        ({"num_key_value_heads": 5}, ["num_kv_heads = 5"]),
        ({"hidden_size": None}, ["hidden_size"]),
    ],
    ids=str,
)  # fmt: skip
def test_a_config_that_cannot_be_run_right_is_refused(
    changes: dict[str, Any], words: list[str], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(_config(**changes)))
    with pytest.raises(UserError) as caught:
        resolve_model(ModelSection(hf=str(tmp_path)))
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("content", ["", "{", "[]", "3", "null", '{"model_type": "llama"'])
def test_a_config_that_is_no_json_object_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(UserError, match=r"config\.json"):
        resolve_model(ModelSection(hf=str(tmp_path)))


@pytest.mark.parametrize(
    ("changes", "window"),
    [
        ({"model_type": "mistral", "sliding_window": 4096}, 4096),
        ({"model_type": "mistral", "sliding_window": None}, None),
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": True}, None),
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 0}, 4096),
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 1}, 4096),
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False}, None),
        ({"model_type": "qwen2", "sliding_window": 4096}, None),
    ],
    ids=str,
)
def test_a_sliding_window_is_read(changes: dict[str, Any], window: int | None, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(_config(**changes)))
    model = resolve_model(ModelSection(hf=str(tmp_path)))
    assert model.sliding_window == window
    for length in (4096, 4097):  # as long as the window, and longer
        config = parse_run({"batch": {"global_sequences": 1, "sequence_length": length}})
        assert resolve_layout(config, model).sequence_length == length


def test_a_config_json_without_a_dimension_is_named_by_its_own_keys(tmp_path: Path) -> None:
    raw = {"model_type": "llama", **BARE}
    del raw["num_hidden_layers"]
    (tmp_path / "config.json").write_text(json.dumps(raw))
    with pytest.raises(UserError, match=r"config\.json: num_hidden_layers is missing"):
        resolve_model(ModelSection(hf=str(tmp_path)))
    assert resolve_model(ModelSection(hf=str(tmp_path), num_layers=3)).num_layers == 3
