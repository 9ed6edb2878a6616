"""Where a source file can be broken by one small edit, and how: the mutants that `tools.mutants` draws from.

Six kinds (DeMillo, Lipton and Sayward 1978, "Hints on test data selection", and what goes wrong in this field): an operator turned,
a constant moved, a factor left out, a line left out, an instruction (an element of a sequence, a yield, an append) left out, two
arguments exchanged. Code that only speaks to a person (messages of errors, formatted text, docstrings) is no site.
"""

import ast
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KINDS = ("operator", "constant", "factor", "line", "instruction", "argument")
_TURNED: Mapping[type[ast.AST], str] = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "//",
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.In: "not in", ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is", ast.And: "or", ast.Or: "and",
}  # fmt: skip
_SILENT = (ast.Raise, ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom)
"""Nodes under which nothing is a site."""
_GROWS = ("append", "add", "extend", "insert", "appendleft")


@dataclass(frozen=True)
class Mutant:
    """One edit. `path`: from the root; `function`: qualified name; `line`: from 1; `start`, `end`: where the text `old`,
    which becomes `new`, stands in the file, in characters; `nth`: how many times it stands in the function before."""

    path: str
    function: str
    line: int
    kind: str
    start: int
    end: int
    nth: int
    old: str
    new: str

    @property
    def name(self) -> str:
        """The site's name, which stays where lines move."""
        return f"{self.path}::{self.function}::{self.kind}::{self.nth}::{self.old}::{self.new}"

    @property
    def package(self) -> str:
        return self.path.removeprefix("src/fourfold/").split("/")[0].removesuffix(".py")

    def applied(self, source: str) -> str:
        return source[: self.start] + self.new + source[self.end :]

    def to_json(self) -> dict[str, object]:
        return {"name": self.name, **asdict(self)}


def sites_of(path: str, source: str) -> list[Mutant]:
    """All mutants of a file, in the order of its text."""
    tree, starts = ast.parse(source), _line_starts(source)
    found = []
    for function, body in _functions(tree, ""):
        seen: dict[str, list[int]] = {}
        for kind, node, new in _edits(body):
            start, end = _span(node, starts, source)
            old = source[start:end]
            if new == old:
                continue
            places = seen.setdefault(old, [])
            if start not in places:
                places.append(start)
            found.append(Mutant(path, function, node.lineno, kind, start, end, sorted(places).index(start), old, new))
    return sorted(set(found), key=lambda mutant: (mutant.start, mutant.end, mutant.kind, mutant.new))


def drawn(files: Iterable[Path], number: int, seed: int, weights: Mapping[str, float]) -> list[Mutant]:
    """`number` mutants, a package's share by its weight; within a package a kind at random first, then a site of it. No two of one
    line."""
    by_package: dict[str, dict[str, list[Mutant]]] = {}
    for file in sorted(files):
        for mutant in sites_of(file.relative_to(ROOT).as_posix(), file.read_text(encoding="utf-8")):
            by_package.setdefault(mutant.package, {}).setdefault(mutant.kind, []).append(mutant)
    chance = random.Random(seed)
    quotas = shares({package: weights.get(package, weights["*"]) for package in by_package}, number)
    return [mutant for package in sorted(quotas) for mutant in _some(by_package[package], quotas[package], chance)]


def shares(weights: Mapping[str, float], number: int) -> dict[str, int]:
    """`number` things shared out by weight, by largest remainders."""
    total = sum(weights.values())
    exact = {key: number * weight / total for key, weight in weights.items()}
    given = {key: int(each) for key, each in exact.items()}
    rest = sorted(weights, key=lambda key: (given[key] - exact[key], key))
    for key in rest[: number - sum(given.values())]:
        given[key] += 1
    return given


