"""The probability of running out of memory: it grows with what is predicted, and what ran was mostly thought to."""

from dataclasses import replace

import numpy as np
import pytest

from fourfold.cost.prices import Prices
from fourfold.evidence import published_runs
from fourfold.evidence.out_of_memory import OutOfMemory, out_of_memory
from fourfold.hardware import load_device
from fourfold.simulate.run_prices import software_named
from tests.support.programs import make_spec
from tests.support.simulated import real_prices


def prices(software: str | None) -> Prices:
    return replace(real_prices(make_spec()), software=software_named(software))


@pytest.mark.parametrize("software", ["megatron", None])
def test_more_memory_is_less_sure(software: str | None) -> None:
    risk = out_of_memory(prices(software))
    assert risk is not None
    shares = np.linspace(0.2, 3, 300)
    chances = risk.probability(shares)
    assert (np.diff(chances) > 0).all()
    assert chances[-1] > 0.9
    assert risk.probability(np.array([1e-3]))[0] == pytest.approx(risk.least)
    assert risk.probability(risk.half) == pytest.approx((1 + risk.least) / 2)
    for chance in (0.05, 0.1, 0.5, 0.95):
        assert risk.probability(risk.share(chance)) == pytest.approx(chance)


def test_beyond_its_half_a_curve_may_rise_by_another_steepness() -> None:
    flat = OutOfMemory(0.0, 1.0, 10.0, 100, 10, 5, steepness_above=2.0)
    steep = replace(flat, steepness_above=None)
    assert flat.probability(0.9) == steep.probability(0.9)
    assert flat.probability(2.0) == pytest.approx(0.8)
    assert steep.probability(2.0) > 0.99
    assert flat.share(0.8) == pytest.approx(2.0)


def test_beyond_all_that_ran_a_run_is_surer_to_fail_than_by_the_curve() -> None:
    curve = OutOfMemory(0.0, 1.0, 4.0, 100, 10, 5, steepness_above=1.0)
    risk = replace(curve, ran_up_to=1.5, failed_beyond=8)
    assert risk.probability(1.5) == curve.probability(1.5) == pytest.approx(0.6)
    assert risk.probability(1.5001) == pytest.approx(0.9, abs=1e-3), "one in 8 + 2 would run"
    assert risk.probability(3.0) == pytest.approx(1 - 0.25 * 0.25)
    assert risk.share(0.7) == risk.share(0.89) == 1.5
    assert risk.probability(risk.share(0.95)) == pytest.approx(0.95)


def test_what_is_known_of_the_software_makes_it_surer() -> None:
    named, unnamed = (out_of_memory(prices(software)) for software in ("megatron", None))
    assert named is not None
    assert unnamed is not None
    assert named.probability(0.8) < unnamed.probability(0.8)
    for each in (named, unnamed):
        assert each.runs > each.failed > 50
        assert each.sources > 20


def test_a_machine_that_was_measured_has_none() -> None:
    own = prices(None)
    assert out_of_memory(replace(own, cluster=replace(own.cluster, calibration={"version": 1}))) is None


def test_most_runs_that_ran_were_likely_to() -> None:
    """The rule refuses none; as a limit at one in ten it would refuse fewer than an interval's upper end of 1.6 would."""
    risk = out_of_memory(prices("megatron"))
    assert risk is not None
    runs = [run for run in published_runs() if run.predicted_memory_bytes is not None]
    shares = np.array([run.predicted_memory_bytes / load_device(run.shape.device).memory_bytes for run in runs])
    chances = risk.probability(shares)
    assert len(runs) > 300
    assert chances.mean() < 0.2
    assert (chances > 0.1).mean() < 0.35 < (1.6 * shares > 1).mean()
