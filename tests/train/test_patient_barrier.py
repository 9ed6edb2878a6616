"""Ranks that draw or read a model wait for each other by whether somebody gets on, so that no size passes a time limit."""

from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from fourfold.config import RunFailure
from fourfold.config.schema import FaultsSection
from fourfold.runtime.progress import ProgressBoard, read_positions
from fourfold.supervise.observation import Observation
from fourfold.supervise.watch import Watch
from fourfold.train.patient_barrier import PatientBarrier

LIMIT = 600.0


class Store:
    """A store in memory on a clock that runs while somebody waits. `others`: what happens elsewhere, by the second."""

    def __init__(self) -> None:
        self.now, self.requests = 0.0, 0
        self.counts: dict[str, int] = {}
        self.keys: set[str] = set()
        self.others: dict[float, str] = {}

    def add(self, key: str, value: int) -> int:
        self.requests += 1
        self.counts[key] = self.counts.get(key, 0) + value
        return self.counts[key]

    def set(self, key: str, value: str) -> None:
        self.keys.add(key)

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        self.requests += 1
        end = self.now + timeout.total_seconds()
        for second in sorted(self.others):
            if second <= end and not self.keys >= set(keys):
                self.now = max(self.now, second)
                key = self.others.pop(second)
                if key.endswith("all"):
                    self.keys.add(key)
                else:
                    self.add(key, 1)
        if not self.keys >= set(keys):
            self.now = end
            raise RuntimeError(f"nobody set {keys}")


def barrier(store: Store, world_size: int = 2, **more: object) -> PatientBarrier:
    return PatientBarrier("parameters 0", store, world_size, LIMIT, clock=lambda: store.now, **more)  # type: ignore[arg-type]


def test_a_rank_waits_hours_for_one_that_gets_on() -> None:
    store = Store()
    store.others = {500.0 * n: "parameters 0/parts" for n in range(1, 40)} | {20_000.0: "parameters 0/all"}
    barrier(store).wait()
    assert store.now == 20_000.0


def test_a_rank_gives_up_once_nobody_has_got_on_for_the_limit() -> None:
    store = Store()
    store.others = {500.0: "parameters 0/parts", 900.0: "parameters 0/parts"}
    with pytest.raises(RunFailure, match=r"parameters 0: 1 of 2 ranks have not come, .* run.timeout_seconds = 600"):
        barrier(store).wait()
    assert 900 + LIMIT <= store.now <= 900 + 1.3 * LIMIT


def test_the_last_to_come_releases_the_others_at_once() -> None:
    store = Store()
    store.counts["parameters 0/come"] = 15
    barrier(store, 16).wait()
    assert (store.now, store.keys) == (0.0, {"parameters 0/all"})


def test_requests_do_not_grow_with_the_parts_of_the_work() -> None:
    store = Store()
    ours = barrier(store)
    for part in range(100_000):
        store.now = part * 0.01  # 1,000 seconds
        ours.advance()
    assert store.requests < 40


def test_a_rank_that_draws_for_hours_is_not_taken_for_hung(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its position moves with every part, so that the watch counts no time against it."""
    board, ours, now = ProgressBoard(tmp_path, 0), Store(), 0.0
    drawing = barrier(ours, 1, record=board.record)
    watch = Watch(FaultsSection(stall_seconds=5.0), LIMIT, SimpleNamespace(on_device=False))  # type: ignore[arg-type]
    monkeypatch.setattr("time.monotonic", lambda: now)

    class Generation:
        def observe(self) -> list[Observation]:
            return [Observation(read_positions(tmp_path)[0], "R", now)]

    for _ in range(20_000):
        now += 0.5
        drawing.advance()
        assert watch.look(Generation()) is None  # type: ignore[arg-type]
    assert now > 10 * LIMIT