def _some(kinds: Mapping[str, Sequence[Mutant]], number: int, chance: random.Random) -> list[Mutant]:
    found: list[Mutant] = []
    taken: set[tuple[str, int]] = set()
    left = {kind: list(sites) for kind, sites in sorted(kinds.items())}
    while len(found) < number and left:
        kind = chance.choice(sorted(left))
        mutant = left[kind].pop(chance.randrange(len(left[kind])))
        if not left[kind]:
            del left[kind]
        if (mutant.path, mutant.line) not in taken and _parses(mutant.applied((ROOT / mutant.path).read_text("utf-8"))):
            taken.add((mutant.path, mutant.line))
            found.append(mutant)
    return found


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, list[ast.stmt]]]:
    """Qualified name and body of each function, those inside others apart."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{prefix}{child.name}"
            if not child.name.startswith(("__repr", "__str")):
                yield name, child.body
            yield from _functions(child, f"{name}.")
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")
        else:
            yield from _functions(child, prefix)


def _edits(body: Sequence[ast.stmt]) -> Iterator[tuple[str, ast.AST, str]]:
    """(kind, node whose text is replaced, new text)."""
    for node in _spoken(body):
        text = ast.unparse
        match node:
            case ast.BinOp(left=left, op=op, right=right):
                if type(op) in _TURNED and not _is_text(left) and not _is_text(right):
                    yield "operator", node, f"(({text(left)}) {_TURNED[type(op)]} ({text(right)}))"
                if isinstance(op, ast.Mult | ast.Div | ast.FloorDiv):
                    yield "factor", node, f"({text(left)})"
                if isinstance(op, ast.Mult):
                    yield "factor", node, f"({text(right)})"
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _TURNED:
                yield "operator", node, f"(({text(left)}) {_TURNED[type(op)]} ({text(right)}))"
            case ast.BoolOp(op=op, values=values):
                joined = f" {_TURNED[type(op)]} ".join(f"({text(value)})" for value in values)
                yield "operator", node, f"({joined})"
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield "operator", node, f"({text(operand)})"
            case ast.Constant(value=bool() as value):
                yield "constant", node, str(not value)
            case ast.Constant(value=int() | float() as value):
                yield "constant", node, repr(value + 1)
            case ast.Expr(value=ast.Yield()):
                yield "instruction", node, "pass"
            case ast.Expr(value=ast.Call(func=ast.Attribute(attr=attr))) if attr in _GROWS:
                yield "instruction", node, "pass"
            case ast.Expr(value=ast.Call()) | ast.AugAssign():
                yield "line", node, "pass"
            case ast.List(elts=elements) | ast.Tuple(elts=elements, ctx=ast.Load()) if len(elements) > 1 and not any(
                map(_is_text, elements)
            ):
                for left_out in range(len(elements)):
                    kept = [text(each) for index, each in enumerate(elements) if index != left_out]
                    inner = ", ".join(kept)
                    yield "instruction", node, f"[{inner}]" if isinstance(node, ast.List) else f"({inner},)"
            case ast.Call(args=[first, second, *_]) if not any(isinstance(each, ast.Starred) for each in node.args[:2]):
                if text(first) != text(second):
                    copy = ast.Call(node.func, [second, first, *node.args[2:]], node.keywords)
                    yield "argument", node, text(copy)


def _spoken(body: Sequence[ast.stmt]) -> Iterator[ast.AST]:
    """All nodes of a function's body but those of functions inside it and of what only a person reads."""
    for index, statement in enumerate(body):
        if index == 0 and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue
        yield from _below(statement)


def _below(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, (*_SILENT, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _below(child)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _parses(source: str) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


def _line_starts(source: str) -> list[int]:
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return starts


def _span(node: ast.AST, starts: Sequence[int], source: str) -> tuple[int, int]:
    """Where a node's text begins and ends, in characters; `ast` counts bytes of UTF-8."""

    def offset(line: int, column: int) -> int:
        begin = starts[line - 1]
        return begin + len(source[begin : starts[line]].encode()[:column].decode())

    return offset(node.lineno, node.col_offset), offset(node.end_lineno, node.end_col_offset)
