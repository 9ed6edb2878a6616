"""Which tiles attention visits: all that hold a pair, and of those that a range leaves out none."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fourfold.model.visible import Visible, tiles
from tests.support.attention_by_mask import intervals, seen


@settings(deadline=None)
@given(intervals(40), st.integers(1, 20), st.integers(1, 20))
def test_every_pair_lies_in_a_visited_tile_once(visible: Visible, rows: int, columns: int) -> None:
    mask = seen(visible).numpy()
    by_queries, by_keys = np.zeros(mask.shape, int), np.zeros(mask.shape, int)
    for i in tiles((0, visible.queries), rows, visible.queries):
        for j in tiles(visible.keys_of(i), columns, visible.keys):
            by_queries[slice(*i), slice(*j)] += 1
            assert visible.covers(i, j) == mask[slice(*i), slice(*j)].all()
    for j in tiles((0, visible.keys), columns, visible.keys):
        for i in tiles(visible.queries_of(j), rows, visible.queries):
            by_keys[slice(*i), slice(*j)] += 1
    for visited in (by_queries, by_keys):
        assert visited.max(initial=0) <= 1
        assert visited[mask].all()
    assert visible.pairs == mask.sum()


def test_causal_attention_visits_half_of_the_tiles_and_documents_their_own() -> None:
    def visited(visible: Visible) -> int:
        return sum(1 for i in tiles((0, visible.queries), 16, 256) for _ in tiles(visible.keys_of(i), 16, 256))

    assert visited(Visible.full(256, 256)) == 16 * 16
    assert visited(Visible.causal(256)) == 16 * 17 / 2
    assert visited(Visible.documents([64] * 4)) == 4 * (4 * 5 / 2)
    assert visited(Visible.documents([64] * 4, causal=False)) == 4 * 4 * 4


@pytest.mark.parametrize(("first", "last"), [([1, 0], [2, 2]), ([0, 0], [2, 1]), ([-1, 0], [1, 1]), ([0, 0], [1, 4])])
def test_an_interval_that_moves_back_or_leaves_the_keys_is_refused(first: list[int], last: list[int]) -> None:
    with pytest.raises(ValueError, match="must not decrease and lie in 0 to 3"):
        Visible(np.array(first, np.int32), np.array(last, np.int32), 3)
