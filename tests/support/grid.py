"""Which cases of a grid `make test` runs: a cover of the values of its parameters, or of their pairs. The others are marked `rest`.

`@pytest.mark.grid(2)` above a parametrized test asks for every pair of values that stands together in some case (pairwise testing:
Cohen, Dalal, Parelius and Patton 1996), `@pytest.mark.grid(1)` for every value. A parameter that is a mapping, a sequence or a
dataclass has a value for each of its keys, places or fields; `of=` is a function of the parameters, by name, that says instead what
a case is made of. A value that no other case has is always run, so a list of unlike cases stays as it is.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import combinations
from typing import Any, NamedTuple
from zlib import crc32

import pytest

Feature = tuple[str, str]


def mark_cases_beyond_a_cover(items: Iterable[pytest.Item]) -> None:
    """Marks `rest` what a cover of its function's cases does without."""
    functions: dict[str, list[pytest.Function]] = {}
    for item in items:
        is_longer = any(map(item.get_closest_marker, ("sweep", "faults", "rest")))
        if not is_longer and item.get_closest_marker("grid") and hasattr(item, "callspec"):
            assert isinstance(item, pytest.Function)
            functions.setdefault(item.nodeid.split("[")[0], []).append(item)
    for cases in (cases for cases in functions.values() if len(cases) > 1):
        marker = cases[0].get_closest_marker("grid")
        assert marker is not None
        made_of = marker.kwargs.get("of", dict)
        values = [made_of(**case.callspec.params) for case in cases]
        kept = cover([sorted(set(features(value))) for value in values], *marker.args)
        for number, case in enumerate(cases):
            if number not in kept:
                case.add_marker(pytest.mark.rest)


class Slice(NamedTuple):
    """Slice `number`, from 1, of `of` that together are all tests."""

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> "Slice":
        """`2/3`. Raises `UsageError` of pytest."""
        number, _, of = text.partition("/")
        if not (number.isdigit() and of.isdigit() and 1 <= int(number) <= int(of)):
            raise pytest.UsageError(f"--slice {text}: allowed: K/N with K from 1 to N; a value that works: --slice 1/3")
        return cls(int(number), int(of))

    def holds(self, name: str) -> bool:
        """Whether a test of this name belongs to it: the same in every run, and on every process of one."""
        return crc32(name.encode()) % self.of == self.number - 1


def others_are_rest(cases: Iterable[Any], kept: Container[Any]) -> list[Any]:
    """The cases of `parametrize`, a tuple for several parameters; those that are not in `kept` are marked `rest`."""
    return [
        case if case in kept else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.rest)
        for case in cases
    ]


def features(value: Any, path: str = "") -> Iterator[Feature]:
    """(where it stands, value) of everything in a case."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from features(each, f"{path}.{key}")
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from features(getattr(value, field.name), f"{path}.{field.name}")
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for number, each in enumerate(value):
            yield from features(each, f"{path}.{number}")
    else:
        yield path, getattr(value, "__qualname__", None) or repr(value)


def cover(cases: Sequence[Sequence[Feature]], strength: int) -> set[int]:
    """Numbers of few cases that have every combination of `strength` features that any case has: greedily, the first of equals."""
    needs = [set(combinations(case, min(strength, max(len(case), 1)))) for case in cases]
    left = set().union(*needs)
    chosen: set[int] = set()
    while left:
        best = max(range(len(needs)), key=lambda number: (len(needs[number] & left), -number))
        chosen.add(best)
        left -= needs[best]
    return chosen
