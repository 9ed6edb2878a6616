"""YAML as a person would write it, of mappings, lists, texts and numbers."""

import json
import re
from collections.abc import Mapping, Sequence

Value = str | int | bool | Sequence["Value"] | Mapping[str, "Value"]

_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9._/-]*")
_RESERVED = frozenset(("true", "false", "yes", "no", "on", "off", "null", "y", "n"))


def yaml_text(value: Mapping[str, Value]) -> str:
    """A document. Texts of several lines become literal blocks; others stay plain where every reader takes them for texts."""
    return "\n".join(_lines(value)) + "\n"


def _lines(value: Value) -> list[str]:
    """A mapping's or a list's lines, not indented."""
    lines: list[str] = []
    if isinstance(value, Mapping):
        for key, inner in value.items():
            lines += _entry(f"{_scalar(key)}:", inner, "  ")
    elif isinstance(value, Sequence):
        for inner in value:
            if isinstance(inner, Mapping) and inner:
                first, *rest = _lines(inner)
                lines += [f"- {first}", *(f"  {line}" if line else line for line in rest)]
            else:
                lines += _entry("-", inner, "  ")
    return lines


def _entry(head: str, value: Value, indent: str) -> list[str]:
    if isinstance(value, str) and _is_block(value):
        return [f"{head} |", *(f"{indent}{line}" if line else "" for line in value.removesuffix("\n").split("\n"))]
    if isinstance(value, str | int) or not value:
        return [f"{head} {_scalar(value)}"]
    return [head, *(f"{indent}{line}" if line else line for line in _lines(value))]


def _is_block(text: str) -> bool:
    """Whether a literal block gives back exactly this text: it ends with one line end and does not begin with a blank."""
    lines = text.split("\n")
    return (
        len(lines) > 2
        and lines[-1] == ""
        and lines[-2] != ""
        and lines[0][:1] not in ("", " ")
        and all(line.isprintable() for line in lines)
    )


def _scalar(value: Value) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _RESERVED:
        return value
    text = json.dumps(value, ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in text)
