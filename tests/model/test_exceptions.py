"""Layers that differ: what `model.exceptions` states of a layer reaches that layer and no other, whatever the key."""

from dataclasses import fields, replace
from typing import Any

import pytest

from fourfold.config.model_config import (
    LAYER_KEYS,
    OFF,
    WITH_OFF,
    LayerConfig,
    LayerException,
    LongRopeScaling,
    ModelConfig,
    QueryTemperature,
    RopeScaling,
    YarnScaling,
    written_once,
)
from fourfold.model.layers import layers_of

MODEL = ModelConfig(
    3, 24, 4, 2, 6, 40, 64, sliding_window=7, delta_key_heads=2, delta_value_heads=4, delta_key_dim=4, delta_value_dim=6
)
OTHER: dict[str, Any] = {
    "mixer": "gated_delta",
    "sliding_window": 5,
    "attention_chunk": 3,
    "positions": "none",
    "rope_theta": 7.0,
    "rope_scaling": RopeScaling(factor=2.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=8),
    "yarn_scaling": YarnScaling(factor=2.0, original_max_position=8),
    "linear_scaling": 2.0,
    "longrope_scaling": LongRopeScaling(
        short_factor=(1.0, 2.0, 3.0), long_factor=(2.0, 3.0, 4.0), original_max_position=8, factor=2.0
    ),
    "norm_placement": "post",
    "qk_norm": True,
    "query_temperature": QueryTemperature(scale=0.7, floor=5),
}
"""A value of each key that the model does not have."""


def test_each_key_has_a_value_here() -> None:
    assert set(OTHER) == set(LAYER_KEYS)


@pytest.mark.parametrize("key", LAYER_KEYS)
def test_a_layers_own_value_reaches_that_layer_alone(key: str) -> None:
    model = replace(MODEL, exceptions=(LayerException(layers=(1,), **{key: OTHER[key]}),))
    plain, (first, own, last) = layers_of(MODEL)[0], layers_of(model)
    assert first is last
    assert first == plain
    assert own != plain
    assert getattr(model.of_layer(1), key) == OTHER[key]


@pytest.mark.parametrize("key", WITH_OFF)
def test_off_takes_a_part_away_that_the_others_have(key: str) -> None:
    common = replace(MODEL, **{key: 7})
    model = replace(common, exceptions=(LayerException(layers=(1,), **{key: OFF}),))
    assert layers_of(model)[1] == layers_of(replace(common, **{key: None}))[1]
    assert written_once(model) == model.exceptions


def test_off_is_of_numbers_that_may_be_none() -> None:
    """A layer's own `false` or 0.0 stays what it is."""
    defaults = {each.name: each.default for each in fields(LayerConfig)}
    assert all(defaults[key] is None for key in WITH_OFF)
    assert {"rope_theta", "positions", "linear_scaling"}.isdisjoint(WITH_OFF)
