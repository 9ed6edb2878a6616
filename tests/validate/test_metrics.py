"""Laws of the metrics, against plain definitions and another library."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from fourfold.validate import Pair, measure, null_times
from fourfold.validate.metrics import errors, ranking, spearman

POSITIVE = st.floats(0.01, 100)


def _timed(seconds: Sequence[float], predicted: Sequence[float] | None = None, **changes: object) -> list[Pair]:
    """Runs of one group with these measured step times."""
    pair = Pair(group="cell", null_group=("h100-sxm", "bf16"), device_flops=2e15)
    return [
        replace(pair, measured_seconds=t, predicted_seconds=predicted[i] if predicted else None, **changes)  # type: ignore[arg-type]
        for i, t in enumerate(seconds)
    ]


def test_errors_by_hand() -> None:
    found = errors(np.array([1.1, 0.8, 3.0]), np.array([1.0, 1.0, 2.0]))
    assert (found.count, found.median) == (3, pytest.approx(0.2))
    assert found.mean == pytest.approx((0.1 + 0.2 + 0.5) / 3)
    assert found.bias == pytest.approx((0.1 - 0.2 + 0.5) / 3)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=3, max_size=12))
def test_spearman_is_scipys_with_ties(pairs: list[tuple[int, int]]) -> None:
    a, b = np.array(pairs, dtype=float).T
    assume(np.ptp(a) > 0 and np.ptp(b) > 0)
    assert spearman(a, b) == pytest.approx(stats.spearmanr(a, b).statistic)


def test_a_constant_prediction_orders_nothing() -> None:
    assert spearman(np.ones(4), np.arange(4.0)) == 0
    assert spearman(np.arange(4.0), np.ones(4)) is None


@given(st.lists(st.tuples(POSITIVE, POSITIVE), min_size=3, max_size=9))
def test_regret_is_what_the_choice_costs(pairs: list[tuple[float, float]]) -> None:
    predicted, measured = np.array(pairs).T
    assume(len(set(predicted)) == len(predicted))
    found = ranking(["cell"] * len(pairs), predicted, measured)
    assert found.regret_max == pytest.approx(measured[predicted.argmin()] / measured.min() - 1)
    assert found.regret_max is not None
    assert found.regret_max >= 0


def test_a_perfect_order_has_no_regret_however_wrong_the_times() -> None:
    measured = np.array([3.0, 1.0, 2.0, 9.0])
    found = ranking(["a"] * 4, measured * 10, measured)
    assert (found.correlation_mean, found.regret_mean, found.groups) == (pytest.approx(1), 0, 1)


def test_groups_below_three_do_not_count() -> None:
    assert ranking(["a", "a", "b", "b"], np.ones(4), np.ones(4)).groups == 0


def test_a_layout_predicted_not_to_fit_is_not_chosen() -> None:
    predicted, measured = np.array([1.0, 2.0, 3.0]), np.array([5.0, 1.0, 2.0])
    assert ranking(["a"] * 3, predicted, measured).regret_mean == 4
    assert ranking(["a"] * 3, predicted, measured, np.array([False, True, True])).regret_mean == 0
    assert ranking(["a"] * 3, predicted, measured, np.zeros(3)).regret_mean == 4


@given(st.lists(POSITIVE, min_size=1, max_size=15), POSITIVE)
def test_no_other_constant_beats_the_null_model(measured: list[float], factor: float) -> None:
    pairs = _timed(measured)
    times, seconds = null_times(pairs), np.array(measured)
    other = np.array([p.device_flops for p in pairs]) / pairs[0].device_flops * factor
    assert errors(times, seconds).mean <= errors(other, seconds).mean + 1e-9  # type: ignore[operator]


def test_the_null_model_has_one_constant_for_each_device_and_precision() -> None:
    groups = (("h100-sxm", "bf16"), ("b200", "bf16"), ("h100-sxm", "fp8"))
    pairs = [replace(p, null_group=group) for p, group in zip(_timed([4, 2, 3]), groups, strict=True)]
    assert null_times(pairs) == pytest.approx([4, 2, 3])


def test_the_null_model_has_a_skill_of_one() -> None:
    measured = [1.0, 2.0, 4.0, 7.0]
    found = measure(_timed(measured, list(null_times(_timed(measured)))))
    assert found.skill == pytest.approx(1)
    exact = measure(_timed(measured, measured))
    assert (exact.skill, exact.step.bias, exact.ranking.correlation_mean) == (0, 0, pytest.approx(1))


def test_memory_and_fit() -> None:
    ran = _timed([1.0, 1.0], measured_bytes=10e9)
    failed = _timed([1.0, 1.0], measured_bytes=10e9, failed=True)
    held = ((11e9, True), (8e9, False), (90e9, False), (9e9, True))
    pairs = [replace(p, predicted_bytes=size, fits=fits) for p, (size, fits) in zip([*ran, *failed], held, strict=True)]
    found = measure(pairs)
    assert (found.memory.count, found.memory.mean, found.memory.bias) == (2, pytest.approx(0.15), pytest.approx(-0.05))
    assert (found.fit.ran, found.fit.share) == (2, 0.5)
    assert (found.fit.failed, found.fit.failed_predicted_not_to_fit) == (2, 1)


def test_runs_without_both_times_are_left_out() -> None:
    pairs = _timed([1.0, 2.0], [1.0, 2.0])
    half = [replace(pairs[0], measured_seconds=None), replace(pairs[1], predicted_seconds=None)]
    assert measure(half).step.count == 0
    assert measure([*half, *pairs]).step.count == 2
