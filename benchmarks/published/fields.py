"""Reading one untrusted JSON table: every value is typed and bounded, or one error names its file, row, key and what is allowed."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fourfold.config import UserError

LARGEST_COUNT = 10**9
LARGEST_NUMBER = 1e30
LONGEST_TEXT = 20_000


@dataclass(frozen=True)
class Fields:
    """A table of a row, `where` (file and row) and `path` (its own key) for messages.

    Files say some numbers in words (`"NA"`, `"-1 (full DP)"`): such a value is taken as not stated, and `remarks` says so.
    """

    table: Mapping[str, Any]
    where: str
    path: str = ""
    remarks: list[str] = field(default_factory=list)

    def _name(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def _refuse(self, key: str, value: Any, allowed: str) -> UserError:
        told = repr(value)
        return UserError(
            f"{self.where}: {self._name(key)} = {told[:80] + '…' if len(told) > 80 else told}; allowed: {allowed}"
        )

    def has(self, key: str) -> bool:
        """Whether the key is there with a value."""
        return self.table.get(key) is not None

    def named(self, others: Mapping[str, tuple[str, ...]]) -> "Fields":
        """A copy with what stands under another of a key's names under the key, where that is not there itself."""
        table = dict(self.table)
        for key, names in others.items():
            found = next((name for name in (key, *names) if table.get(name) is not None), key)
            if found != key:
                table[key] = table[found]
        return Fields(table, self.where, self.path, self.remarks)

    def number(self, key: str, *, low: float = 0.0, high: float = LARGEST_NUMBER) -> float | None:
        """A finite number in [low, high]. None where it is not stated, or only in words."""
        value = self.table.get(key)
        if value is None:
            return None
        if isinstance(value, str):
            self.remarks.append(f"{self._name(key)} = {value[:60]!r} is no number and is taken as not stated")
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise self._refuse(key, value, f"a number from {low:g} to {high:g}, or null where it is not stated")
        return float(value)

    def count(self, key: str, *, low: int = 1, high: int = LARGEST_COUNT) -> int | None:
        """A whole number in [low, high]. None where it is not stated, or only in words."""
        value = self.number(key, low=low, high=high)
        if value is None:
            return None
        if not math.isfinite(value) or value != int(value):
            raise self._refuse(key, self.table[key], f"a whole number from {low} to {high}, or null")
        return int(value)

    def flag(self, key: str) -> bool | None:
        """true, false, or None where it is not stated, or only in words."""
        value = self.table.get(key)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            self.remarks.append(
                f"{self._name(key)} = {value[:60]!r} is neither true nor false and is taken as not stated"
            )
            return None
        raise self._refuse(key, value, "true, false, or null where it is not stated")

    def text(self, key: str) -> str | None:
        """A text of bounded length, or None. A number, true or false as JSON writes them; a list of texts joined."""
        value = self.table.get(key)
        if value is None:
            return None
        if isinstance(value, bool | int | float):
            return str(value).lower()[:100]
        if isinstance(value, list) and len(value) <= 100 and all(isinstance(v, str) for v in value):
            value = "; ".join(value)
        if not isinstance(value, str) or len(value) > LONGEST_TEXT:
            raise self._refuse(key, value, f"a text of at most {LONGEST_TEXT} characters, or null")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts; empty where it is not stated."""
        value = self.table.get(key)
        if value is None:
            return ()
        if isinstance(value, str):
            return (value[:LONGEST_TEXT],)
        if not isinstance(value, list) or len(value) > 100 or not all(isinstance(v, str) for v in value):
            raise self._refuse(key, value, "a list of at most 100 texts")
        return tuple(value)

    def inner(self, key: str) -> "Fields":
        """The table under a key; empty where it is not stated."""
        value = self.table.get(key)
        if value is not None and not isinstance(value, dict):
            raise self._refuse(key, value, "a table of keys and values")
        return Fields(value or {}, self.where, self._name(key), self.remarks)
