"""Python sources of another project, read and never imported: where a name is defined, and the fields of its dataclasses."""

import ast
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

Class = tuple[str, ast.ClassDef]
"""The module of a class, and the class."""


class Field(NamedTuple):
    """A field of a dataclass, with its annotation and its default as written (None: no default)."""

    name: str
    annotation: ast.expr
    default: ast.expr | None


class Tree:
    """The newest commit of a git repository, or a folder."""

    def __init__(self, folder: Path, inside: str = "") -> None:
        """`inside`: the folder in it that modules are imported from."""
        self._folder, self._inside = folder, inside
        self._is_git = self._git("rev-parse", "HEAD") is not None

    def version(self, package: str) -> str:
        """The commit; of a folder that pip installs into, the package's version."""
        installed = (
            each.name.split("-")[1].removesuffix(".dist") for each in self._folder.glob(f"{package}-*.dist-info")
        )
        return (self._git("rev-parse", "HEAD") or next(installed, "?")).strip()

    def read(self, path: str) -> str | None:
        """The text of a file; None where there is none."""
        path = self._inside + path
        if self._is_git:
            return self._git("show", f"HEAD:{path}")
        file = self._folder / path
        return file.read_text() if file.is_file() else None

    def _git(self, *command: str) -> str | None:
        done = subprocess.run(["git", "-C", self._folder, *command], capture_output=True, text=True)
        return done.stdout if done.returncode == 0 else None


class Sources:
    """The modules of several trees; the first tree that has a module wins."""

    def __init__(self, *trees: Tree) -> None:
        self._trees = trees
        self.module = cache(self._module)

    def _module(self, name: str) -> ast.Module:
        base = name.replace(".", "/")
        for tree in self._trees:
            for path in (f"{base}.py", f"{base}/__init__.py"):
                text = tree.read(path)
                if text is not None:
                    return ast.parse(text)
        raise SystemExit(f"{name}: no such module in the sources; give a newer copy of them")

    def find(self, module: str, name: str) -> tuple[str, ast.ClassDef | ast.FunctionDef]:
        """The class or function that `module` calls `name`, through imports. `name` may have dots, for classes in classes."""
        first, _, rest = name.partition(".")
        for node in ast.walk(self.module(module)):
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == first:
                return (module, _inner(node, rest)) if rest else (module, node)
        for node in ast.walk(self.module(module)):
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if (alias.asname or alias.name) == first:
                        origin = _absolute(node, module, self._is_package(module))
                        return self.find(origin, f"{alias.name}.{rest}" if rest else alias.name)
        raise SystemExit(f"{module} has no {name}; give sources in which it has")

    def _is_package(self, module: str) -> bool:
        return any(tree.read(module.replace(".", "/") + "/__init__.py") is not None for tree in self._trees)

    def fields(self, module: str, name: str) -> dict[str, Field]:
        """The fields of a dataclass, its bases' first."""
        where, node = self.find(module, name)
        found: dict[str, Field] = {}
        assert isinstance(node, ast.ClassDef), f"{module}.{name} is no class"
        for base in reversed(node.bases):
            text = ast.unparse(base)
            if "[" not in text and text not in ("object", "ABC", "Protocol", "Stateful") and "Mixin" not in text:
                found |= self.fields(where, text)
        for statement in node.body:
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                field = Field(statement.target.id, statement.annotation, statement.value)
                found[field.name] = field
        return found

    def configuration(self, module: str, name: str) -> str:
        """`NAME.Config` where a class has such a class in it, else `NAME`."""
        _, node = self.find(module, name)
        inner = (each.name for each in node.body if isinstance(each, ast.ClassDef))
        return f"{name}.Config" if isinstance(node, ast.ClassDef) and "Config" in inner else name

    def parameters(self, module: str, name: str) -> dict[str, Field]:
        """The keyword arguments of a function, or of the dataclass of that name."""
        _, node = self.find(module, name)
        if isinstance(node, ast.ClassDef):
            return self.fields(module, name)
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        named = {each.arg: Field(each.arg, each.annotation or ast.Constant("?"), None) for each in arguments}
        return named if node.args.kwarg is None else named | {"**": Field("**", ast.Constant("?"), None)}


def _inner(node: ast.ClassDef | ast.FunctionDef, name: str) -> ast.ClassDef:
    for part in name.split("."):
        node = next(each for each in node.body if isinstance(each, ast.ClassDef) and each.name == part)
    assert isinstance(node, ast.ClassDef)
    return node


def _absolute(node: ast.ImportFrom, module: str, is_package: bool) -> str:
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    kept = parts[: len(parts) - node.level + is_package]
    return ".".join([*kept, *([node.module] if node.module else [])])


def calls(node: ast.AST, name: str) -> Iterator[ast.Call]:
    """Calls of a function or method of that name, in order."""
    for each in ast.walk(node):
        if isinstance(each, ast.Call) and getattr(each.func, "attr", getattr(each.func, "id", None)) == name:
            yield each


def keywords(call: ast.Call) -> dict[str, ast.expr]:
    """The keyword arguments of a call."""
    return {each.arg: each.value for each in call.keywords if each.arg}
