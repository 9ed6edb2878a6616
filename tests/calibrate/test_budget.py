"""The account of a calibration's time: rounds end in time, and the time left is what then passes."""

import pytest

from fourfold.calibrate.budget import MOST_ROUNDS, OVERTIME, TimeAccount


class _Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def _run(
    seconds: float, takes: dict[int, float], start: float = 0.0
) -> tuple[list[int], list[float], list[float], bool]:
    """The numbers of ranks measured where a round of each takes so long; by job the time left as told and as it was; whether any
    was quick."""
    clock = _Clock()
    account = TimeAccount(seconds, sorted(takes), clock)
    clock.now += start
    jobs, told, begun, quick = [], [], [], False
    while (job := account.next_job()) is not None:
        jobs.append(job.ranks)
        told.append(account.left())
        begun.append(clock.now)
        quick |= job.budget.quick
        clock.now += takes[job.ranks]
    assert account.left() == 0.0
    return jobs, told, [clock.now - each for each in begun], quick


def test_rounds_that_take_as_long_as_planned_are_all_made() -> None:
    jobs, told, true, quick = _run(120.0, {1: 10.0, 2: 14.0, 4: 16.0})
    assert jobs == [1, 2, 4] * MOST_ROUNDS
    assert told[0] == pytest.approx(120.0)
    assert told[3:] == pytest.approx(true[3:])
    assert not quick


@pytest.mark.parametrize("slow", [1.4, 2.0, 2.9])
def test_a_round_that_would_end_too_late_is_left_out(slow: float) -> None:
    takes = {1: 10.0 * slow, 2: 14.0 * slow, 4: 16.0 * slow}
    jobs, told, true, _ = _run(120.0, takes)
    assert jobs == [1, 2, 4] * int(OVERTIME * 3 / slow)
    assert true[0] <= OVERTIME * 120.0
    assert told[3:] == pytest.approx(true[3:])


def test_what_was_not_measured_yet_is_expected_to_take_as_long_as_the_others() -> None:
    _, told, true, _ = _run(120.0, {1: 40.0, 2: 40.0, 4: 40.0})
    assert told[1:] == pytest.approx(true[1:])


def test_a_first_round_far_too_slow_is_the_last_and_its_rest_is_quick() -> None:
    jobs, _, true, quick = _run(40.0, {1: 294.0, 2: 20.0})
    assert jobs == [1, 2]
    assert quick
    assert true[0] == 314.0


def test_a_small_budget_is_one_quick_round() -> None:
    jobs, told, _, quick = _run(2.0, {1: 1.0, 2: 1.0})
    assert (jobs, quick, told[0]) == ([1, 2], True, 2.0)


def test_the_start_of_the_processes_is_a_part_of_the_time() -> None:
    jobs, _, true, _ = _run(120.0, {1: 20.0, 2: 20.0}, start=50.0)
    assert jobs == [1, 2]
    assert 50.0 + true[0] <= OVERTIME * 120.0


def test_the_time_left_passes_while_a_round_runs() -> None:
    clock = _Clock()
    account = TimeAccount(90.0, [1], clock)
    account.next_job()
    clock.now += 30.0
    account.next_job()
    assert account.left() == pytest.approx(60.0)
    clock.now += 20.0
    assert account.left() == pytest.approx(40.0)
