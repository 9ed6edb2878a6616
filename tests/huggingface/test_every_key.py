"""No key of a model is lost on its way to a Hugging Face folder or another trainer: it is written, or refused, or named."""

from dataclasses import MISSING, fields, replace
from typing import Any, get_args

import pytest

from fourfold.config import ModelConfig, ModelSection, UserError
from fourfold.config.model_config import (
    LAYER_KEYS,
    LayerConfig,
    LayerException,
    LongRopeScaling,
    QueryTemperature,
    RopeScaling,
    YarnScaling,
)
from fourfold.export.job import WRITTEN, unwritten
from fourfold.huggingface import resolve_model
from fourfold.huggingface.config_json import to_config
from fourfold.huggingface.families import CUSTOM
from fourfold.huggingface.family import TRAINING
from tests.huggingface.architectures import MODELS

TABLES = {
    "rope_scaling": RopeScaling(factor=2.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=64),
    "yarn_scaling": YarnScaling(factor=2.0, original_max_position=64),
    "longrope_scaling": LongRopeScaling(
        short_factor=(1.0, 2.0), long_factor=(2.0, 3.0), original_max_position=8, factor=2.0
    ),
    "query_temperature": QueryTemperature(scale=0.7, floor=5),
    "exceptions": (LayerException(layers=(0,), rope_theta=3.0),),
    "family": "custom",
    "block": "python:a:b",
}


def _other(model: ModelConfig, key: str, kind: Any) -> Any:
    """A value that the model does not have."""
    value = getattr(model, key)
    if key in TABLES:
        return TABLES[key]
    choices = [each for part in (kind, *get_args(kind)) for each in get_args(part) if isinstance(each, str)]
    if choices:
        return next(each for each in choices if each != value)
    if isinstance(value, bool) or (value is None and "bool" in str(kind)):
        return not value
    return 7 if value is None else value / 2 if isinstance(value, float) and value else value + 1


KEYS = [each.name for each in fields(ModelConfig)]
KINDS = {each.name: each.type for each in fields(ModelConfig)}


def _is_lost(model: ModelConfig, changed: ModelConfig) -> bool:
    """Whether the changed model is one, and is written as the other one."""
    try:
        again = resolve_model(ModelSection(**{key: value for key, value in vars(changed).items() if value is not None}))
    except UserError:
        return False
    return again.family != CUSTOM and to_config(again) == to_config(model)


@pytest.mark.parametrize("name", MODELS)
def test_a_key_is_written_or_refused(name: str) -> None:
    model = MODELS[name]
    changed = {key: replace(model, **{key: _other(model, key, KINDS[key])}) for key in KEYS if key not in TRAINING}
    unused = {"ffn_size"} if not model.has_dense_blocks else set()
    if not model.is_moe(model.first_dense_layers):  # one more is dense already
        unused.add("first_dense_layers")
    assert {key for key, each in changed.items() if _is_lost(model, each)} <= {"balance_bias_speed", *unused}


@pytest.mark.parametrize("key", LAYER_KEYS)
@pytest.mark.parametrize("name", MODELS)
def test_what_a_layer_has_of_its_own_is_written_or_refused(name: str, key: str) -> None:
    model = MODELS[name]
    kinds = {each.name: each.type for each in fields(LayerConfig)}
    own = LayerException(layers=(0,), **{key: "none" if key == "positions" else _other(model, key, kinds[key])})
    assert not _is_lost(model, replace(model, exceptions=(own,)))


def test_a_key_that_trainers_files_lack_is_named() -> None:
    model = MODELS["llama with yarn"]
    for each in fields(ModelConfig):
        if each.name in WRITTEN or each.name == "exceptions":
            continue
        assert each.default is not MISSING
        [line] = unwritten(replace(model, **{each.name: _other(model, each.name, each.type)}))
        assert line.startswith(each.name)
    assert unwritten(model) == []
    assert "rope_theta" in unwritten(replace(model, exceptions=TABLES["exceptions"]))[0]
