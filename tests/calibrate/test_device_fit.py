"""A device's constants from samples: those of a synthetic device are found again, and a disturbed sample does not decide."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import least_squares

from fourfold.calibrate.device import GPU, PROCESSOR, Shapes
from fourfold.calibrate.findings import LOW_MATMULS, MATMULS, PASSES, Sample
from fourfold.calibrate.one_device import CONSTANTS, LOW, OUTLIER, START, _errors, _spread, fit_device
from fourfold.cost.fitted import fitted
from fourfold.hardware import Device
from fourfold.model.work import Gemm, Work
from tests.calibrate.synthetic_device import A_CORE, A_GPU, TRUE, run_of, samples_of


@pytest.mark.parametrize(("device", "dtype", "shapes"), [(A_GPU, "bf16", GPU), (A_CORE, "fp32", PROCESSOR)])
def test_the_constants_of_a_synthetic_device_are_found_again(device: Device, dtype: str, shapes: Shapes) -> None:
    run = run_of(dtype)
    found = fit_device(replace(device, kernels={}), run, samples_of(device, run, shapes))
    assert all(each.median < 0.02 and each.nine_in_ten < 0.06 for each in found.residuals), found
    for name in ("gemm_share", "attention_share", "attention_backward_share", "memory_share", "launch_seconds"):
        assert found.constants[name] == pytest.approx(device.kernels[name], rel=0.06), name


def test_samples_that_something_disturbed_do_not_decide() -> None:
    run, chance = run_of("bf16"), random.Random(1)
    samples = [
        each._replace(seconds=each.seconds * chance.uniform(0.96, 1.04) * (20.0 if index % 8 == 0 else 1.0))
        for index, each in enumerate(samples_of(A_GPU, run, GPU))
    ]
    found = fit_device(replace(A_GPU, kernels={}), run, samples)
    assert found.constants["gemm_share"] == pytest.approx(TRUE["gemm_share"], rel=0.08)
    assert found.constants["memory_share"] == pytest.approx(TRUE["memory_share"], rel=0.1)
    assert {each.family for each in found.residuals} == {MATMULS, "attention", "operators", "launches"}


def test_low_precision_matmuls_move_their_own_share_alone() -> None:
    run = run_of("bf16")
    plain = samples_of(A_GPU, run, GPU)
    bare = fit_device(replace(A_GPU, kernels={}), run, plain)
    assert "low_share" not in bare.constants
    large = [Gemm(8192, 5120, inner) for inner in (2048, 5120, 14336)]
    kernels = fitted().kernels("mine", fitted().software("fourfold"), TRUE)
    low = []
    for gemm in large:
        share = kernels.gemm_share * gemm.inner / (gemm.inner + 200.0) * 2560 / (2560 + 0.4 * 132)
        low.append(Sample(LOW_MATMULS, Work((gemm,)), gemm.flops / (1400e12 * share * 0.75) + 2.2e-6))
    found = fit_device(replace(A_GPU, kernels={}), run, [*plain, *low])
    assert found.constants["low_share"] == pytest.approx(0.75, rel=0.05)
    assert found.constants["gemm_share"] == pytest.approx(bare.constants["gemm_share"], rel=1e-3)


def test_where_little_was_measured_constants_stay_near_those_of_an_unknown_device() -> None:
    run, prior = run_of("bf16"), fitted().device("default")
    one = [each for each in samples_of(A_GPU, run, GPU) if each.family == "launches"]
    found = fit_device(replace(A_GPU, kernels={}), run, one)
    assert found.constants["launch_seconds"] == pytest.approx(2.2e-6, rel=0.05)
    assert found.constants["attention_share"] == pytest.approx(prior.attention_share, rel=1e-3)


def test_passes_over_segments_weigh_more_than_single_kernels() -> None:
    run = run_of("bf16")
    samples = samples_of(A_GPU, run, GPU)
    work = Work((Gemm(8192, 5120, 5120),))
    seconds = next(each.seconds for each in samples if each.family == MATMULS and each.work.flops == work.flops)
    slow = [Sample(PASSES, work, 1.2 * seconds)] * 20
    found = fit_device(replace(A_GPU, kernels={}), run, [*samples, *slow])
    assert found.constants["gemm_share"] < 0.95 * TRUE["gemm_share"]


def test_the_fit_is_the_minimum_that_scipy_finds() -> None:
    """Errors weigh as in Cauchy's distribution, departures from an unknown device's constants as in a normal one."""
    run, chance, prior = run_of("bf16"), random.Random(1), fitted().device("default")
    samples = [
        each._replace(seconds=each.seconds * chance.uniform(0.96, 1.04) * (20.0 if index % 8 == 0 else 1.0))
        for index, each in enumerate(samples_of(A_GPU, run, GPU))
    ]
    bare, start = (
        replace(A_GPU, kernels={}),
        {each.name: getattr(prior, each.name) for each in (*CONSTANTS, *LOW)} | START,
    )
    spreads, number = [_spread(each) for each in samples], len(samples)

    def constants(departures: NDArray[np.float64]) -> dict[str, float]:
        moved = zip(CONSTANTS, departures, strict=True)
        return start | {each.name: each.moved(start[each.name], by) for each, by in moved}

    def residuals(departures: NDArray[np.float64]) -> NDArray[np.float64]:
        held = [by / each.spread for each, by in zip(CONSTANTS, departures, strict=True)]
        return np.array([*np.divide(_errors(constants(departures), samples, bare, run), spreads), *held])

    def weighed(squares: NDArray[np.float64]) -> NDArray[np.float64]:
        """Values, slopes and curvatures [3, residuals]."""
        of_errors = np.arange(len(squares)) < number
        share = 1 / (1 + squares / OUTLIER**2)
        rows = -(OUTLIER**2) * np.log(share), share, -(share**2) / OUTLIER**2
        plain = squares, np.ones_like(squares), np.zeros_like(squares)
        return np.array([np.where(of_errors, *pair) for pair in zip(rows, plain, strict=True)])

    limits = [
        [math.log(end / start[each.name]) for each in CONSTANTS for end in (each.least, each.most)][side::2]
        for side in (0, 1)
    ]
    best = least_squares(residuals, np.zeros(len(CONSTANTS)), loss=weighed, bounds=limits, diff_step=1e-3)
    found = fit_device(bare, run, samples).constants
    for each in CONSTANTS:
        assert found[each.name] == pytest.approx(constants(best.x)[each.name], rel=5e-3), each.name
