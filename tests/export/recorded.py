"""The names that trainers take, as `tools.trainer_definitions` recorded them: parsers of flags, checks of Python files."""

import argparse
import ast
from functools import cache
from pathlib import Path
from typing import NoReturn

FOLDER = Path(__file__).parent / "definitions"
TYPES = {"int": int, "float": float, "str": str, "bool": str}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise AssertionError(message)


def lines(trainer: str) -> list[str]:
    """The recorded lines, without the first, which names the version."""
    return (FOLDER / f"{trainer}.txt").read_text().splitlines()[1:]


@cache
def parser(trainer: str) -> argparse.ArgumentParser:
    """A parser that takes what the trainer's takes, and no more. It raises AssertionError."""
    made = _Parser(allow_abbrev=False, argument_default=argparse.SUPPRESS, add_help=False)
    for line in lines(trainer):
        name, kind, *choices = line.split()
        if not name.startswith("--"):
            continue
        if kind == "switch":
            made.add_argument(name, action="store_true")
            continue
        number = kind[-1] if kind[-1] in "+*" else None
        cast = TYPES[kind.rstrip("+*")]
        allowed = [cast(each) for each in choices[0].split("|")] if choices else None
        made.add_argument(name, type=cast, nargs=number, choices=allowed)
    return made


@cache
def configurations(trainer: str) -> dict[tuple[str, str], dict[str, str]]:
    """Annotations by keyword, of (module, name)."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    current: dict[str, str] = {}
    for line in lines(trainer):
        if line.startswith("  "):
            name, _, annotation = line.strip().partition(" ")
            current[name] = annotation
        else:
            module, _, member = line.partition(":")
            current = found[module, member] = {}
    return found


def check_python(trainer: str, package: str, text: str) -> int:
    """Checks every call of a name that is imported from the package: it is recorded, it takes each keyword, and a value that
    is written out is one that the annotation has. The number of calls."""
    tree, known = ast.parse(text), configurations(trainer)
    modules = {
        alias.asname or alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(package)
        for alias in node.names
    }
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    checked = 0
    for call in calls:
        name = ast.unparse(call.func)
        module = modules.get(name.partition(".")[0])
        if module is None or "(" in name:
            continue
        assert (module, name) in known, f"{module} has no {name}"
        for keyword in call.keywords:
            taken = known[module, name]
            assert keyword.arg in taken, f"{name} takes no {keyword.arg}"
            check_value(f"{name}.{keyword.arg}", keyword.value, taken[keyword.arg])
        checked += 1
    for name, module in modules.items():
        assert any(module == m and each.partition(".")[0] == name for m, each in known), f"{module} has no {name}"
    return checked


def check_value(name: str, node: ast.expr, annotation: str) -> None:
    """A literal has the type that its annotation begins with, and is one of a Literal's choices."""
    if not isinstance(node, ast.Constant) or node.value is None:
        return
    value, first = node.value, annotation.removeprefix("Optional[").split(" |")[0].rstrip("]")
    if "Literal[" in annotation:
        assert repr(value) in annotation, f"{name} = {value!r}: allowed: {annotation}"
    elif first in ("int", "float", "str", "bool"):
        allowed = {"int": int, "float": (int, float), "str": str, "bool": bool}[first]
        assert isinstance(value, allowed), f"{name} = {value!r}: is no {annotation}"
        assert first == "bool" or not isinstance(value, bool), f"{name} = {value!r}: is no {annotation}"
