"""Checkpoints against failures: Young's and Daly's formulas against the exact optimum, and that against a random experiment."""

import math
import random

import pytest
from scipy.optimize import minimize_scalar

from fourfold.simulate.campaign import (
    Assumptions,
    best_interval,
    campaign,
    daly_interval,
    efficiency,
    spares_for,
    young_interval,
)


@pytest.mark.parametrize("checkpoint", [1.0, 30.0, 300.0, 1800.0])
@pytest.mark.parametrize("mean", [3600.0, 11_000.0, 86_400.0])
def test_the_best_interval_is_the_optimum(mean: float, checkpoint: float) -> None:
    best = best_interval(mean, checkpoint)
    found = minimize_scalar(
        lambda t: -efficiency(t, mean, checkpoint, 600.0),
        bounds=(1e-3, 3 * mean),
        method="bounded",
        options={"xatol": 1e-4},
    )
    assert best == pytest.approx(found.x, rel=1e-3)
    for other in (0.9 * best, 1.1 * best):
        assert efficiency(other, mean, checkpoint, 600.0) < efficiency(best, mean, checkpoint, 600.0)


@pytest.mark.parametrize("ratio", [1e-4, 1e-3, 1e-2, 0.1])
def test_daly_is_nearer_to_it_than_young(ratio: float) -> None:
    """Young's is its limit for short checkpoints; Daly's is within 1 % of it up to a tenth of the time between failures."""
    mean = 10_000.0
    best, young, daly = (f(mean, ratio * mean) for f in (best_interval, young_interval, daly_interval))
    assert abs(daly - best) < abs(young - best)
    assert daly == pytest.approx(best, rel=0.01)
    assert young == pytest.approx(best, rel=2 * math.sqrt(ratio))


def test_daly_s_interval_ends_at_the_mean() -> None:
    assert daly_interval(100.0, 200.0) == daly_interval(100.0, 500.0) == 100.0


def test_efficiency_is_what_an_experiment_gives() -> None:
    """Failures at random times, played through: training that is kept over all time, within the noise."""
    rng = random.Random(1)
    interval, mean, checkpoint, restart = 300.0, 2000.0, 40.0, 120.0
    now = kept = 0.0
    while kept < 3e6:
        fails = rng.expovariate(1 / mean)
        segment = interval + checkpoint
        while fails >= segment:
            fails, now, kept = fails - segment, now + segment, kept + interval
        now += fails
        while (again := rng.expovariate(1 / mean)) < restart:  # a failure during the restart
            now += again
        now += restart
    assert kept / now == pytest.approx(efficiency(interval, mean, checkpoint, restart), rel=0.01)


def test_no_progress_is_no_progress() -> None:
    assert efficiency(1e9, 1.0, 1.0, 1.0) == 0.0
    run = campaign(10**9, 10**6, 1.0, 1000, 8, Assumptions(failure_hours=0.001, checkpoint_seconds=10.0))
    assert run.goodput == 0.0
    assert run.seconds == math.inf


def test_spares_are_a_quantile_of_poisson() -> None:
    assert spares_for(0.0) == 0
    for mean_out in (0.1, 1.0, 5.0, 100.0, 800.0):
        count = spares_for(mean_out)
        if mean_out <= 100:
            reached = sum(math.exp(-mean_out + k * math.log(mean_out) - math.lgamma(k + 1)) for k in range(count + 1))
            before = reached - math.exp(-mean_out + count * math.log(mean_out) - math.lgamma(count + 1))
            assert before < 0.99 <= reached
        assert count > mean_out


def test_a_campaign_adds_up() -> None:
    """Llama 3's own: one interruption in 50,676 device hours, 16,384 devices: some 419 in 54 days."""
    given = Assumptions(50_676.0, 2.4, dollars_per_device_hour=2.0, watts_per_device=1000.0)
    run = campaign(15_600_000_000_000, 2048 * 8192, 6.5, 16_384, 8, given)
    assert run.steps == math.ceil(15.6e12 / (2048 * 8192))
    assert run.failures is not None
    assert 54 * 86_400 / run.failures.mean_seconds == pytest.approx(419, abs=1)
    assert run.seconds == pytest.approx(run.training_seconds / run.goodput)
    assert 0.9 < run.goodput < 1  # "a higher than 90 % effective training time" (section 3.3.4)
    assert run.failures.without_spares.efficiency < run.failures.with_spares.efficiency
    assert run.joules == pytest.approx(1000.0 * 16_384 * run.seconds)
    devices = 16_384 + run.failures.with_spares.spare_devices
    assert run.dollars == pytest.approx(2.0 * devices * run.seconds / 3600)
    assert run.failures.checkpoint_steps == round(run.failures.best_seconds / 6.5)


def test_without_a_rate_nothing_fails() -> None:
    run = campaign(1000, 10, 2.0, 4, 8, Assumptions(None, 5.0))
    assert (run.steps, run.seconds, run.goodput, run.failures, run.dollars, run.joules) == (
        100,
        200.0,
        1.0,
        None,
        None,
        None,
    )


@pytest.mark.parametrize(("rented", "paid"), [(0, 64), (64, 64), (512, 512)])
def test_what_is_rented_is_paid_for(rented: int, paid: int) -> None:
    """Devices that idle cost as much as those that train."""
    price = Assumptions(failure_hours=None, checkpoint_seconds=10.0, dollars_per_device_hour=2.0)
    run = campaign(10**9, 10**6, 3.6, 64, 8, price, rented)
    assert (run.device_hours, run.paid) == (64.0, paid)
    assert run.dollars == run.training_dollars == 2.0 * paid


def test_idle_devices_stand_by_as_spares() -> None:
    failing = Assumptions(failure_hours=500.0, checkpoint_seconds=10.0, dollars_per_device_hour=2.0)
    alone, idle = (campaign(10**12, 10**6, 3.6, 64, 8, failing, rented) for rented in (0, 512))
    assert alone.failures is not None
    assert alone.failures.with_spares.spare_devices
    assert (alone.paid, idle.paid) == (64 + alone.failures.with_spares.spare_devices, 512)
