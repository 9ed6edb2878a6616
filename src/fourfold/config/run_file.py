"""From a TOML file and `section.key=value` overrides to a `RunConfig`, or one message that says what to write."""

import re
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import tomli_w
from pydantic import BaseModel, ValidationError

from fourfold.config.beside import begin_beside, spell_alike
from fourfold.config.errors import UserError, did_you_mean, lower_first, nearest, shortened
from fourfold.config.learning_rate import check_schedule
from fourfold.config.optimizers import OPTIMIZERS, AdamWSection, OptimizerSection, section_of
from fourfold.config.presets import RUN_PRESET, run_preset_names, run_preset_text
from fourfold.config.schema import CheckpointSection, RunConfig
from fourfold.config.small_toml import SmallToml
from fourfold.config.stage_tables import stage_table

AUTO = "auto"
_FILES = SmallToml("a run file", "run.toml", "name a run file or preset:NAME", line_dots=400)
_STAGE = re.compile(r"\s*stage\s*=\s*(\d{1,6})\s*")
_MAX_OVERRIDE = 20_000
"""Characters."""


def load_run(path: Path, overrides: Sequence[str] = (), as_written: bool = False) -> RunConfig:
    """Reads a run file, or the run `preset:NAME`, applies the overrides in order. `as_written`: relative paths of the file stay,
    else those that lead to something beside it are written out. Raises `UserError` naming the key and what is allowed."""
    table = load_table(path)
    if not as_written and not str(path).startswith(RUN_PRESET):
        begin_beside(table, path.parent)
    apply_overrides(table, overrides)
    if not as_written:
        spell_alike(table)
    return parse_run(table, source=str(path))


def load_table(path: Path) -> dict[str, Any]:
    """The table of a TOML file, or of the run `preset:NAME`, as it stands. Raises `UserError`."""
    text = run_preset_text(str(path)) if str(path).startswith(RUN_PRESET) else _text(path)
    return _FILES.table(text, str(path))


def _text(path: Path) -> str:
    if path.exists() or path.is_symlink():
        return _FILES.read(path)
    there = sorted(p.name for p in path.parent.glob("*.toml")) if path.parent.is_dir() else []
    near = nearest(path.name, there) or next(iter(there), None)
    hint = did_you_mean(str(path), [RUN_PRESET + each for each in run_preset_names()]) if not path.suffix else ""
    hint = hint.strip() or (f"there is {path.parent / near}" if near else "")
    raise UserError(f"{path}: no such run file{hint and '; '}{hint}")


def parse_run(table: Mapping[str, Any], source: str = "run") -> RunConfig:
    """Checks a parsed table against the schema."""
    try:
        config = RunConfig.model_validate(_written_out(table))
    except ValidationError as error:
        raise UserError("\n".join(f"{source}: {line}" for line in _explain(error, table))) from None
    try:
        check_schedule(config.optimizer)
        check_exports(config.checkpoint)
    except UserError as error:
        raise UserError(f"{source}: {error}") from None
    return config


def check_exports(section: CheckpointSection) -> None:
    """Raises `UserError` where exports are asked for of steps that are not saved."""
    every, saved = section.export_every_steps, section.every_steps
    if every is None or (saved is not None and every % saved == 0):
        return
    where = "the run's end alone" if saved is None else f"multiples of checkpoint.every_steps = {saved}"
    works = (
        f"checkpoint.every_steps={every}"
        if saved is None
        else f"checkpoint.export_every_steps={-(-every // saved) * saved}"
    )
    raise UserError(
        f"checkpoint.export_every_steps = {every}: exports are made of checkpoints, which are saved at {where}; what works: {works}"
    )


def dump_run(config: RunConfig, brief: bool = False) -> str:
    """The TOML text of a run, every key that has a value written out; `load_run` reads it back unchanged. `brief`: keys that have
    their defaults are left out, but for those of data and optimizer that were stated."""
    table = config.model_dump(mode="json", exclude_none=True, exclude_defaults=brief)
    if brief:
        for name in ("data", "optimizer"):  # what was stated there was decided
            stated = getattr(config, name).model_dump(mode="json", exclude_none=True, exclude_unset=True)
            table[name] = {**table.get(name, {}), **stated}
        table = {name: section for name, section in table.items() if section != {}}
    if config.optimizer.clip_norm is None:  # TOML has no null, and leaving it out would be the default
        table.setdefault("optimizer", {})["clip_norm"] = 0.0
    return tomli_w.dumps(table)


def _written_out(table: Mapping[str, Any]) -> dict[str, Any]:
    """`layout = "auto"` is short for a section."""
    return {**table, "layout": {"auto": True}} if table.get("layout") == AUTO else dict(table)


def apply_overrides(table: dict[str, Any], overrides: Sequence[str]) -> None:
    """Sets keys in a table of sections, in order; `stage=N` first, which makes it the run of that stage. Raises `UserError`."""
    for override in sorted(overrides, key=lambda text: not _STAGE.fullmatch(text)):
        if (match := _STAGE.fullmatch(override)) is None:
            apply_override(table, override)
            continue
        of_stage = stage_table(table, int(match[1]))
        if isinstance(of_stage.get("batch"), dict):
            of_stage["batch"].pop("ramp", None)  # its full batch
        table.clear()
        table.update(of_stage)


