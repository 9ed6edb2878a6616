"""The choices that a person has: models, clusters, schedules, runs of the literature, the run file's keys with their help."""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from pydantic import BaseModel

from fourfold import __version__
from fourfold.api.inputs import config_of
from fourfold.config import ModelSection, RunConfig
from fourfold.config.optimizers import AdamWSection
from fourfold.config.schema import BatchSection, LayoutSection, PrecisionSection
from fourfold.explore.glossary import glossary
from fourfold.explore.setup import NOT_HERE
from fourfold.report.listing import KINDS, rows

SHOWN: dict[str, type[BaseModel]] = {
    "model": ModelSection,
    "batch": BatchSection,
    "layout": LayoutSection,
    "precision": PrecisionSection,
    "optimizer": AdamWSection,
}


def catalog_document() -> dict[str, Any]:
    """The rows of `fourfold list`, the keys of the run file, the glossary, the version."""
    found: dict[str, Any] = {kind: rows(kind) for kind in KINDS}
    for each in found["presets"]:
        each["overrides"] = flat_overrides(config_of(each["name"]))
    return {**found, "version": __version__, "keys": [*_keys()], "glossary": glossary()}


def flat_overrides(config: RunConfig) -> dict[str, Any]:
    """The keys that a run states, dotted: those of the sections that the page shows."""
    table = config.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    return {f"{name}.{key}": value for name in SHOWN for key, value in table.get(name, {}).items()}


def _keys() -> Iterator[dict[str, Any]]:
    for section, model in SHOWN.items():
        schema, helps = model.model_json_schema(), _helps(model)
        for name, field in schema["properties"].items():
            key = f"{section}.{name}"
            if key in NOT_HERE:
                continue
            kinds = [each for each in field.get("anyOf", [field]) if each.get("type") != "null"]
            plain = kinds[0]
            yield {
                "key": key,
                "kind": {"string": "text", "array": "list"}.get(plain.get("type", ""), plain.get("type", "table")),
                "allowed": plain.get("enum"),
                "least": plain.get("minimum", _above(plain.get("exclusiveMinimum"), plain.get("type"))),
                "most": plain.get("maximum"),
                "default": field.get("default"),
                "help": helps.get(name, ""),
            }


def _above(bound: float | None, kind: str | None) -> float | None:
    return bound + 1 if bound is not None and kind == "integer" else bound


def _helps(model: type[BaseModel]) -> dict[str, str]:
    """The text under each field, of the class and of those that it is made of."""
    found: dict[str, str] = {}
    for each in reversed(model.__mro__):
        if not issubclass(each, BaseModel) or each is BaseModel:
            continue
        [body] = ast.parse(textwrap.dedent(inspect.getsource(each))).body
        statements = getattr(body, "body", [])
        for field, text in pairwise(statements):
            named = isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
            if named and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                found[field.target.id] = inspect.cleandoc(str(text.value.value)).replace("\n", " ")
    return found
