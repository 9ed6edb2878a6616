"""The choices that a person has: models, clusters, schedules, runs of the literature, the run file's keys with their help."""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from pydantic import BaseModel

from fourfold import __version__
from fourfold.api.inputs import config_of
from fourfold.config import ModelSection, RunConfig
from fourfold.config.layout_section import LayoutSection
from fourfold.config.optimizers import OPTIMIZERS, AdamWSection, OptimizerSection
from fourfold.config.schema import (
    BatchSection,
    CheckpointSection,
    ClusterSection,
    PrecisionSection,
    RunSection,
)
from fourfold.config.section import texts
from fourfold.explore.glossary import glossary
from fourfold.explore.setup import NOT_HERE
from fourfold.report.listing import KINDS, rows

SHOWN: dict[str, type[BaseModel]] = {
    "model": ModelSection,
    "batch": BatchSection,
    "layout": LayoutSection,
    "precision": PrecisionSection,
}
"""Sections whose keys the page has all; the optimizers' beside them."""
SINGLE = (
    ("run", "attention_backend", RunSection),
    ("cluster", "attention", ClusterSection),
    ("checkpoint", "memory_every_steps", CheckpointSection),
)
"""Keys of other sections."""


def catalog_document() -> dict[str, Any]:
    """The rows of `fourfold list`, the keys of the run file, the glossary, the version."""
    found: dict[str, Any] = {kind: rows(kind) for kind in KINDS}
    for each in found["presets"]:
        each["overrides"] = flat_overrides(config_of(each["name"]))
    return {**found, "version": __version__, "keys": [*_keys()], "glossary": glossary()}


def flat_overrides(config: RunConfig) -> dict[str, Any]:
    """The keys that a run states, dotted: those of the sections that the page shows."""
    table = config.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    found = {f"{name}.{key}": value for name in (*SHOWN, "optimizer") for key, value in table.get(name, {}).items()}
    single = {f"{name}.{key}": table.get(name, {}).get(key) for name, key, _ in SINGLE}
    return {**found, **{key: value for key, value in single.items() if value is not None}}


def _keys() -> Iterator[dict[str, Any]]:
    """Every key of the sections; each optimizer's, with its own defaults; the keys that are taken one by one."""
    for section, model in SHOWN.items():
        for name in model.model_fields:
            if f"{section}.{name}" not in NOT_HERE:
                yield _key(section, name, model)
    yield _key("optimizer", "name", OptimizerSection) | {"allowed": [*OPTIMIZERS], "default": AdamWSection.spec.name}
    for optimizer, model in OPTIMIZERS.items():
        for name in model.model_fields:
            if name != "name":
                yield _key("optimizer", name, model) | {"optimizer": optimizer}
    for section, name, model in SINGLE:
        yield _key(section, name, model)


def _key(section: str, name: str, model: type[BaseModel]) -> dict[str, Any]:
    field = _properties(model)[name]
    kinds = [each for each in field.get("anyOf", [field]) if each.get("type") != "null"]
    plain = kinds[0]
    return {
        "key": f"{section}.{name}",
        "optimizer": None,
        "kind": {"string": "text", "array": "list"}.get(plain.get("type", ""), plain.get("type", "table")),
        "allowed": plain.get("enum"),
        "least": plain.get("minimum", _above(plain.get("exclusiveMinimum"), plain.get("type"))),
        "most": plain.get("maximum"),
        "default": field.get("default"),
        "help": texts(model).get(name, "").replace("\n", " "),
    }


@lru_cache
def _properties(model: type[BaseModel]) -> dict[str, Any]:
    found: dict[str, Any] = model.model_json_schema()["properties"]
    return found


def _above(bound: float | None, kind: str | None) -> float | None:
    return bound + 1 if bound is not None and kind == "integer" else bound
