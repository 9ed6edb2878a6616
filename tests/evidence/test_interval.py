"""Intervals: 1 is inside, more knowledge is narrower, what nobody measured has none."""

from dataclasses import replace

import pytest

from fourfold.cost.prices import Prices
from fourfold.evidence import interval
from fourfold.evidence.interval import evidence_table, known, nearest_interval
from fourfold.simulate.run_prices import software_named
from tests.support.programs import make_spec
from tests.support.simulated import real_prices


def prices(software: str | None) -> Prices:
    return replace(real_prices(make_spec()), software=software_named(software))


@pytest.mark.parametrize("quantity", ["time", "memory"])
def test_a_prediction_lies_in_its_interval_and_what_is_known_narrows_it(quantity) -> None:
    named, unnamed = (interval(quantity, prices(software)) for software in ("megatron", None))
    for each in (named, unnamed):
        assert each.low <= 1 <= each.high
        assert (each.share, each.sources > 5) == (0.8, True)
        assert each.around(10.0) == (pytest.approx(10 * each.low), pytest.approx(10 * each.high))
    assert named.high / named.low < unnamed.high / unnamed.low


def test_what_is_known_of_software_and_device() -> None:
    table = {"software": ["megatron"], "devices": ["h100-sxm"]}
    assert known("megatron", "h100-sxm", table) == "named_profiled"
    assert known("megatron-2031", "h100-sxm", table) == "named_profiled", "a year is its family's"
    assert known("megatron-fork-2024", "h100-sxm", table) == "named_profiled", "so is what its name begins with"
    assert known("megatron", "h20", table) == "named_unprofiled", "no run of its own, whatever it inherits"
    assert known("fourfold", "tpu-v9", table) == "unnamed_unprofiled"


def test_a_pair_has_its_own_interval_then_its_family_then_all() -> None:
    table = {"software": ["megatron", "nemo"], "devices": ["h100-sxm", "b200"]}
    pair, family, anything, other = ({"low": low} for low in (0.9, 0.8, 0.7, 0.6))
    intervals = {
        "pairs": {"megatron": {"h100-sxm": pair}},
        "families": {"megatron": family},
        "named_profiled": anything,
        "named_unprofiled": other,
    }
    assert nearest_interval(intervals, "megatron-2025", "h100-sxm", table) is pair
    assert nearest_interval(intervals, "megatron-fork-2024", "h100-sxm", table) is pair
    assert nearest_interval(intervals, "megatron-2025", "b200", table) is family
    assert nearest_interval(intervals, "nemo-2025", "b200", table) is anything
    assert nearest_interval(intervals, "megatron-2025", "h20", table) is other
    shipped = evidence_table()["time"]
    assert sum(map(len, shipped["pairs"].values())) > 20
    assert all(each["low"] <= 1 <= each["high"] for mine in shipped["pairs"].values() for each in mine.values())


def test_what_no_published_run_informs_is_not_known() -> None:
    assert "fourfold" not in evidence_table()["software"]
    assert "unknown" not in evidence_table()["software"]


def test_a_machine_that_was_measured_has_no_interval() -> None:
    own = prices(None)
    measured = replace(own, cluster=replace(own.cluster, calibration={"version": 1}))
    assert interval("time", own) is not None
    assert interval("time", measured) is None
