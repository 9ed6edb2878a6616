"""A cover keeps every value, or every pair of values, of a grid, and all of a list of unlike cases."""

from dataclasses import dataclass
from itertools import chain, combinations, product

import pytest

from tests.support.grid import Slice, cover, features

GRID = [{"zero": zero, "tp": tp, "pp": pp} for zero, tp, pp in product(range(4), (1, 2), (1, 2, 4))]


def of(cases: list[object]) -> list[list[tuple[str, str]]]:
    return [sorted(features(case)) for case in cases]


@pytest.mark.parametrize("strength", [1, 2, 3])
def test_every_combination_that_any_case_has_is_in_a_case_that_is_kept(strength: int) -> None:
    cases = of(GRID)
    kept = cover(cases, strength)
    wanted = {each for case in cases for each in combinations(case, strength)}
    assert {each for number in kept for each in combinations(cases[number], strength)} == wanted
    assert len(kept) == {1: 4, 2: 12, 3: 24}[strength]


def test_unlike_cases_are_all_kept() -> None:
    assert cover(of(["one", "two", "three"]), 2) == {0, 1, 2}


def test_equal_cases_are_kept_once_and_the_first_of_equals_always() -> None:
    assert cover(of(["one", "two", "one"]), 2) == {0, 1}


@dataclass(frozen=True)
class Shape:
    heads: int
    widths: tuple[int, int]


def test_values_within_values_are_features() -> None:
    found = {"shape": Shape(2, (8, 16)), "layout": {"zero": 3}, "how": len}
    assert set(features(found)) == {
        (".shape.heads", "2"),
        (".shape.widths.0", "8"),
        (".shape.widths.1", "16"),
        (".layout.zero", "3"),
        (".how", "len"),
    }


def test_slices_are_all_tests_and_share_none() -> None:
    names = [f"tests/test_{number}.py::test_it[{number}]" for number in range(300)]
    slices = [[name for name in names if Slice.parse(f"{number}/3").holds(name)] for number in (1, 2, 3)]
    assert sorted(chain(*slices)) == sorted(names)
    assert all(80 < len(each) < 120 for each in slices)


@pytest.mark.parametrize("text", ["", "0/3", "4/3", "1", "a/b", "-1/3", "1/0"])
def test_a_wrong_slice_is_refused(text: str) -> None:
    with pytest.raises(pytest.UsageError, match="allowed: K/N with K from 1 to N"):
        Slice.parse(text)
