"""All ranks stop before the same step, whoever is asked and whenever, and no rank asks the store before."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from fourfold.rendezvous.server import StoreServer
from fourfold.rendezvous.store import SecretStore
from fourfold.train.session import RankContext, StopSignal

RANKS = 4


@pytest.mark.parametrize("seed", range(8))
def test_all_stop_before_the_same_step(seed: int) -> None:
    """Steps end in a collective, and take as long as they take: here no time at all."""
    chance = random.Random(seed)
    asked = {rank: chance.randrange(12) for rank in chance.sample(range(RANKS), chance.randint(1, RANKS))}
    server = StoreServer()
    server.start()
    collective = threading.Barrier(RANKS)

    def rank(number: int) -> int:
        base = SecretStore(server.host, server.port, server.secret, timedelta(seconds=20), f"{seed}/")
        context = RankContext(number, RANKS, None, dist.PrefixStore("words", base), base)  # type: ignore[arg-type]
        stop = StopSignal(context)
        for step in range(10_000):
            stop.requested = stop.requested or asked.get(number) == step
            if stop.stops_before(step):
                return step
            collective.wait(20)
        raise AssertionError("never stopped")

    with ThreadPoolExecutor(RANKS) as pool:
        stopped = list(pool.map(rank, range(RANKS)))
    server.close()
    assert len(set(stopped)) == 1
    assert stopped[0] > min(asked.values())


def test_rank_0_names_no_step_before_all_have_heard() -> None:
    """One that has not would not ask in time."""
    store = dist.HashStore()
    context = SimpleNamespace(world_size=3, rank=0, store=store, awaited=lambda key, heard: lambda: True)
    stop = StopSignal(context)  # type: ignore[arg-type]
    store.add("stop_heard", 2)
    for step in range(4, 8):
        assert not stop.stops_before(step)
        assert stop._asked is not None
        assert stop._asked.result() is None
    assert not store.check(["stop_at"])
    store.add("stop_heard", 1)
    assert not stop.stops_before(8)
    assert stop._asked.result() == int(store.get("stop_at")) == 8 + StopSignal.MARGIN_STEPS
