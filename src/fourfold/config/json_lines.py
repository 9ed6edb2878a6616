"""Files of one JSON object a line, which grow while a run goes on and may end in a line cut short."""

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fourfold.config.errors import FinalFailure, unwritable

_MOST_LINE_BYTES = 8 * 2**20


class JsonLines:
    """Appends one JSON object a line; each is on its way to the disk when `append` returns."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("a", encoding="utf-8")

    def append(self, values: Mapping[str, Any]) -> None:
        try:
            self._file.write(json.dumps(values) + "\n")
            self._file.flush()
        except OSError as error:
            raise FinalFailure(unwritable(self._path, error)) from None

    def close(self) -> None:
        self._file.close()


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file, one a line; what is no object (a line cut short), or longer than any row, is left out. Empty where it
    is missing."""
    with suppress(OSError), open(path, "rb") as file:
        at_start = True  # not in the rest of a line that is too long
        while line := file.readline(_MOST_LINE_BYTES):
            ends = line.endswith(b"\n")
            if at_start and (ends or len(line) < _MOST_LINE_BYTES) and (row := json_object(line)) is not None:
                yield row
            at_start = ends


def finite(value: Any) -> Any:
    """The value with null for each number that JSON has not: NaN and the infinities."""
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def json_object(line: bytes) -> dict[str, Any] | None:
    """The object of a line; None where it holds none."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None
