"""Random access to a shuffle and to a blend: bijections, exact proportions, pure functions of the sample's number."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fourfold.data.blend import Blend, Permutation
from fourfold.data.indexed import TokenStream, all_tokens, complement
from fourfold.data.weights import largest_remainder


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 5000), st.integers(0, 2**63 - 1), st.integers(0, 10**6))
def test_a_permutation_is_a_bijection(size: int, seed: int, epoch: int) -> None:
    image = Permutation(size, seed, 0, epoch)(np.arange(size))
    assert np.array_equal(np.sort(image), np.arange(size))


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 2**62), st.lists(st.integers(0, 2**62), min_size=1, max_size=20))
def test_large_domains_stay_in_range_and_differ(size: int, indices: list[int]) -> None:
    distinct = np.array(sorted({index % size for index in indices}), np.int64)
    image = Permutation(size, 1)(distinct)
    assert image.min() >= 0
    assert image.max() < size
    assert len(set(image.tolist())) == len(distinct)


def test_a_place_does_not_depend_on_its_company() -> None:
    permutation = Permutation(1000, 7)
    together = permutation(np.arange(1000))
    assert all(permutation(np.array([index]))[0] == together[index] for index in range(0, 1000, 37))


def test_numpy_integers_are_keys_like_any_other() -> None:
    assert Permutation(99, np.int64(3), 0)(np.arange(99)).tolist() == Permutation(99, 3, 0)(np.arange(99)).tolist()


def test_keys_give_unrelated_orders() -> None:
    orders = [
        Permutation(10_000, *key)(np.arange(10_000)) for key in ((1, 0, 0), (1, 0, 1), (1, 1, 0), (2, 0, 0), (1, 0))
    ]
    for first in range(len(orders)):
        for second in range(first):
            # Two unrelated orders agree in one place on average.
            assert (orders[first] == orders[second]).sum() < 10


def test_a_shuffle_is_spread_evenly() -> None:
    image = Permutation(4096 * 3 // 2, 3)(np.arange(4096 * 3 // 2))
    counts, _, _ = np.histogram2d(np.arange(len(image)), image, bins=8)
    expected = len(image) / 64
    # Chi-squared with 49 degrees of freedom: the 99.99 % point is 94.
    assert ((counts - expected) ** 2 / expected).sum() < 94
    assert (np.diff(image) == 1).sum() < 10


@pytest.mark.parametrize("size", [0, -1, 2**62 + 1])
def test_impossible_sizes_are_refused(size: int) -> None:
    with pytest.raises(ValueError, match="from 1 to 2"):
        Permutation(size, 0)


MOST_OFF = 1.5
"""Samples, of parts that are joined a few times: half for each time, less the smaller a side is."""
weights_strategy = st.lists(st.floats(0.01, 100), min_size=1, max_size=6)


@settings(max_examples=200, deadline=None)
@given(weights_strategy, st.integers(0, 10_000))
def test_largest_remainder_gives_everything_within_one(weights: list[float], total: int) -> None:
    counts = largest_remainder(weights, total)
    assert sum(counts) == total
    assert all(
        abs(count - weight / sum(weights) * total) < 1 + 1e-4 for count, weight in zip(counts, weights, strict=True)
    )


@settings(max_examples=60, deadline=None)
@given(weights_strategy, st.integers(1, 4000))
def test_each_part_has_its_share_after_every_sample(weights: list[float], samples: int) -> None:
    """And it is drawn from in order, nothing left out and nothing twice."""
    parts, indices = Blend([(0, weights)]).locate(np.arange(samples))
    for part, weight in enumerate(weights):
        drawn = np.cumsum(parts == part)
        assert np.abs(drawn - weight / sum(weights) * np.arange(1, samples + 1)).max() < MOST_OFF
        assert np.array_equal(indices[parts == part], np.arange(drawn[-1]))


@pytest.mark.parametrize("weights", [[0.7, 0.2985, 0.0015], [0.9985, 0.0015], [1, 1e-4], [3, 3, 3], [5.0]], ids=str)
@pytest.mark.parametrize("begin", [0, 10**6, 10**12])
def test_shares_are_exact_wherever_a_run_stands(weights: list[float], begin: int) -> None:
    samples = begin + np.arange(10_000)
    parts, indices = Blend([(0, weights)]).locate(samples)
    for part, weight in enumerate(weights):
        own, share = indices[parts == part], weight / sum(weights)
        if len(own):
            assert np.array_equal(own, np.arange(own[0], own[-1] + 1))
            assert abs(own[0] - share * samples[parts == part][0]) < MOST_OFF


def test_small_weights_are_seen() -> None:
    assert Counter(Blend([(0, [10_000, 1])]).locate(np.arange(1 << 15))[0].tolist())[1] > 0


def test_any_samples_in_any_order_are_what_they_are_among_all() -> None:
    blend = Blend([(0, [0.5, 0.3, 0.2])])
    every = np.stack(blend.locate(np.arange(60)), 1)
    picked = np.array([49, 2, 2, 15])
    assert np.array_equal(np.stack(blend.locate(picked), 1), every[picked])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 60), max_size=12, unique=True), st.integers(0, 70), st.integers(0, 70))
def test_a_stream_reads_as_the_concatenation_of_its_ranges(edges: list[int], start: int, count: int) -> None:
    tokens = np.arange(60, dtype=np.uint16) * 3
    edges = sorted(edges)[: len(edges) // 2 * 2]
    validation = np.array(edges, np.int64).reshape(-1, 2)
    inside = np.zeros(60, bool)
    for low, high in validation:
        inside[low:high] = True
    for ranges, expected in ((validation, tokens[inside]), (complement(validation, 60), tokens[~inside])):
        stream = TokenStream(tokens, ranges)
        assert len(stream) == len(expected)
        assert stream.read(start, count).tolist() == expected[start : start + count].tolist()
        assert stream.read(start, count).dtype == np.int64
        assert [token for chunk in stream.chunks() for token in chunk.tolist()] == expected.tolist()
    assert all_tokens(tokens).read(0, 60).tolist() == tokens.tolist()
    assert len(all_tokens(tokens[:0])) == 0
