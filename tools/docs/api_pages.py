"""The API reference: a page for each package, with a table of its modules and what each of them offers."""

import ast
import re
import shutil
from pathlib import Path

_LEFT_OUT = {"cli", "__main__"}
"""Commands have a reference of their own."""


def write(package: Path, folder: Path) -> None:
    """One page a package below `package`, and an index, into `folder`, which is emptied first."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    pages = {path.parent: _title(path.parent, package) for path in sorted(package.rglob("__init__.py"))}
    pages = {path: title for path, title in pages.items() if path != package and path.name not in _LEFT_OUT}
    rows = [f"| [{title}]({title}.rst) | {_first_line(path / '__init__.py')} |" for path, title in pages.items()]
    tree = ["```{toctree}", ":hidden:", "", *pages.values(), "```"]
    text = ["# API", "", _INTRODUCTION, "", "| package | |", "|---|---|", *rows, "", *tree, ""]
    (folder / "index.md").write_text("\n".join(text), encoding="utf-8")
    for path, title in pages.items():
        (folder / f"{title}.rst").write_text(_page(path, title), encoding="utf-8")


_INTRODUCTION = """\
[Use from Python](/api.md) describes `import fourfold as ff`, whose functions stand in [fourfold.api](fourfold.api.rst). The other
pages are for those who read or extend the code. It may change before version 1.0; commands, run file and text form stay. Each
package may import only packages below it: [architecture](/architecture.md#the-layers)."""


def _title(path: Path, package: Path) -> str:
    return ".".join(path.relative_to(package.parent).parts)


def _page(path: Path, title: str) -> str:
    lines = [title, "=" * len(title), "", f".. py:module:: {title}", ""]
    doc = _docstring(path / "__init__.py")
    if doc:
        lines += [*(_plain(part) for part in doc.splitlines()), ""]
    modules = [m for m in sorted(path.glob("*.py")) if not m.name.startswith("__")]
    if modules:
        lines += [".. list-table::", "   :widths: 25 75", ""]
        for module in modules:
            lines += [f"   * - `{module.stem} <module-{title}.{module.stem}_>`__", f"     - {_first_line(module)}"]
        lines += [""]
    for module in modules:
        name = f"{title}.{module.stem}"
        lines += [f".. _module-{name}:", "", module.stem, "-" * len(module.stem), ""]
        lines += [f".. automodule:: {name}", ""]
    return "\n".join(lines)


def _docstring(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


def _first_line(path: Path) -> str:
    return _plain(" ".join(_docstring(path).split("\n\n")[0].split()))


def _plain(text: str) -> str:
    """Text that reads the same in Markdown and in reStructuredText."""
    return re.sub(r"([*|_:])", r"\\\1", text.replace("\\", "").replace("`", ""))
