"""All ranks stop before the same step, whoever is asked and whenever, and no rank asks the store before."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

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