def apply_override(table: dict[str, Any], override: str) -> None:
    """Sets `section.key=value` in a table of sections. Raises `UserError`."""
    key, equals, raw = override.partition("=")
    parts = key.strip().split(".")
    if len(override) > _MAX_OVERRIDE:
        raise UserError(f"override {override[:40]}...: has {len(override)} characters; allowed: {_MAX_OVERRIDE}")
    if parts == ["layout"] and raw.strip().strip('"') == AUTO:
        table["layout"] = AUTO
        return
    if not equals or len(parts) < 2 or not all(parts):
        section = _section_of(parts[0]) if equals and len(parts) == 1 else None
        example = f"{section}.{override}" if section else "layout.zero=3"
        raise UserError(f"override {override!r}: write it as section.key=value, for example {example}")
    target = table
    for part in parts[:-1]:
        if part == "layout" and target.get(part) == AUTO:
            target[part] = {"auto": True}
        target = target.setdefault(part, {})
        if not isinstance(target, dict):
            raise UserError(f"override {override!r}: {part!r} is a value, not a section")
    target[parts[-1]] = _parse_value(raw.strip(), key.strip())


def _parse_value(raw: str, key: str) -> Any:
    """A TOML value where it parses as one (3, true, "x", [1, 2]), else the bare text."""
    try:
        return tomllib.loads(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        return raw
    except (ValueError, RecursionError) as error:
        raise UserError(f"override {key}={raw[:40]}...: not a TOML value: {shortened(str(error))[1:-1]}") from None


def _explain(error: ValidationError, table: Mapping[str, Any]) -> list[str]:
    lines = []
    for item in error.errors():
        if item["type"] == "string_type" and item["loc"][-1] == "str" and isinstance(item["input"], list):
            continue  # what is wrong inside of the list is said
        location = [str(part) for part in item["loc"] if not _is_union_branch(str(part))]
        key = _told_key(location)
        if item["type"] == "extra_forbidden":
            allowed = _keys_at(location[:-1], table)
            hint = did_you_mean(location[-1], allowed, repr).strip()
            if not hint:
                other = _section_of(location[-1])
                hint = f"it belongs to section [{other}]" if other else f"allowed: {', '.join(allowed)}"
            lines.append(f"unknown key {key!r}; {hint}")
        elif item["type"] == "missing":
            lines.append(f"key {key!r} is missing; for example {_example(location)}")
        else:
            near = _nearest_word(item["input"], location, table) if item["type"] == "literal_error" else None
            hint = did_you_mean(near, [near], repr) if near is not None else ""
            works = [near] if any(part.isdigit() for part in location) else near
            default = f"; a value that works: {works!r}" if near is not None else _default_text(location, table)
            lines.append(f"{key} = {item['input']!r}: {hint}{lower_first(item['msg'])}{default}")
    return list(dict.fromkeys(lines))


def _told_key(location: Sequence[str]) -> str:
    """A key as messages name it, its place in a list counted from 1: `stage 1: until_steps`."""
    parts = re.split(r"\.(\d+)(?:\.|$)", ".".join(location))
    told = [f"{part} {int(number) + 1}" for part, number in zip(parts[::2], parts[1::2], strict=False)]
    return ": ".join([*told, parts[-1]] if parts[-1] else told)


def _nearest_word(value: Any, location: Sequence[str], table: Mapping[str, Any]) -> str | None:
    """For a word that is none of those which a key takes, the one that it resembles."""
    location = [part for part in location if not part.isdigit()]
    model = _model_at(location[:-1], table)
    field = model.model_fields.get(location[-1]) if model else None
    allowed = OPTIMIZERS if location == ["optimizer", "name"] else _words(field.annotation) if field else ()
    return nearest(value, allowed) if isinstance(value, str) else None


def _words(annotation: Any) -> list[str]:
    """The words that an annotation takes."""
    literals = [leaf for leaf in _flatten(annotation) if typing.get_origin(leaf) is typing.Literal]
    return [word for leaf in literals for word in get_args(leaf) if isinstance(word, str)]


def _is_union_branch(part: str) -> bool:
    return part == "str" or part.startswith(("list[", "function-", "tuple[", "constrained-"))


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


def _toml(value: object) -> str:
    """A default as a run file writes it, on one line."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"[{', '.join(map(_toml, value))}]" if isinstance(value, tuple | list) else repr(value)


def _default_text(location: Sequence[str], table: Mapping[str, Any]) -> str:
    model = _model_at(location[:-1], table)
    field = model.model_fields.get(location[-1]) if model else None
    if field is None:
        return ""
    words = _words(field.annotation)
    if words and field.default in words:
        return f"; a value that works: {field.default!r}"
    if words:
        return f"; a value that works: {words[:1] if typing.get_origin(field.annotation) is list else words[0]!r}"
    default = field.get_default(call_default_factory=True)
    if not field.is_required() and default is not None:
        return f"; a value that works: {_toml(default)}"
    example = _EXAMPLES.get(".".join(location))
    return f"; a value that works: {example}" if example else ""


def _flatten(annotation: Any) -> list[Any]:
    inner = get_args(annotation)
    if typing.get_origin(annotation) is typing.Literal or not inner:
        return [annotation]
    return [leaf for argument in inner for leaf in _flatten(argument)]


def named_code(config: RunConfig) -> dict[str, str]:
    """Keys of a run that name Python code (`python:MODULE:NAME`), with their values. To compile the run is to import it."""
    stated = {"layout.schedule": config.layout.schedule, "model.block": config.model.block}
    return {key: value for key, value in stated.items() if value is not None and value.startswith("python:")}


def require_trust(config: RunConfig, trust: bool) -> RunConfig:
    """The run, of which a command that only looks at it may import what it names. Raises `UserError` where it names code, unless
    `trust`: a run file, a run's folder or a checkpoint may be somebody else's."""
    for key, value in named_code(config).items():
        if not trust:
            raise UserError(
                f"{key} = {shortened(value)} names Python code, which is imported and run only where that is asked for; what "
                f"works, once you have read the code: --trust (in Python: trust=True)"
            )
    return config
