"""Intervals by software and device: what a pair's own runs say, what others do, and what left-out runs they cover."""

import numpy as np
import pytest

from fit_intervals import SHARE
from fit_pairs import OTHERS, OUT, PairRatio, covered, names_in, pair_ends, pair_table

DRAW = np.random.default_rng(5)
LOOSE = {"low": 0.1, "high": 10.0}
BY_STATE = {f"{names}_{devices}": LOOSE for names in ("named", "unnamed") for devices in ("profiled", "unprofiled")}


def of_pairs(spreads: dict[tuple[str, str], float], sources: int = 30, runs: int = 4) -> list[PairRatio]:
    return [
        PairRatio(float(np.exp(DRAW.normal(0, spread))), f"{family}{device}{source}", family, device)
        for (family, device), spread in spreads.items()
        for source in range(sources)
        for _ in range(runs)
    ]


def test_a_pair_that_is_predicted_well_has_a_narrower_interval() -> None:
    found = of_pairs({("good", "x"): 0.05, ("bad", "x"): 0.5}, sources=200)
    (good_low, good_high), (bad_low, bad_high) = (pair_ends(found, family, "x") for family in ("good", "bad"))
    assert bad_low < good_low < 1 < good_high < bad_high
    few = of_pairs({("good", "x"): 0.05}, sources=2) + of_pairs({("bad", "x"): 0.5})
    assert pair_ends(few, "good", "x")[1] > good_high, "two sources say little beside as much of others"
    assert OTHERS > 2


@pytest.mark.parametrize("out", OUT)
def test_what_is_left_out_of_pairs_alike_is_covered_as_often_as_the_share(out: str) -> None:
    found = of_pairs({("a", "x"): 0.2, ("a", "y"): 0.2, ("b", "x"): 0.2, ("b", "y"): 0.2})
    assert np.mean(covered(found, OUT[out], BY_STATE)) == pytest.approx(SHARE, abs=0.06)


def test_a_pair_unlike_its_family_is_covered_by_itself_alone() -> None:
    found = of_pairs({("a", "x"): 0.02, ("a", "y"): 0.02, ("b", "y"): 0.02}, sources=60)
    far = [PairRatio(5 * each.value, each.file, "a", "z") for each in of_pairs({("a", "z"): 0.02}, sources=60)]
    far += [PairRatio(1.0, "another", "b", "z")]
    inside = {out: np.mean(covered(found + far, OUT[out], BY_STATE)[-len(far) :]) for out in OUT}
    assert inside["sources"] > 0.7
    assert inside["pairs"] < 0.1


def test_a_device_that_nothing_else_tells_of_has_what_is_known_of_no_device() -> None:
    found = of_pairs({("a", "x"): 0.02, ("a", "y"): 0.02}, sources=20)
    far = [PairRatio(5.0, "far", "a", "z")]
    assert covered(found + far, OUT["pairs"], BY_STATE)[-1], "the interval of software on a device of no run holds it"
    assert not covered(found + far, OUT["pairs"], {**BY_STATE, "named_unprofiled": {"low": 0.9, "high": 1.1}})[-1]


def test_the_table_has_pairs_of_several_sources_and_families() -> None:
    found = of_pairs({("a", "x"): 0.2}, sources=3) + of_pairs({("a", "y"): 0.2}, sources=1)
    table = pair_table(found)
    assert table["pairs"].keys() == {"a"} == table["families"].keys()
    assert table["pairs"]["a"].keys() == {"x"}
    assert (table["families"]["a"]["sources"], table["pairs"]["a"]["x"]["runs"]) == (4, 12)
    assert names_in(found) == {"devices": ["x", "y"], "software": ["a"]}
