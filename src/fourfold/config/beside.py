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
_WORDS = ("stdlib", "bytes")
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


def spell_alike(table: dict[str, Any]) -> None:
    """Writes every source of a run's data as it was written first: one that comes again in a later stage, by another path to the
    same place, is the same source."""
    first: dict[str, str] = {}
    for holder, key in _places(table):
        if key in ("corpus", "path") and isinstance(value := holder.get(key), str):
            holder[key] = first.setdefault(place_of_text(value), value)


def place_of_text(value: Any) -> Any:
    """A path without what may differ between two that lead to one place: links, slashes, dots; the same of each value of a
    list or table. Anything else as it is."""
    if isinstance(value, list):
        return [place_of_text(each) for each in value]
    if isinstance(value, dict):
        return {name: place_of_text(each) for name, each in value.items()}
    if not isinstance(value, str) or "\0" in value or value in _WORDS or value.startswith("bpe:"):
        return value
    if "://" in value:
        return value.rstrip("/")
    folder, name = os.path.split(os.path.normpath(os.path.expanduser(value)))
    is_pattern = glob.has_magic(name)
    return os.path.join(os.path.realpath(folder), name) if is_pattern else os.path.realpath(os.path.join(folder, name))


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
    named = not path or path in _WORDS or path.startswith("bpe:")
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
