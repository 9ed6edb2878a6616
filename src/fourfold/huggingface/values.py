"""Values of a Hugging Face `config.json`, checked one by one."""

import math
from typing import Any

from fourfold.config.errors import UserError


def number(value: Any, key: str, source: str, kind: type, zero: bool = False) -> Any:
    """The value as `int` or `float`. Raises `UserError` unless it is one, finite, and positive (or, where `zero`, 0)."""
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf
    if not good or (not zero and value == 0) or (kind is int and value != int(value)):
        what = "an integer" if kind is int else "a number"
        what = f"{what}, 0 or more" if zero else f"a positive {'integer' if kind is int else 'number'}"
        raise UserError(f"{source}: {key} = {value!r} is not supported; it must be {what}")
    return kind(value)


def require(raw: dict[str, Any], key: str, allowed: tuple[Any, ...], source: str) -> None:
    """Raises `UserError` unless the key is left out or has one of the values."""
    value = raw.get(key, allowed[0])
    if value not in allowed or isinstance(value, bool) != isinstance(allowed[0], bool):
        words = ", ".join(_json(a) for a in allowed)
        raise UserError(f"{source}: {key} = {_json(value)} is not supported; allowed: {words}")


def _json(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return repr(value)
