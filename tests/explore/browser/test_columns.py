"""The columns that stand in for numpy give what numpy gives, to the last bit."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fourfold.explore.browser import columns
from fourfold.explore.run import KEYS

FLOATS = st.floats(allow_nan=False)
FEW = st.lists(FLOATS, min_size=1, max_size=12)
PAIRS = st.lists(st.tuples(FLOATS, FLOATS), min_size=1, max_size=12).map(lambda rows: list(zip(*rows, strict=True)))


def same(ours: Any, theirs: Any) -> None:
    """Kind, shape and numbers; of a NaN that it is one. The sign of a zero is left open, as it is in the extremum of two."""
    if isinstance(ours, tuple):
        for pair in zip(ours, theirs, strict=True):
            same(*pair)
        return
    if not isinstance(ours, columns.ndarray):
        assert ours == theirs
        return
    assert (ours.dtype.name, ours.shape) == (theirs.dtype.name, theirs.shape)
    for mine, other in zip(ours.numbers, theirs.ravel().tolist(), strict=True):
        assert type(mine) is type(other)
        assert mine == other or (math.isnan(mine) and math.isnan(other))


def both(act: Callable[..., Any], *values: Any) -> None:
    with np.errstate(all="ignore"):
        theirs = act(np, *(np.array(each) if isinstance(each, list | tuple) else each for each in values))
    same(act(columns, *(columns.array(each) if isinstance(each, list | tuple) else each for each in values)), theirs)


ARITHMETIC: dict[str, Callable[..., Any]] = {
    "plus": lambda n, a, b: a + b,
    "minus": lambda n, a, b: a - b,
    "times": lambda n, a, b: a * b,
    "over": lambda n, a, b: a / b,
    "scaled": lambda n, a, b: 3 * a - b / 7,
    "inverse": lambda n, a, b: 1.0 / a,
    "maximum": lambda n, a, b: n.maximum(a, b),
    "minimum": lambda n, a, b: n.minimum(0.0, b),
    "most of": lambda n, a, b: n.maximum.reduce([a, b, -a]),
    "where": lambda n, a, b: n.where(a < b, a, 1),
    "masks": lambda n, a, b: (a < b) & ~(b >= 3) | (a == b),
    "masked": lambda n, a, b: a[(a > b) & n.isfinite(b)],
    "sums": lambda n, a, b: n.cumsum(a),
    "differences": lambda n, a, b: n.diff(a),
    "stacked": lambda n, a, b: n.stack([a, b]).T,
    "joined": lambda n, a, b: n.concatenate([a, b, [0.0]]),
    "beside": lambda n, a, b: n.concatenate([n.stack([a, b]), n.stack([b, a])], axis=1)[:, n.argsort(a, kind="stable")],
    "like": lambda n, a, b: n.full_like(a, 2) + n.ones_like(a) * n.zeros(len(a)),
    "order": lambda n, a, b: n.argsort(a, kind="stable"),
    "order of two": lambda n, a, b: n.lexsort((a, b)),
    "least": lambda n, a, b: float(a.min()) + int(a.argmin()) + int(n.argmax(b)),
    "those there are": lambda n, a, b: n.unique(a, return_index=True),
    "which of them": lambda n, a, b: n.unique(a, return_inverse=True),
    "mixed sums": lambda n, a, b: (a > 0) * 2.0 + (len(a) - 1),
}


@pytest.mark.parametrize("name", ARITHMETIC)
@given(PAIRS)
def test_columns_are_numpys(name: str, pair: list[tuple[float, ...]]) -> None:
    both(ARITHMETIC[name], *pair)


@given(st.lists(st.integers(-300, 70_000), min_size=1, max_size=12), st.integers(1, 5))
def test_integers_are_numpys(numbers: list[int], by: int) -> None:
    both(lambda n, a: a % by + a // by - a * by, numbers)
    both(lambda n, a: a / by, numbers)
    both(lambda n, a: a.astype(float) * 0.5, numbers)
    both(lambda n, a: n.where(a > 0, a, 0.5), numbers)
    both(lambda n, a: a[n.flatnonzero(a > 3)], numbers)
    both(lambda n, a: n.full((2, 3), -1)[n.array([0, 1]), n.array([2, 0])] + n.arange(-1, 1), numbers)
    for kind in ("uint8", "uint16", "int32"):
        theirs = np.array(numbers).astype(np.dtype(kind).newbyteorder("<"))
        ours = columns.array(numbers).astype(columns._kind(kind).newbyteorder("<"))
        assert ours.tobytes() == theirs.tobytes()
        assert columns.array_equal(ours, columns.array(numbers)) == np.array_equal(theirs, np.array(numbers))


@given(
    FEW,
    st.lists(st.floats(0, 1e9), min_size=1, max_size=6, unique=True),
    st.lists(st.floats(0, 1e9), min_size=6, max_size=6),
)
def test_a_line_through_points_is_numpys(at: list[float], rising: list[float], heights: list[float]) -> None:
    places, heights = sorted(rising), heights[: len(rising)]
    both(lambda n, x: n.interp(x, places, heights, right=math.inf), at)


def test_what_is_put_in_is_there() -> None:
    def act(n: Any) -> Any:
        found = n.full((2, 2, 3), -1)
        found[1, n.array([0, 1, 1]), n.array([2, 0, 1])] = n.arange(3)
        plain = n.zeros(4)
        plain[[0, 2]] = 1
        return n.concatenate([found[1, n.array([0, 1, 1]), n.array([2, -3, 1])], plain])

    same(act(columns), act(np))


def test_what_is_not_there_is_refused() -> None:
    for act in (lambda a: a.sum(), lambda a: ~a, lambda a: a & a, lambda a: (a > 0) + (a > 0)):
        with pytest.raises(NotImplementedError, match="allowed"):
            act(columns.array([0.5, 1.0]))
    with pytest.raises(ValueError, match="shapes"):
        columns.array([1.0, 2.0]) + columns.array([1.0])


def test_documents_of_a_run_are_those_of_the_server() -> None:
    from fourfold.explore.browser.engine import OF_A_RUN

    assert set(OF_A_RUN) == set(KEYS)
