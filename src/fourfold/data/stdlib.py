"""The corpus "stdlib": the Python sources of the running machine's standard library, read where they lie."""

import os
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path

SKIPPED_FOLDERS = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"})
"""Names of folders left out wherever they stand: tests, installed packages, compiled files."""

_GENERATED = re.compile(r"(?i)\b(auto-?generated|generated\s+(by|from|with|and used))\b")
_HEADER_LINES = 4
_LITERAL_LINE = re.compile(r"\s*(?:[rRuUbBfF]{0,2}['\"]|-?\d)")
_TABLE_SHARE = 0.7
_TABLE_MIN_CHARS = 4096


def stdlib_root() -> Path:
    """The folder of the standard library of the Python that runs."""
    return Path(sysconfig.get_path("stdlib"))


def stdlib_files() -> Iterator[Path]:
    """Every `.py` file outside `SKIPPED_FOLDERS` and hidden folders, in no particular order, tables included."""
    for folder, subfolders, names in os.walk(stdlib_root()):
        subfolders[:] = [name for name in subfolders if name not in SKIPPED_FOLDERS and not name.startswith(".")]
        yield from (Path(folder, name) for name in names if name.endswith(".py") and not name.startswith("."))


def is_generated_table(text: str) -> bool:
    """Whether a source file is a generated table rather than something a person wrote.

    The rule: one of its first four lines says that it is generated, or it has at least 4,096 characters and 70 % of
    them stand on lines that begin with a string or number literal. This leaves out the character maps of `encodings`,
    `pydoc_data/topics.py`, `html/entities.py`, `_sysconfigdata*.py` and their like, without a list of names.
    """
    lines = text.split("\n")
    if _GENERATED.search("\n".join(lines[:_HEADER_LINES])):
        return True
    if len(text) < _TABLE_MIN_CHARS:
        return False
    literal_chars = sum(len(line) + 1 for line in lines if _LITERAL_LINE.match(line))
    return literal_chars >= _TABLE_SHARE * len(text)
