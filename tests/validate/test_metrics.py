"""Laws of the metrics, against plain definitions and another library."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from fourfold.validate import Case, Prediction, measure, null_times
from fourfold.validate.metrics import errors, ranking, spearman
from fourfold.validate.null_model import device_work
from tests.support.published import CASES

POSITIVE = st.floats(0.01, 100)


def _timed(seconds: Sequence[float], **changes: object) -> list[Case]:
    """Cases of one cell with these measured step times."""
    base = CASES["sweep:0"]
    return [
        replace(base, id=str(i), measured=replace(base.measured, step_seconds=t, **changes))  # type: ignore[arg-type]
        for i, t in enumerate(seconds)
    ]


def _predicted(seconds: Sequence[float]) -> list[Prediction]:
    return [Prediction(step_seconds=t) for t in seconds]


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
    cases = _timed(measured)
    times, seconds = null_times(cases), np.array(measured)
    other = np.array([device_work(c) for c in cases]) / device_work(cases[0]) * factor
    assert errors(times, seconds).mean <= errors(other, seconds).mean + 1e-9  # type: ignore[operator]


def test_the_null_model_has_one_constant_for_each_device_and_precision() -> None:
    hopper = CASES["sweep:0"]
    others = [
        hopper,
        replace(hopper, device="b200"),
        replace(hopper, precision=replace(hopper.precision, low="fp8")),
    ]
    cases = [replace(c, measured=replace(c.measured, step_seconds=t)) for c, t in zip(others, (4, 2, 3), strict=True)]
    assert null_times(cases) == pytest.approx([4, 2, 3])


def test_the_null_model_knows_no_layouts() -> None:
    split = CASES["vendor:1"]
    whole = replace(split, model=replace(split.model, vocab_size=split.vocab_size), layout=CASES["sweep:1"].layout)
    assert split.model.vocab_size > split.vocab_size, "padded for tp = 4"
    assert device_work(split) == device_work(whole)


def test_the_null_model_has_a_skill_of_one() -> None:
    cases = _timed([1.0, 2.0, 4.0, 7.0])
    found = measure(cases, _predicted(list(null_times(cases))))
    assert found.skill == pytest.approx(1)
    exact = measure(cases, _predicted([1.0, 2.0, 4.0, 7.0]))
    assert (exact.skill, exact.step.bias, exact.ranking.correlation_mean) == (0, 0, pytest.approx(1))


def test_the_healthy_part_is_small_and_near_the_best() -> None:
    cases = _timed([1.0, 2.9, 3.1])
    assert measure(cases, _predicted([1.0, 1.0, 1.0])).healthy.count == 2
    large = [replace(c, num_devices=72) for c in cases]
    assert measure(large, _predicted([1.0, 1.0, 1.0])).healthy.count == 0


def test_memory_and_fit() -> None:
    ran = _timed([1.0, 1.0], memory_bytes=10e9)
    failed = _timed([1.0, 1.0], memory_bytes=10e9, failed=True)
    found = measure(
        [*ran, *failed],
        [
            Prediction(memory_bytes=11e9, fits=True),
            Prediction(memory_bytes=8e9, fits=False),
            Prediction(memory_bytes=90e9, fits=False),
            Prediction(memory_bytes=9e9, fits=True),
        ],
    )
    assert (found.memory.count, found.memory.mean, found.memory.bias) == (2, pytest.approx(0.15), pytest.approx(-0.05))
    assert (found.fit.ran, found.fit.share) == (2, 0.5)
    assert (found.fit.failed, found.fit.failed_predicted_not_to_fit) == (2, 1)


def test_times_that_do_not_count_are_left_out() -> None:
    cases = _timed([1.0, 2.0], time_counts=False)
    assert measure(cases, _predicted([1.0, 2.0])).step.count == 0
