"""A follower tells its leader once a second where it stands, and at once what is new; it hears orders as they are given."""

import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fourfold.launch.external import Member
from fourfold.launch.run_folder import RunFolder
from fourfold.rendezvous.server import StoreServer
from fourfold.rendezvous.values import Reply, Values
from fourfold.supervise import follower as following
from fourfold.supervise.messages import REPORT, Report, report_key, report_seconds
from fourfold.supervise.remote import Machine

LIMIT, PATIENCE = 5.0, 600.0


class Clock:
    """Time that passes only while the follower sleeps. `at`: what happens then, by its second."""

    def __init__(self, at: dict[float, Any]) -> None:
        self.now, self.at = 1000.0, {1000.0 + second: act for second, act in at.items()}

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for second in [second for second in self.at if second <= self.now]:
            self.at.pop(second)()
        time.sleep(1e-4)  # the store's threads run


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Runs a follower until its leader says that the run has ended; its reports by the time at which each came."""
    server = StoreServer()
    server.start()
    machine = Machine(1, server, LIMIT)
    member = Member(1, 2, None, 0, 1, True, None, "127.0.0.1", 0, "")
    monkeypatch.setattr(following, "find_store", lambda *_: (server.port, server.secret))

    def run(received: list[int], at: dict[float, Any]) -> list[tuple[float, Report]]:
        clock, reports = Clock(at), []
        monkeypatch.setattr(following, "time", clock)
        answer = Values.answer

        def recorded(values: Values, request: Sequence[bytes], reply: Reply) -> None:
            if request[0] == b"set" and request[1] == report_key(1).encode():
                reports.append((clock.now - 1000.0, REPORT.validate_json(request[2])))
            answer(values, request, reply)

        monkeypatch.setattr(Values, "answer", recorded)
        spawner = SimpleNamespace(ready=lambda: True)
        own = following._Follower(RunFolder(tmp_path), member, "token", spawner, 1, LIMIT, received)  # type: ignore[arg-type]
        own.report = Report(0, "life", "host", (0,), ())
        machine.report = own.report
        assert own.run(PATIENCE, lambda text: None).exit_code == 7
        return reports

    yield SimpleNamespace(run=run, machine=machine)
    server.close()


def test_a_follower_reports_once_a_second_and_what_is_new_at_once(told) -> None:
    received: list[int] = []
    reports = told.run(
        received, {20.5: lambda: received.append(15), 25.0: lambda: told.machine.order("leave", exit_code=7)}
    )
    times = [second for second, _ in reports if second < 20]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert 1.0 <= min(gaps) <= max(gaps) <= 1.2
    assert 20.5 <= next(second for second, report in reports if report.signal) <= 20.7
    assert reports[-1][1].obeyed == 1


def test_orders_are_heard_as_they_are_given(told) -> None:
    """By a request that waits for them: no more are made however long there is none."""
    orders = {10.0 + number: lambda: told.machine.order("kill") for number in range(5)}
    done = threading.Event()

    def leave() -> None:
        told.machine.order("leave", exit_code=7)
        done.set()

    reports = told.run([], {**orders, 20.0: leave})
    assert done.is_set()
    obeyed = [report.obeyed for _, report in reports]
    assert obeyed == sorted(obeyed)
    assert set(obeyed) == set(range(7))


@pytest.mark.parametrize("limit", [0.5, 2.0, 5.0, 60.0])
def test_a_machine_is_lost_only_after_several_reports_that_did_not_come(limit: float) -> None:
    every = report_seconds(limit)
    assert every <= 1.0
    machine = Machine(1, None, limit)  # type: ignore[arg-type]
    machine.silent = 2 * every
    assert machine.is_fresh
    assert not machine.is_lost
    machine.silent = 4 * every
    assert not machine.is_fresh
    assert machine.is_missed(3 * every)
    assert not machine.is_lost
