"""Goodput by cause, worked by hand, and Young's and the best interval."""

import pytest

from fourfold.report.format_campaign import goodput_lines
from fourfold.results.goodput import goodput
from fourfold.simulate.campaign import efficiency, young_interval


def event(time: float, kind: str, **values) -> dict:
    return {"time": time, "event": kind, **values}


EVENTS = [
    event(100, "launch"),
    event(105, "start", step=0),
    event(116, "save", step=10, seconds=1.0),
    event(120, "failure", step=14, rank=1, cause="killed"),  # 10 s of steps, 1 s of saving, 4 s lost
    event(120, "restart", step=10, generation=1),
    event(121, "resume", step=10),
    event(130, "failure", step=12, rank=0, cause="hung", stood_still_seconds=5.0),
    event(130, "restart", step=10, generation=2),
    event(131, "resume", step=10),
    event(142, "evaluate", step=20, seconds=1.0),
    event(143, "save", step=20, seconds=1.0),
    event(145, "finish", step=20),
]
ROWS = [{"step": step, "step_seconds": 1.0} for step in range(20)]


def test_every_second_has_one_cause() -> None:
    found = goodput(EVENTS, ROWS, now=1e9)
    assert found.total_seconds == 45
    assert found.kept_seconds == 20
    assert found.seconds == {
        "starting": 7.0,
        "saving": 2.0,
        "evaluating": 1.0,
        "standing still": 5.0,
        "lost steps": 8.0,
        "other": 2.0,
    }
    assert found.kept_seconds + sum(found.seconds.values()) == found.total_seconds
    assert found.share == pytest.approx(20 / 45)


def test_a_run_in_progress_counts_to_now_and_time_between_launches_does_not_count() -> None:
    running = goodput(EVENTS[:3], ROWS[:11], now=118.0)
    assert running.total_seconds == 18
    later = goodput([*EVENTS, event(900, "launch"), event(905, "resume", step=20)], ROWS, now=910.0)
    assert later.total_seconds == 45 + 10


def test_advice_follows_from_measured_saves_restarts_and_failures() -> None:
    advice = goodput(EVENTS, ROWS, now=0.0).advice()
    assert advice is not None
    assert (advice.mean_seconds, advice.save_seconds, advice.restart_seconds) == (22.5, 1.0, 1.0)
    assert advice.young_seconds == young_interval(22.5, 1.0)
    nearby = [efficiency(advice.best_seconds * factor, 22.5, 1.0, 1.0) for factor in (0.9, 1.1)]
    assert advice.expected_goodput > max(nearby)
    assert "goodput   44.4 %" in goodput_lines(goodput(EVENTS, ROWS, 0.0), 1.0)[0]
    assert "(6 steps)" in goodput_lines(goodput(EVENTS, ROWS, 0.0), 1.0)[1]
