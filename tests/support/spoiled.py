"""Run folders as no run leaves them: every value of every file replaced, lines cut, added and repeated."""

import json
import random
import re
import struct
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w

from fourfold.checkpoint.manifest import _digest

CONTROL = "\x1b]0;title\x07\x1b[2J\x9b31m\r\x7f\u202egone"
VALUES: tuple[Any, ...] = (
    CONTROL, "", "abc", -1, 0, 1, 2**31, 2**63, 2**70, 10**400, 1e308, 1e-320, -1e308, float("nan"), float("inf"), True, None, [],
    [1], {}, {"a": [CONTROL]}, "\ud800", "a" * 100_000, [[]] * 100,
)  # fmt: skip
"""Values that may stand where a run writes something else. TOML and JSON take of them what they can."""
BYTES = (b"", b"\x00" * 64, b"[" * 200_000, b'{"a":' * 200_000, b"\xff\xfe\x00", b"1" * 100_000, CONTROL.encode())
"""Files, and lines of files of JSON lines."""
ROWS, RECORD = ("metrics.jsonl", "events.jsonl"), struct.Struct("<qqddiiq16x")
EDGES = {"q": (-1, 2**62, -(2**63)), "d": (float("nan"), 1e308, -1e308), "i": (-1, 99, 2**31 - 1)}


class Spoiled(NamedTuple):
    """A change of a folder. `name`: which, for the message of a test."""

    name: str
    spoil: Callable[[Path], None]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values in a document, by keys and indices; of long lists the first two items."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    for key, each in items:
        yield from places(each, (*path, key))


def replaced(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    """The document with another value at a path; without it where the value is `MISSING`."""
    copy = json.loads(json.dumps(document))
    inner = copy
    for key in path[:-1]:
        inner = inner[key]
    if value is MISSING:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return copy


MISSING = object()


def spoiled_folders(folder: Path, seed: int, each: int = 2) -> list[Spoiled]:
    """Changes of a copy of `folder`: `each` values for every place of every file, drawn by `seed`, and the content of each file."""
    draw = random.Random(seed)
    found: list[Spoiled] = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = str(path.relative_to(folder))
        if path.suffix in (".html", ".log", ".tracebacks") or path.name in ("trace.json", ".lock", ".fence"):
            continue
        found += [
            Spoiled(f"{name} is {content[:12]!r}", _content(name, content)) for content in draw.sample(BYTES, each)
        ]
        found += [Spoiled(f"{name} is missing", lambda run, name=name: (run / name).unlink())]  # type: ignore[misc]
        if path.name in ROWS:
            rows = [json.loads(line) for line in path.read_text().splitlines()]
            kinds = {row.get("event"): row for row in rows}
            for row in kinds.values():
                for place in places(row):
                    for value in draw.sample((*VALUES, MISSING), each):
                        changed = replaced(row, place, value)
                        found.append(
                            Spoiled(f"{name} {row.get('event', '')} {place} = {value!r:.20}", _added(name, [changed]))
                        )
            found += [Spoiled(f"{name}: line {line[:12]!r}", _added(name, [line])) for line in draw.sample(BYTES, each)]
            found.append(Spoiled(f"{name}: large numbers", _added(name, [_scaled(row) for row in rows])))
        elif path.suffix == ".json":
            document = json.loads(path.read_text())
            for place in places(document):
                for value in draw.sample((*VALUES, MISSING), each):
                    changed = replaced(document, place, value)
                    found.append(Spoiled(f"{name} {place} = {value!r:.20}", _document(name, changed)))
        elif path.suffix == ".toml":
            document = tomllib.loads(path.read_text())
            for place in places(document):
                for value in draw.sample((*VALUES, MISSING), each):
                    try:
                        text = tomli_w.dumps(replaced(document, place, value))
                    except (TypeError, ValueError, UnicodeError):
                        continue
                    found.append(
                        Spoiled(f"{name} {place} = {value!r:.20}", _content(name, text.encode(errors="replace")))
                    )
        elif path.suffix == ".bin":
            fields = RECORD.unpack_from(path.read_bytes())
            for index, kind in enumerate(re.findall("[qdi]", RECORD.format)):
                for value in EDGES[kind]:
                    record = RECORD.pack(*fields[:index], value, *fields[index + 1 :])
                    found.append(Spoiled(f"{name} field {index} = {value}", _content(name, record * 3)))
    return found


def _content(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda run: bool((run / name).write_bytes(content)) and None  # type: ignore[return-value]


def _document(name: str, document: Any) -> Callable[[Path], None]:
    """A changed document; a manifest is signed again."""
    if name.endswith("manifest.json") and isinstance(document, dict):
        document.pop("sha256", None)
        document = {**document, "sha256": _digest(document)}
    return _content(name, json.dumps(document).encode())


def _added(name: str, rows: list[Any]) -> Callable[[Path], None]:
    lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]

    def spoil(run: Path) -> None:
        with open(run / name, "ab") as file:
            file.write(b"".join(line + b"\n" for line in lines))

    return spoil


def _scaled(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value * 1e300 if isinstance(value, float) else value for key, value in row.items()}
