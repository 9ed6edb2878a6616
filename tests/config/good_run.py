"""A run that is good, one key of it changed, and the one message that a bad run is refused with."""

import copy
from typing import Any, get_args

import pytest

from fourfold.config import RunConfig, UserError, parse_run
from fourfold.config.section import Section
from fourfold.config.stages import course_of
from fourfold.huggingface import resolve_model
from fourfold.layout import resolve_layout

MODEL = {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "num_kv_heads": 2, "ffn_size": 56, "vocab_size": 99}
RUN: dict[str, Any] = {
    "model": MODEL,
    "batch": {"global_sequences": 8, "sequence_length": 16, "steps": 5},
}


def with_key(key: str, value: Any) -> dict[str, Any]:
    """The good run with another value, or one key more."""
    table = copy.deepcopy(RUN)
    *path, last = key.split(".")
    target = table
    for part in path:
        target = target.setdefault(part, {})
    target[last] = value
    return table


def section_at(name: str) -> type[Section]:
    """The kind of a section of the run file, or of each table where it is a list of them."""
    annotation = RunConfig.model_fields[name].annotation
    found = next(iter(get_args(annotation)), annotation)
    assert issubclass(found, Section)
    return found


def resolve(table: dict[str, Any], ranks: int | None = None) -> None:
    config = parse_run(table)
    for stage in course_of(config).stages:
        resolve_layout(stage.config, resolve_model(stage.config.model), ranks)


def message_of(table: dict[str, Any], ranks: int | None = None) -> str:
    """The message that refuses the run."""
    with pytest.raises(UserError) as caught:
        resolve(table, ranks)
    message = str(caught.value)
    assert caught.value.exit_code == 2
    assert "\n" not in message, "one mistake gives one line"
    assert "validation error" not in message
    assert "pydantic" not in message
    return message
