"""The reference of the run file: every section and key with type, default, bounds and what it means, from the schema."""

import inspect
import types
import typing
from pathlib import Path
from typing import Any

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from fourfold.config.schema import RunConfig
from fourfold.config.section import texts

_INTRODUCTION = """\
# Run file

A run is a TOML file with the sections below. Every key can be overridden on the command line as `section.key=value`, in the
same words: `fourfold train run.toml layout.zero=3 'model.rope_scaling={...}'`. An unknown key is an error that names the
nearest one. Sizes are counts of elements, tokens or sequences; times are seconds. This page is written from the schema
(`src/fourfold/config/`) whenever the site is built.
"""
_NAMES = {str: "string", int: "integer", float: "number", bool: "boolean"}
_SIGNS = {Ge: ("≥", "ge"), Gt: (">", "gt"), Le: ("≤", "le"), Lt: ("<", "lt")}


def write(path: Path) -> None:
    """The page, into `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(), encoding="utf-8")


def page() -> str:
    """The page's text. Raises `ValueError` for a key that nothing is written about."""
    lines = [_INTRODUCTION]
    for name, field in RunConfig.model_fields.items():
        section = _model_in(field.annotation)
        assert section is not None
        title = f"[[{name}]], a list of tables" if typing.get_origin(field.annotation) is list else f"[{name}]"
        lines += _section(title, section, name)
        for kind in section.__subclasses__():
            lines += _section(
                f"[{name}]: {_literal(kind.model_fields['name'].annotation)}", kind, f"{name}.{kind.__name__}", "###"
            )
        lines += _tables(section, name, set())
    return "\n".join(lines)


def _tables(section: type[BaseModel], name: str, known: set[type[BaseModel]]) -> list[str]:
    """The tables in a section, each before those in it, but for kinds that are known."""
    lines = []
    for key, inner in section.model_fields.items():
        table, place = _model_in(inner.annotation), f"{name}.{key}"
        if table is not None and table not in known:
            known.add(table)
            listed = typing.get_origin(inner.annotation) is not None and "list" in str(inner.annotation)
            lines += _section(place + (", a list of tables" if listed else ", a table"), table, place, "###")
            lines += _tables(table, place, known)
    return lines


def _section(title: str, section: type[BaseModel], prefix: str, level: str = "##") -> list[str]:
    lines = [f"({_anchor(prefix)})=", f"{level} {title}", "", inspect.cleandoc(section.__doc__ or ""), ""]
    described = texts(section)
    lines += ["| key | type | default | meaning |", "|---|---|---|---|"]
    for key, field in section.model_fields.items():
        if key not in described:
            raise ValueError(f"{prefix}.{key}: the schema says nothing about it; write a docstring under the key")
        cells = (f"`{key}`", _type(field), _default(field), " ".join(described[key].split()))
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return [*lines, ""]


def _literal(annotation: Any) -> str:
    """The value by which a section of several kinds is chosen."""
    return " or ".join(f"name = {_toml(value)}" for value in typing.get_args(annotation))


def _anchor(prefix: str) -> str:
    return "run-file-" + prefix.replace(".", "-").replace("_", "-").lower()


def _type(field: FieldInfo) -> str:
    bounds = _bounds(field.metadata)
    return _kind(field.annotation) + (f" {bounds}" if bounds else "")


def _kind(annotation: Any) -> str:
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return ", ".join(f"`{_toml(value)}`" for value in inner)
    if origin is typing.Annotated:
        bounds = _bounds(list(inner[1:]))
        return _kind(inner[0]) + (f" {bounds}" if bounds else "")
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_kind(part) for part in inner if part is not type(None))
    if origin is list:
        return f"list of {_kind(inner[0])}"
    if origin is tuple and inner[-1] is Ellipsis:
        return f"list of {_kind(inner[0])}s" if _model_in(inner[0]) is not None else f"list of {_kind(inner[0])}"
    if origin is tuple:
        return "list of " + ", ".join(_kind(part) for part in inner)
    if origin is dict or _model_in(annotation) is not None:
        return "table"
    return _NAMES[annotation]


def _bounds(metadata: list[Any]) -> str:
    """`≥ 0, < 1`; nested constraints stand in a field's own metadata."""
    parts = []
    for item in metadata:
        for constraint in [item, *getattr(item, "metadata", [])]:
            for kind, (sign, name) in _SIGNS.items():
                if isinstance(constraint, kind):
                    parts.append(f"{sign} {_power(getattr(constraint, name))}")
            if isinstance(constraint, MinLen | MaxLen):
                raise ValueError(f"{constraint}: no words for it yet")
    return ", ".join(dict.fromkeys(parts))


def _power(value: Any) -> str:
    return (
        f"2^{value.bit_length() - 1}"
        if isinstance(value, int) and value > 2**32 and value & (value - 1) == 0
        else str(value)
    )


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "**required**"
    value = field.get_default(call_default_factory=True)
    if value is None or value is PydanticUndefined:
        return ""
    return f"`{_toml(value)}`"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    return (
        f"[{', '.join(map(_toml, value))}]"
        if isinstance(value, list | tuple)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        return annotation if issubclass(annotation, BaseModel) else None
    return next((found for part in typing.get_args(annotation) if (found := _model_in(part))), None)
