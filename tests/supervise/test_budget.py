"""When a run is started again: as long as it gets on; three failures at one step, or ten without a checkpoint, end it."""

import random

from fourfold.config.schema import FaultsSection
from fourfold.supervise.judge import RestartBudget


def test_a_fault_at_one_step_stops_after_three_attempts_with_the_first_cause() -> None:
    budget = RestartBudget(FaultsSection())
    assert budget.allows(7, 5, "the disk is full")
    assert budget.allows(7, 5, "rank 0 lost its connection")
    assert not budget.allows(7, 5, "rank 0 lost its connection")
    text = budget.why_stopped("rank 0 lost its connection")
    assert text.startswith("the disk is full\n")
    assert "at step 7 3 times" in text
    assert "the last time: rank 0 lost its connection" in text


def test_failures_at_changing_steps_do_not_stop_a_run_that_gets_on() -> None:
    budget, draw = RestartBudget(FaultsSection()), random.Random(0)
    saved = 0
    for _ in range(500):
        step = saved + draw.randrange(40)
        assert budget.allows(step, saved, "killed")
        saved += 20


def test_a_run_that_never_comes_to_its_next_checkpoint_stops() -> None:
    budget = RestartBudget(FaultsSection(restarts=4))
    assert [budget.allows(step, 0, "killed") for step in (3, 9, 4, 8, 5)] == [True] * 4 + [False]
    assert "4 times without a newer checkpoint" in budget.why_stopped("killed")


def test_progress_in_between_starts_the_count_again() -> None:
    budget = RestartBudget(FaultsSection())
    for step in (7, 7, 9, 7, 7, 9):
        assert budget.allows(step, step, "killed")


def test_a_run_that_cannot_start_says_so() -> None:
    budget = RestartBudget(FaultsSection())
    assert [budget.allows(None, 5, "no such device") for _ in range(3)] == [True, True, False]
    assert "failed while it started 3 times" in budget.why_stopped("no such device")


def test_one_attempt_means_no_restart_and_the_message_alone() -> None:
    for faults in (FaultsSection(attempts=1), FaultsSection(restarts=0)):
        budget = RestartBudget(faults)
        assert not budget.allows(3, 0, "it broke")
        assert budget.why_stopped("it broke") == "it broke"
