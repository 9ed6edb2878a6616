"""Records: frozen types of answers, from which JSON, its schema and the page's TypeScript derive.

A record names its fields and their types once. `shown` fills it from an object that has attributes of these names; `document` makes
the JSON document.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from inspect import get_annotations
from math import isfinite
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, dataclass_transform, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, TypeAdapter, with_config
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

T = TypeVar("T")


class Absent:
    """The value of a field that a document does not have."""


ABSENT: Any = Absent()


@dataclass_transform(frozen_default=True, kw_only_default=True)
def record(cls: type[T]) -> type[T]:
    """Makes a class a record: frozen, and its documents have these keys and no others."""
    return with_config(ConfigDict(extra="forbid", arbitrary_types_allowed=True))(
        dataclass(frozen=True, kw_only=True)(cls)
    )


@dataclass_transform(frozen_default=True, kw_only_default=True)
def open_record(cls: type[T]) -> type[T]:
    """Makes a class a record whose documents may have further keys."""
    return with_config(ConfigDict(extra="allow"))(dataclass(frozen=True, kw_only=True)(cls))


def record_of(described: type, without: Sequence[str] = (), last: Sequence[str] = ()) -> Callable[[type[T]], type[T]]:
    """Makes a class a record with the fields of a dataclass, but for those `without`: of the types there, bounds left out, or of
    those that the class states. All must be given. `last`: fields that stand at the end; any that the class adds come after."""

    def made(cls: type[T]) -> type[T]:
        named = [name for name in get_type_hints(described) if name not in (*without, *last)]
        own = get_annotations(cls)
        hints = get_type_hints(described) | own
        cls.__annotations__ = {name: hints[name] for name in dict.fromkeys((*named, *last, *own))}
        return record(cls)

    return made


class _Schema(GenerateJsonSchema):
    """Schemas without defaults: a field that has one may be absent."""

    def default_schema(self, schema: Any) -> JsonSchemaValue:
        """The schema of the field."""
        return self.generate_inner(schema["schema"])


def json_schema_of(kind: type) -> dict[str, Any]:
    """The JSON schema of a record's documents."""
    return TypeAdapter(kind).json_schema(schema_generator=_Schema)


def shown(kind: type[T], source: object, /, **own: Any) -> T:
    """A record of `kind`: values of `own`, else the attributes of `source` that have its fields' names; fields that are records,
    and lists of them, likewise. Raises `AttributeError` for a field that neither has and that may not be absent."""
    values = {}
    for name, (hint, default) in _fields(kind).items():  # type: ignore[arg-type]
        values[name] = _converted(own[name] if name in own else getattr(source, name, *default), hint)
    return kind(**values)


def document(answer: Any) -> Any:
    """The JSON document of a record: its fields without those that are absent, in their order but for those that its class states
    in `FIRST` and `LAST`."""
    if is_dataclass(answer):
        named = {each.name: getattr(answer, each.name) for each in fields(answer)}
        first, last = getattr(answer, "FIRST", ()), getattr(answer, "LAST", ())
        between = (name for name in named if name not in first and name not in last)
        return {name: document(named[name]) for name in (*first, *between, *last) if named[name] is not ABSENT}
    if isinstance(answer, Mapping):
        return {key: document(value) for key, value in answer.items()}
    if isinstance(answer, list | tuple):
        return [document(value) for value in answer]
    return answer


@cache
def _fields(kind: Any) -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """The type of each field, and what stands for it where a source has no such attribute."""
    hints = get_type_hints(kind)
    return {each.name: (hints[each.name], (ABSENT,) if each.default is ABSENT else ()) for each in fields(kind)}


def _converted(value: Any, hint: Any) -> Any:
    """The value as the field's type has it: a record, a list of a tuple, None of a number that is not finite."""
    if value is None or value is ABSENT or isinstance(value, Mapping):
        return value
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if NoneType in options and isinstance(value, float) and not isfinite(value):
        return None
    for each in options:
        if is_dataclass(each) and isinstance(each, type):
            return value if isinstance(value, each) else shown(each, value)
        if get_origin(each) is list and isinstance(value, list | tuple):
            return [_converted(one, get_args(each)[0]) for one in value]
    return value
