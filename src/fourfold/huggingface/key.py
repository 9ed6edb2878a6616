"""One key of a Hugging Face `config.json`: its name, its default, and the values that can be run."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fourfold.config.errors import UserError, shortened


@dataclass(frozen=True)
class Key:
    """A key that states one of our dimensions.

    `ours`: the field of `ModelConfig`. `theirs`: the key, and `aliases` other names of it. `kind`: int, float or bool. `default`:
    the value that transformers takes where the key is left out. `zero`: whether 0 is allowed. `switch`: another key, which must be
    true for this one to count; the value is 0 elsewhere.
    """

    ours: str
    theirs: str
    kind: type = int
    default: Any = None
    zero: bool = False
    aliases: tuple[str, ...] = ()
    switch: str = ""

    def read(self, raw: Mapping[str, Any], source: str) -> Any:
        """The value in `raw`, checked; None where it is null, or false of what is true or false. Raises `UserError`."""
        if self.switch and not raw.get(self.switch, False):
            return self.kind(0)
        require_one_value(raw, (self.theirs, *self.aliases), source)
        stated = [name for name in (self.theirs, *self.aliases) if name in raw]
        name = next((each for each in stated if raw[each] is not None), stated[0] if stated else None)
        value = raw[name] if name is not None else self.default
        if value is None:
            return False if self.kind is bool and name is not None else None
        if self.kind is bool:
            require({self.theirs: value}, self.theirs, (True, False), source)
            return value
        return number(value, name or self.theirs, source, self.kind, self.zero)

    def write(self, value: Any) -> dict[str, Any]:
        """The key with the value, and its switch."""
        return {self.theirs: value, **({self.switch: value != 0} if self.switch else {})}


_DECODER = (
    Key("num_layers", "num_hidden_layers"),
    Key("hidden_size", "hidden_size"),
    Key("num_heads", "num_attention_heads"),
    Key("num_kv_heads", "num_key_value_heads"),
    Key("head_dim", "head_dim"),
    Key("ffn_size", "intermediate_size"),
    Key("vocab_size", "vocab_size"),
    Key("norm_eps", "rms_norm_eps", float, 1e-6),
    Key("max_position", "max_position_embeddings"),
    Key("init_std", "initializer_range", float),
    Key("rope_theta", "rope_theta", float),
)


def decoder_keys(*without: str, **defaults: Any) -> tuple[Key, ...]:
    """The keys of Llama's `config.json`, which most families share. `without`: our names of keys that a family lacks. `defaults`:
    by our names, the values that transformers takes where a key is left out."""
    return tuple(replace(k, default=defaults.get(k.ours, k.default)) for k in _DECODER if k.ours not in without)


def number(value: Any, key: str, source: str, kind: type, zero: bool = False) -> Any:
    """The value as `int` or `float`. Raises `UserError` unless it is one, finite, and positive (or, where `zero`, 0)."""
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf
    if not good or (not zero and value == 0) or (kind is int and value != int(value)):
        what = "an integer" if kind is int else "a number"
        what = f"{what}, 0 or more" if zero else f"a positive {'integer' if kind is int else 'number'}"
        raise UserError(f"{source}: {key} = {shortened(value)} is not supported; it must be {what}", key=key)
    return kind(value)


def require(raw: Mapping[str, Any], key: str, allowed: tuple[Any, ...], source: str, family: str = "") -> None:
    """Raises `UserError` unless the key is left out or has one of the values."""
    value = raw.get(key, allowed[0])
    if not any(value == a and isinstance(value, bool) == isinstance(a, bool) for a in allowed):
        of_family = f" for {family}" if family else ""
        words = ", ".join(_json(a) for a in allowed if a is not None or len(allowed) == 1)
        raise UserError(f"{source}: {key} = {_json(value)} is not supported{of_family}; allowed: {words}")


def require_one_value(raw: Mapping[str, Any], names: tuple[str, ...], source: str) -> None:
    """Raises `UserError` where a dimension is stated under several names, and differently."""
    stated = {name: raw[name] for name in names if raw.get(name) is not None}
    if len({json.dumps(value, sort_keys=True) for value in stated.values()}) > 1:
        words = " and ".join(f"{name} = {shortened(value)}" for name, value in stated.items())
        raise UserError(f"{source}: {words} contradict each other; keep one of them")


def _json(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return repr(value)
