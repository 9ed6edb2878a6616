"""Options that commands share, classes of options as flags, and the document that `--json` prints."""

import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from cyclopts import Parameter

from fourfold.config.json_lines import finite

Flag = Annotated[bool, Parameter(negative=(), show_default=False)]
Trust = Annotated[Flag, Parameter(help="Import the Python code that the run names (layout.schedule, model.block = python:...). "
                                       "train imports it in any case.")]  # fmt: skip
TrustEach = Annotated[Flag, Parameter(help="Import the Python code that a run names (layout.schedule, model.block = python:...). "
                                           "train imports it in any case.")]  # fmt: skip
Json = Annotated[Flag, Parameter(help="Print one JSON document and nothing else.")]
Repeated = Annotated[list[str] | None, Parameter(negative=())]


def as_command(function: Callable[..., int]) -> Callable[..., int]:
    """The function as cyclopts takes it: each parameter whose type is a class of options stands for the flags of its fields."""
    parameters = dict(signature(function).parameters)
    unasked = {}
    for name, each in parameters.items():
        if is_dataclass(each.annotation):
            flags: Any = _as_flags(each.annotation)
            unasked[name] = flags()
            parameters[name] = each.replace(annotation=Annotated[flags, Parameter(name="*")], default=unasked[name])

    @wraps(function)
    def command(*args: Any, **kwargs: Any) -> int:
        return function(*args, **unasked | kwargs)

    command.__signature__ = signature(function).replace(parameters=[*parameters.values()])  # type: ignore[attr-defined]
    command.__annotations__ = {name: each.annotation for name, each in parameters.items()}
    return command


def _as_flags(options: Any) -> type:
    """The options with the types that a command line has for them; an object of this class is one of `options` too."""
    typed = {each.name: _as_flag(each.type) for each in fields(options)}
    defaults = {each.name: each.default for each in fields(options)}
    made = type(options.__name__, (options,), {"__annotations__": typed, "__doc__": options.__doc__, **defaults})
    return dataclass(frozen=True, kw_only=True)(made)


def _as_flag(kind: Any) -> Any:
    """The first of the types that an argument of the API may have, which is the one that a person types."""
    if kind is bool:
        return Flag
    first, *more = get_args(kind) if get_origin(kind) not in (None, Literal, Sequence, tuple) else (kind,)
    if get_origin(first) in (Sequence, tuple):
        return Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)]
    shown = Path if get_origin(first) is os.PathLike else first
    return shown | None if type(None) in more else shown


def print_json(document: dict[str, Any]) -> None:
    """One document and nothing else, with null for NaN: files may hold any, and JSON has none."""
    print(json.dumps(finite(document), indent=1, allow_nan=False))


def print_answer(as_json: bool, document: Callable[[], Any], lines: Callable[[], Iterable[str]]) -> int:
    """Prints an answer as JSON or as lines; only what is printed is made."""
    if as_json:
        print_json(document())
    else:
        print("\n".join(lines()))
    return 0
