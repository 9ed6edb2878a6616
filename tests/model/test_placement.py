"""Chunks of packed rows dealt out among ranks by the work of their documents."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fourfold.model.context.placement import ENOUGH, ContextShare, balanced, chunk_work, unevenness, zigzag
from tests.model.test_context_attention import cuts


def packed(length: int, rows: int, typical: float, seed: int) -> list[list[int]]:
    """Rows filled with documents one after the other, of lengths spread as those of text and code are (log-normal)."""
    generator, found, rest = random.Random(seed), [], 0
    for _ in range(rows):
        row, left = [], length
        while left:
            rest = rest or int(generator.lognormvariate(0, 1.4) * typical) + 1
            row.append(min(rest, left))
            rest, left = rest - row[-1], left - row[-1]
        found.append(row)
    return found


@given(st.data())
def test_every_rank_has_as_many_tokens_and_every_token_one(data) -> None:
    ring, ulysses = data.draw(st.integers(1, 5)), data.draw(st.sampled_from((1, 2, 3)))
    length = 2 * ring * ulysses * data.draw(st.integers(1, 24))
    lengths = data.draw(cuts(length, 2)) if length > 1 else ((1,),) * 2
    placement = balanced(lengths, ring)
    assert unevenness(placement, lengths) <= unevenness(zigzag(ring), lengths)
    assert placement == balanced([list(row) for row in lengths], ring)
    for row in range(2):
        held = [
            ContextShare(ring, r, ulysses, u).positions(placement, row, length)
            for r in range(ring)
            for u in range(ulysses)
        ]
        assert {len(positions) for positions in held} == {length // (ring * ulysses)}
        assert sorted(p for positions in held for p in positions) == list(range(length))
        for positions in held if ulysses == 1 else ():
            assert all(a < b for a, b in pairwise(positions))


@given(cuts(48, 1), st.sampled_from((1, 2, 4, 8, 16)))
def test_work_is_the_pairs_that_attend(lengths, num_chunks) -> None:
    depth = [i + 1 for size in lengths[0] for i in range(size)]
    chunk = 48 // num_chunks
    assert chunk_work(lengths[0], num_chunks) == [sum(depth[i : i + chunk]) for i in range(0, 48, chunk)]


@pytest.mark.parametrize("typical", [150, 700, 4000, 30000])
@pytest.mark.parametrize("ring", [2, 4, 8])
def test_packed_rows_are_even(ring, typical) -> None:
    """Within 5 % of the mean for every microbatch, where zig-zag is up to several times it."""
    before, after = [], []
    for seed in range(20):
        lengths = packed(8192, 2, typical, seed)
        before.append(unevenness(zigzag(ring), lengths))
        after.append(unevenness(balanced(lengths, ring), lengths))
    assert max(after) <= ENOUGH
    assert max(before) > 1.2


def test_neighbours_stay_together() -> None:
    for seed in range(5):
        lengths = packed(2048, 1, 200, seed)
        for together in (1, 32, 64):
            placement = balanced(lengths, 4, together)
            assert 2048 // placement.num_chunks % together == 0
        assert unevenness(placement, lengths) <= unevenness(zigzag(4), lengths)


def test_one_document_stays_in_zigzag() -> None:
    for ring in (2, 3, 8):
        assert balanced([[48 * ring]] * 3, ring) == zigzag(ring)
