"""Intervals from ratios of measured to predicted: what they leave outside, what a source weighs, what is counted as covered."""

import numpy as np
import pytest

from fit_intervals import QUANTITIES, SHARE, STATES, Ratio, coverage, ends, table_of, weighed

DRAW = np.random.default_rng(5)


def made(spread: float, sources: int = 60, runs: int = 12) -> list[Ratio]:
    return [
        Ratio(quantity, state, f"file{source}", float(np.exp(DRAW.normal(0, spread))))
        for quantity in QUANTITIES
        for state in STATES
        for source in range(sources)
        for _ in range(runs)
    ]


def test_the_ends_leave_half_of_the_rest_on_either_side() -> None:
    values = np.exp(DRAW.normal(0, 0.2, 20_000))
    low, high = ends(values, np.ones(len(values)))
    assert (values < low).mean() == pytest.approx((1 - SHARE) / 2, abs=0.01)
    assert (values > high).mean() == pytest.approx((1 - SHARE) / 2, abs=0.01)


def test_the_prediction_is_always_inside() -> None:
    assert ends(np.array([1.2, 1.3, 1.4]), np.ones(3))[0] == 1.0
    assert ends(np.array([0.7, 0.8]), np.ones(2))[1] == 1.0


def test_a_source_weighs_by_the_square_root_of_its_runs() -> None:
    weights = weighed(["many"] * 16 + ["one"])
    assert weights[:16].sum() == pytest.approx(4 * weights[16])


def test_sources_alike_are_covered_as_often_as_the_share() -> None:
    for shares in coverage(made(0.3)).values():
        for share in shares.values():
            assert share == pytest.approx(SHARE, abs=0.06)


def test_a_source_unlike_all_others_is_not_covered_by_them() -> None:
    found = made(0.01, sources=3)
    far = [Ratio(each.quantity, each.state, "far", 5.0) for each in found if each.file == "file0"]
    shares = coverage([each for each in found if each.file != "file0"] + far)
    assert max(share for each in shares.values() for share in each.values()) < SHARE


def test_the_table_counts_runs_and_sources() -> None:
    entry = table_of(made(0.2, sources=4, runs=5))["time"]["named_profiled"]
    assert (entry["runs"], entry["sources"]) == (20, 4)
    assert entry["low"] < 1 < entry["high"]
