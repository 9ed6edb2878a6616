"""Paths of a run file: one that is relative begins at the run file's own folder where something is there, else at the current
folder. So the same file is the same run from wherever it is started."""

import glob
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_KEYS = (("data", "corpus"), ("data", "tokenizer"), ("model", "hf"), ("model", "initial"))
_LISTS = (("data", "corpus", "path"), ("run", "validation", "corpus"))
"""Keys of lists of tables, and the key in each table."""
_NAMES_OR_FILES = (("cluster", "preset"), ("cluster", "software"))
"""Keys that name a file where their value ends so, and else something that is shipped."""
_FILE_ENDING, _FILE_START = ".toml", "file:"


def begin_beside(table: dict[str, Any], folder: Path) -> None:
    """Writes the paths of a parsed run file out, where something lies below its `folder` and the current one is another."""
    folder = folder.absolute()
    if folder == Path.cwd():
        return
    for holder, key in _places(table):
        value = holder.get(key)
        if not isinstance(value, str):
            continue
        start = _FILE_START if value.startswith(_FILE_START) else ""
        path = value.removeprefix(start)
        if _is_relative(path):
            place = os.path.join(folder, path)
            if _is_there(place):
                holder[key] = start + place


def where_looked(path: str) -> str:
    """Where a relative path was looked for, as the end of a message; empty for others."""
    return f"; looked for {os.path.abspath(path)}, and beside the run file" if _is_relative(path) else ""


def _places(table: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """The tables and keys that may hold a path."""
    for name, key in _KEYS:
        section = table.get(name)
        if not isinstance(section, dict):
            continue
        yield section, key
    for name, key, inner in _LISTS:
        section = table.get(name)
        parts = section.get(key) if isinstance(section, dict) else None
        if isinstance(parts, list):
            yield from ((part, inner) for part in parts if isinstance(part, dict))
    for name, key in _NAMES_OR_FILES:
        section = table.get(name)
        if isinstance(section, dict) and str(section.get(key)).endswith(_FILE_ENDING):
            yield section, key
    stages = table.get("stage")
    for stage in stages if isinstance(stages, list) else ():
        if isinstance(stage, dict):
            yield from _places(stage)
    layout = table.get("layout")
    if isinstance(layout, dict) and str(layout.get("schedule")).startswith(_FILE_START):
        yield layout, "schedule"


def _is_relative(path: str) -> bool:
    """Whether it is a path at all, and not an absolute one."""
    named = not path or path in ("stdlib", "bytes") or path.startswith("bpe:")
    return not named and "\0" not in path and "://" not in path and not path.startswith(("~", "/"))


def _is_there(place: str) -> bool:
    """A file, a folder, something that a glob matches, or a Megatron pair without its ends."""
    try:
        return (
            os.path.exists(place)
            or os.path.exists(f"{place}.idx")
            or (glob.has_magic(place) and any(glob.iglob(place, recursive=True)))
        )
    except (OSError, ValueError):
        return False
