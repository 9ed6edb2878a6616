"""A criterion's query on a document: a path, a comparison and a value, as in `mfu >= 0.38`.

A path is made of keys and dots; `memory[0]` is an item of a list, `communication[axes=tp]` the first whose key is that word.
"""

import json
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_QUERY = re.compile(r"\s*(\S+)\s+(==|!=|>=|<=|>|<)\s+(.+?)\s*")
_PART = re.compile(r"\.?(?:(?P<key>[a-z0-9_+]+)|\[(?P<index>\d+)\]|\[(?P<name>\w+)=(?P<word>[\w+-]+)\])")


@dataclass(frozen=True)
class Query:
    """`path comparison value`."""

    path: str
    comparison: str
    value: Any

    def of(self, document: Mapping[str, Any]) -> Any:
        """The value at the path; None where the document has none."""
        found: Any = document
        for part in _PART.finditer(self.path):
            key, index, name, word = part.group("key", "index", "name", "word")
            if key is not None:
                found = found.get(key) if isinstance(found, Mapping) else None
            elif not isinstance(found, list):
                return None
            elif index is not None:
                found = found[int(index)] if int(index) < len(found) else None
            else:
                found = next((each for each in found if str(each.get(name)) == word), None)
        return found

    def holds(self, got: Any) -> bool:
        """Whether a value meets the comparison. None never does, nor does a word where a number is wanted."""
        numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in (got, self.value))
        if got is None or not (numbers or self.comparison in ("==", "!=")):
            return False
        return _COMPARISONS[self.comparison](got, self.value)


def parse_query(text: str) -> Query:
    """Reads a query; its value is written as in JSON. Raises `ValueError`."""
    found = _QUERY.fullmatch(text)
    example = "a query that works: mfu >= 0.38"
    if found is None:
        raise ValueError(
            f"{text!r} is no query of a path, a comparison ({' '.join(_COMPARISONS)}) and a value; {example}"
        )
    path, comparison, value = found.groups()
    if path.startswith(".") or "".join(each[0] for each in _PART.finditer(path)) != path:
        raise ValueError(f"{path!r} is no path; allowed: keys, [number], [key=word], joined by dots; {example}")
    try:
        wanted = json.loads(value)
    except ValueError:
        raise ValueError(f'{value!r} is no value; allowed: numbers, true, false, "words"; {example}') from None
    if comparison not in ("==", "!=") and (isinstance(wanted, bool) or not isinstance(wanted, int | float)):
        raise ValueError(f"{comparison} {value}: a number is needed; {example}")
    return Query(path, comparison, wanted)
