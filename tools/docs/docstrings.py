"""Docstrings as this project writes them (plain text, names in single backticks) as reStructuredText that cannot go wrong."""

import ast
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

_CODE = re.compile(r"`([^`\n]+)`")
_COLUMNS = re.compile(r"\S {3,}\S")
_WORD = re.compile(r"[\w.]+")


def names_in(package: Path) -> dict[str, str]:
    """Public functions and classes by their bare name, where only one module has it: full names for links."""
    found: dict[str, set[str]] = {}
    for path in sorted(package.rglob("*.py")):
        module = ".".join(path.relative_to(package.parent).with_suffix("").parts)
        if path.name == "__init__.py" or module.startswith(f"{package.name}.cli"):
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_") and _doc(node):
                found.setdefault(node.name, set()).add(f"{module}.{node.name}")
    return {name: next(iter(full)) for name, full in found.items() if len(full) == 1}


def _doc(node: ast.ClassDef | ast.FunctionDef) -> bool:
    return ast.get_docstring(node, clean=False) is not None


def to_rst(lines: Sequence[str], names: Mapping[str, str]) -> list[str]:
    """Paragraphs, bullet lists and indented blocks, with every other character of markup escaped."""
    result: list[str] = []
    for block in _blocks(lines):
        if block[0].startswith(" ") or any(_COLUMNS.search(line) for line in block[:3]):
            result += ["::", "", *(f"   {line}" for line in block), ""]
        elif block[0].startswith("- "):
            result += [*(f"- {inline(item, names)}" for item in _items(block)), ""]
        else:
            result += [inline(" ".join(block), names), ""]
    return result


def _blocks(lines: Sequence[str]) -> list[list[str]]:
    """Runs of lines without a blank one; an indented line after a plain one begins a block of its own."""
    blocks: list[list[str]] = [[]]
    for line in lines:
        if not line.strip():
            blocks.append([])
            continue
        last = blocks[-1]
        indents = bool(last) and line.startswith(" ") != last[0].startswith(" ")
        if last and not last[0].startswith("- ") and (indents or line.startswith("- ")):
            blocks.append([])
        blocks[-1].append(line)
    return [block for block in blocks if block]


def _items(block: Sequence[str]) -> list[str]:
    items: list[str] = []
    for line in block:
        if line.startswith("- "):
            items.append(line[2:])
        else:
            items[-1] += " " + line.strip()
    return items


def inline(text: str, names: Mapping[str, str]) -> str:
    """One paragraph: code in backticks becomes a link where it names something public, else a literal."""
    result, end = "", 0
    for match in _CODE.finditer(text):
        result += _escaped(text[end : match.start()], first=end == 0)
        content = match[1].strip()
        bare = content.rpartition(".")[2]
        if result and not result[-1].isspace():
            result += "\\ "
        if bare in names and _WORD.fullmatch(content):
            result += f":py:obj:`{content} <{names[bare]}>`"
        else:
            result += f"``{content}``"
        end = match.end()
        if end < len(text) and not text[end].isspace():
            result += "\\ "
    return result + _escaped(text[end:], first=end == 0)


def _escaped(text: str, first: bool) -> str:
    """`first`: the paragraph begins here, where `1.`, `-` and the like would make a list."""
    escaped = re.sub(r"([\\*_|`:])", r"\\\1", text)
    return re.sub(r"^(\w+\.(?=\s)|(?=[-+.]))", _guarded, escaped) if first else escaped


def _guarded(match: re.Match[str]) -> str:
    return match[1][:-1] + "\\." if match[1] else "\\"
