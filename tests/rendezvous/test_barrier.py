"""A barrier in the store lets nobody on before all are there, leaves nothing behind, and names how many came."""

import threading
from datetime import timedelta

import pytest
import torch.distributed as dist

from fourfold.config import RunFailure
from fourfold.rendezvous.barrier import StoreBarrier

RANKS, ROUNDS = 5, 40


def test_nobody_goes_on_before_all_are_there_and_the_store_does_not_grow() -> None:
    store, lock = dist.HashStore(), threading.Lock()
    arrived, early, keys = [0] * (ROUNDS + 1), [], []

    def rank() -> None:
        barrier = StoreBarrier(store, "save", RANKS)
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
    StoreBarrier(None, "save", 1).meet()  # type: ignore[arg-type]


def test_ranks_that_do_not_come_are_counted() -> None:
    store = dist.HashStore()
    store.set_timeout(timedelta(seconds=0.1))
    store.add("memory/1", 2)
    with pytest.raises(RunFailure, match=r"barrier 1 of 'memory' beside training: 3 of 5 ranks came"):
        StoreBarrier(store, "memory", 5).meet()
