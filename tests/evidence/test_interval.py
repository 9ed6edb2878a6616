"""Intervals: 1 is inside, more knowledge is narrower, what nobody measured has none."""

from dataclasses import replace

import pytest

from fourfold.cost.prices import Prices
from fourfold.evidence import interval
from fourfold.evidence.interval import evidence_table, known
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
        assert (each.share, each.sources > 20) == (0.8, True)
        assert each.around(10.0) == (pytest.approx(10 * each.low), pytest.approx(10 * each.high))
    assert named.high / named.low < unnamed.high / unnamed.low


def test_what_is_known_of_software_and_device() -> None:
    table = {"software": ["megatron"], "devices": ["h100-sxm"]}
    assert known("megatron", "h100-sxm", table) == "named_profiled"
    assert known("megatron-2031", "h100-sxm", table) == "named_profiled", "a year is its family's"
    assert known("fourfold", "tpu-v9", table) == "unnamed_unprofiled"


def test_what_no_published_run_informs_is_not_known() -> None:
    assert "fourfold" not in evidence_table()["software"]
    assert "unknown" not in evidence_table()["software"]


def test_a_machine_that_was_measured_has_no_interval() -> None:
    own = prices(None)
    measured = replace(own, cluster=replace(own.cluster, calibration={"version": 1}))
    assert interval("time", own) is not None
    assert interval("time", measured) is None
