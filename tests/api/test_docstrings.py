"""Docstrings of what a person may call say what it is, what it raises, the shapes of arrays and the units of numbers."""

import ast
import importlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "fourfold"
PACKAGES = ("api", "plan", "simulate")
ARRAY = re.compile(r"\b(ndarray|NDArray|Column|Indices|Flags|Tensor)\b")
NUMBER = re.compile(r"(?<!dict\[str, )\b(float|int)\b(?! \| str)")
UNIT = re.compile(
    r"second|byte|token|flop|share|fraction|dollar|joule|hour|number|how (many|often)|count|utilisation|rank|index|degree|factor"
    r"|step|microbatch|sequence|device|per cent|probab",
    re.IGNORECASE,
)


class Public(NamedTuple):
    """A public function, or a method or property of a public class."""

    module: ModuleType
    owner: type | None
    node: ast.FunctionDef

    @property
    def text(self) -> str:
        return ast.get_docstring(self.node) or ""

    @property
    def returns(self) -> str:
        return ast.unparse(self.node.returns) if self.node.returns is not None else ""


def _public() -> Iterator[tuple[str, Public]]:
    for path in sorted(path for package in PACKAGES for path in (SOURCE / package).rglob("*.py")):
        module = importlib.import_module(".".join(path.relative_to(SOURCE.parent).with_suffix("").parts))
        tree = ast.parse(path.read_text(encoding="utf-8"))
        owners = [(None, tree.body)]
        owners += [(node.name, node.body) for node in tree.body if isinstance(node, ast.ClassDef)]
        for owner, body in owners:
            for node in body:
                if isinstance(node, ast.FunctionDef) and not any(n.startswith("_") for n in (owner or "", node.name)):
                    name = f"{path.relative_to(SOURCE).as_posix()}:{owner or ''}.{node.name}"
                    yield name, Public(module, getattr(module, owner) if owner else None, node)


MEMBERS = dict(_public())


def _done(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes that run for sure: outside of `try` and of functions that are only defined."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.Try):
            for each in (*child.orelse, *child.finalbody, *(s for handler in child.handlers for s in handler.body)):
                yield each
                yield from _done(each)
            continue
        if isinstance(child, ast.With) and "suppress" in ast.unparse(child.items[0]):
            continue
        yield child
        yield from _done(child)


def _called(public: Public, call: ast.expr) -> Callable[..., object] | None:
    if isinstance(call, ast.Name):
        return getattr(public.module, call.id, None)
    if isinstance(call, ast.Attribute) and isinstance(call.value, ast.Name) and call.value.id in ("self", "cls"):
        return getattr(public.owner, call.attr, None)
    return None


def test_every_public_function_has_a_docstring() -> None:
    assert len(MEMBERS) > 300
    assert [name for name, public in MEMBERS.items() if not public.text] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_a_docstring_says_what_is_raised(package: str) -> None:
    silent = []
    for name, public in MEMBERS.items():
        if not name.startswith(f"{package}/") or "Raises" in public.text:
            continue
        done = list(_done(public.node))
        called = [_called(public, each.func) for each in done if isinstance(each, ast.Call)] if package == "api" else []
        documented = [each for each in called if not isinstance(each, type) and "Raises `" in (each.__doc__ or "")]
        if documented or any(isinstance(each, ast.Raise) for each in done):
            silent.append(name)
    assert silent == [], "it raises, or calls what says that it does"


def test_arrays_have_their_shape() -> None:
    arrays = {name: public for name, public in MEMBERS.items() if ARRAY.search(public.returns)}
    assert len(arrays) > 8
    assert [name for name, public in arrays.items() if "[" not in public.text] == []


def test_numbers_have_their_unit() -> None:
    numbers = {name: public for name, public in MEMBERS.items() if NUMBER.search(public.returns)}
    assert len(numbers) > 100
    texts = {name: f"{public.node.name.replace('_', ' ')} {public.text}" for name, public in numbers.items()}
    assert [name for name, text in texts.items() if not UNIT.search(text)] == []
