"""A barrier in the store lets nobody on before all are there, leaves nothing behind, and waits as long as somebody gets on: no size
of a model passes a time limit."""

import threading
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

from fourfold.config import RunFailure
from fourfold.config.schema import FaultsSection
from fourfold.rendezvous.barrier import StoreBarrier
from fourfold.runtime.progress import ProgressBoard, read_positions
from fourfold.supervise.observation import Observation
from fourfold.supervise.watch import Watch

LIMIT = 600.0
RANKS, ROUNDS = 5, 40


def test_nobody_goes_on_before_all_are_there_and_the_store_does_not_grow() -> None:
    store, lock = dist.HashStore(), threading.Lock()
    arrived, early, keys = [0] * (ROUNDS + 1), [], []

    def rank() -> None:
        barrier = StoreBarrier(store, "save", RANKS, LIMIT)
        for number in range(ROUNDS):
            with lock:
                arrived[number] += 1
            barrier.meet()
            with lock:
                early.extend([number] if arrived[number] < RANKS else [])
                keys.append(store.num_keys())

    threads = [threading.Thread(target=rank) for _ in range(RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert arrived[:ROUNDS] == [RANKS] * ROUNDS
    assert not early
    assert max(keys) <= 4


def test_one_rank_asks_nothing() -> None:
    StoreBarrier(None, "save", 1, LIMIT).meet()  # type: ignore[arg-type]


def test_ranks_that_do_not_come_are_counted() -> None:
    store = dist.HashStore()
    store.add("memory/1", 2)
    with pytest.raises(RunFailure, match=r"barrier 1 of 'memory': 3 of 5 ranks came, and no other got on"):
        StoreBarrier(store, "memory", 5, 0.1).meet()


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

    def delete_key(self, key: str) -> None:
        self.keys.discard(key)

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


def barrier(store: Store, num_ranks: int = 2, **more: Any) -> StoreBarrier:
    return StoreBarrier(store, "save", num_ranks, LIMIT, clock=lambda: store.now, **more)  # type: ignore[arg-type]


def test_a_rank_waits_hours_for_one_that_gets_on() -> None:
    store = Store()
    store.others = {500.0 * n: "save/parts" for n in range(1, 40)} | {20_000.0: "save/1/all"}
    barrier(store).meet()
    assert store.now == 20_000.0


def test_a_rank_gives_up_once_nobody_has_got_on_for_the_limit() -> None:
    store = Store()
    store.others = {500.0: "save/parts", 900.0: "save/parts"}
    with pytest.raises(RunFailure, match=r"'save': 1 of 2 ranks came, .* run.timeout_seconds = 600"):
        barrier(store).meet()
    assert 900 + LIMIT <= store.now <= 900 + 1.3 * LIMIT


def test_the_last_to_come_releases_the_others_at_once() -> None:
    store = Store()
    store.counts["save/1"] = 15
    barrier(store, 16).meet()
    assert (store.now, store.keys) == (0.0, {"save/1/all"})


def test_requests_do_not_grow_with_the_parts_of_the_work() -> None:
    store = Store()
    ours = barrier(store)
    for part in range(100_000):
        store.now = part * 0.01  # 1,000 seconds
        ours.advance()
    assert store.requests < 40


def test_a_rank_that_draws_for_hours_is_not_taken_for_hung(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rank's position moves with every part, so that the watch counts no time against it."""
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
