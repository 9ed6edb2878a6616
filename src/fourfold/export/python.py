"""Python files of an export: calls with keyword arguments, laid out in lines, and the imports that they need."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from fourfold.export.script import number

WIDTH = 100
STEP = "    "


@dataclass(frozen=True)
class Call:
    """A call. Arguments that are texts are expressions."""

    name: str
    arguments: Mapping[str, object]


def expression(value: object, indent: int = 0, before: int = 0) -> str:
    """A value in Python, over several lines where `before` characters and one line do not hold it. `indent`: of its lines."""
    if isinstance(value, float):
        text = number(value)
        return text if set(text) & set(".e") else f"{text}.0"
    if isinstance(value, Call):
        opened, closed = f"{value.name}(", ")"
        named = [(f"{key}=", each) for key, each in value.arguments.items()]
    elif isinstance(value, list):
        opened, closed = "[", "]"
        named = [("", each) for each in value]
    else:
        return str(value)
    flat = opened + ", ".join(name + expression(each, 0, -10_000) for name, each in named) + closed
    if before + len(flat) + len(STEP) * indent < WIDTH:
        return flat
    inner = STEP * (indent + 1)
    lines = [f"{inner}{name}{expression(each, indent + 1, len(name) + 1)},\n" for name, each in named]
    return f"{opened}\n{''.join(lines)}{STEP * indent}{closed}"


def assigned(name: str, value: object) -> list[str]:
    """`NAME = value`."""
    return [f"{name} = {expression(value, 0, len(name) + 3)}"]


def function(head: str, value: object) -> list[str]:
    """`def head: return value`, with empty lines around it."""
    return ["", "", f"def {head}:", f"{STEP}return {expression(value, 1, len('return '))}"]


def with_imports(lines: list[str], modules: Mapping[str, str]) -> str:
    """The file, after imports of the names that it uses. `modules`: where each is; "": `import NAME`."""
    text = "\n".join(lines)
    used = [name for name in modules if re.search(rf"(?<![\w.]){name}\b", text)]
    plain = [f"import {name}" for name in used if not modules[name]]
    by_module: dict[str, list[str]] = {}
    for name in used:
        if modules[name]:
            by_module.setdefault(modules[name], []).append(name)
    stated = [f"from {module} import {', '.join(names)}" for module, names in by_module.items()]
    return "\n".join([*plain, *stated, "", text])
