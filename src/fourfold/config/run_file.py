"""From a TOML file and `section.key=value` overrides to a `RunConfig`, or one message that says what to write."""

import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import tomli_w
from pydantic import BaseModel, ValidationError

from fourfold.config.errors import UserError, nearest
from fourfold.config.optimizers import OPTIMIZERS, AdamWSection, OptimizerSection, section_of
from fourfold.config.presets import RUN_PRESET, run_preset_text
from fourfold.config.schema import RunConfig

AUTO = "auto"


def load_run(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Reads a run file, or the run `preset:NAME`, and applies the overrides in order. Raises `UserError` naming the key and what
    is allowed."""
    table = load_table(path)
    for override in overrides:
        apply_override(table, override)
    return parse_run(table, source=str(path))


def load_table(path: Path) -> dict[str, Any]:
    """The table of a TOML file, or of the run `preset:NAME`, as it stands. Raises `UserError`."""
    text = run_preset_text(str(path)) if str(path).startswith(RUN_PRESET) else _text(path)
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UserError(f"{path}: not valid TOML: {str(error)[:200]}") from None


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        near = sorted(str(p) for p in path.parent.glob("*.toml")) if path.parent.is_dir() else []
        hint = f"; there is {near[0]}" if near else ""
        raise UserError(f"{path}: no such run file{hint}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read as a UTF-8 text file: {error}") from None


def parse_run(table: Mapping[str, Any], source: str = "run") -> RunConfig:
    """Checks a parsed table against the schema."""
    try:
        return RunConfig.model_validate(_written_out(table))
    except ValidationError as error:
        raise UserError("\n".join(f"{source}: {line}" for line in _explain(error, table))) from None


def dump_run(config: RunConfig, brief: bool = False) -> str:
    """The TOML text of a run, every key that has a value written out; `load_run` reads it back unchanged. `brief`: keys that have
    their defaults are left out."""
    table = config.model_dump(mode="json", exclude_none=True, exclude_defaults=brief)
    if config.optimizer.clip_norm is None:  # TOML has no null, and leaving it out would be the default
        table.setdefault("optimizer", {})["clip_norm"] = 0.0
    return tomli_w.dumps(table)


def _written_out(table: Mapping[str, Any]) -> dict[str, Any]:
    """`layout = "auto"` is short for a section."""
    return {**table, "layout": {"auto": True}} if table.get("layout") == AUTO else dict(table)


def apply_override(table: dict[str, Any], override: str) -> None:
    """Sets `section.key=value` in a table of sections. Raises `UserError`."""
    key, equals, raw = override.partition("=")
    parts = key.strip().split(".")
    if parts == ["layout"] and raw.strip().strip('"') == AUTO:
        table["layout"] = AUTO
        return
    if not equals or len(parts) < 2 or not all(parts):
        raise UserError(f"override {override!r}: write it as section.key=value, for example layout.zero=3")
    target = table
    for part in parts[:-1]:
        if part == "layout" and target.get(part) == AUTO:
            target[part] = {"auto": True}
        target = target.setdefault(part, {})
        if not isinstance(target, dict):
            raise UserError(f"override {override!r}: {part!r} is a value, not a section")
    target[parts[-1]] = _parse_value(raw.strip())


def _parse_value(raw: str) -> Any:
    """A TOML value where it parses as one (3, true, "x", [1, 2]), else the bare text."""
    try:
        return tomllib.loads(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        return raw


def _explain(error: ValidationError, table: Mapping[str, Any]) -> list[str]:
    lines = []
    for item in error.errors():
        location = [str(part) for part in item["loc"] if not _is_union_branch(str(part))]
        key = ".".join(location)
        if item["type"] == "extra_forbidden":
            allowed = _keys_at(location[:-1], table)
            near = nearest(location[-1], allowed)
            hint = f"did you mean {near!r}?" if near else f"allowed: {', '.join(allowed)}"
            other = _section_of(location[-1]) if not near else None
            if other:
                hint = f"it belongs to section [{other}]"
            lines.append(f"unknown key {key!r}; {hint}")
        elif item["type"] == "missing":
            lines.append(f"key {key!r} is missing; for example {_example(location)}")
        else:
            default = _default_text(location, table)
            lines.append(f"{key} = {item['input']!r}: {_plain(item['msg'])}{default}")
    return list(dict.fromkeys(lines))


def _is_union_branch(part: str) -> bool:
    return part == "str" or part.startswith(("list[", "function-", "tuple[", "constrained-"))


def _plain(message: str) -> str:
    return message[0].lower() + message[1:]


def _keys_at(location: Sequence[str], table: Mapping[str, Any]) -> list[str]:
    model = _model_at(location, table)
    return sorted(model.model_fields) if model else []


def _model_at(location: Sequence[str], table: Mapping[str, Any]) -> type[BaseModel] | None:
    model: type[BaseModel] = RunConfig
    for part in location:
        if part.isdigit():
            continue
        field = model.model_fields.get(part)
        found = _first_model(field.annotation) if field else None
        if found is None:
            return None
        model = (section_of(table[part]) or AdamWSection) if found is OptimizerSection else found
    return model


def _first_model(annotation: Any) -> type[BaseModel] | None:
    if (
        isinstance(annotation, type)
        and not isinstance(annotation, types.GenericAlias)
        and issubclass(annotation, BaseModel)
    ):
        return annotation
    for argument in get_args(annotation):
        found = _first_model(argument)
        if found is not None:
            return found
    return None


def _section_of(key: str) -> str | None:
    for name, field in RunConfig.model_fields.items():
        model = _first_model(field.annotation)
        models = OPTIMIZERS.values() if model is OptimizerSection else (model,)
        if any(each is not None and key in each.model_fields for each in models):
            return name
    return None


_EXAMPLES = {
    "batch": "[batch] with global_sequences = 8, sequence_length = 256, steps = 100",
    "batch.steps": "steps = 100",
    "batch.tokens": "tokens = 1_000_000",
    "batch.global_sequences": "global_sequences = 8",
    "batch.sequence_length": "sequence_length = 256",
}


def _example(location: Sequence[str]) -> str:
    return _EXAMPLES.get(".".join(location), f"{location[-1]} = ...")


def _default_text(location: Sequence[str], table: Mapping[str, Any]) -> str:
    model = _model_at(location[:-1], table)
    field = model.model_fields.get(location[-1]) if model else None
    if field is None:
        return ""
    literals = [a for a in _flatten(field.annotation) if typing.get_origin(a) is typing.Literal]
    if literals:
        word = get_args(literals[0])[0]
        return f"; a value that works: {[word] if typing.get_origin(field.annotation) is list else word!r}"
    if not field.is_required() and field.default is not None:
        return f"; a value that works: {field.default!r}"
    example = _EXAMPLES.get(".".join(location))
    return f"; a value that works: {example}" if example else ""


def _flatten(annotation: Any) -> list[Any]:
    inner = get_args(annotation)
    if typing.get_origin(annotation) is typing.Literal or not inner:
        return [annotation]
    return [leaf for argument in inner for leaf in _flatten(argument)]


def num_steps(config: RunConfig) -> int:
    """Steps of the run: `batch.steps`, or as many as `batch.tokens` needs. Raises `UserError` unless exactly one is stated."""
    batch = config.batch
    if batch.steps is not None and batch.tokens is not None:
        raise UserError(
            f"batch.steps = {batch.steps} and batch.tokens = {batch.tokens} are both stated; keep one of them"
        )
    if batch.steps is not None:
        return batch.steps
    if batch.tokens is not None:
        return -(-batch.tokens // (batch.global_sequences * batch.sequence_length))
    raise UserError(
        "batch.steps is missing: it says how long to train; a value that works: steps = 1000 (or tokens = ...)"
    )
