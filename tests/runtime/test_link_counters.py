"""Numbers of exchanges and transfers never end: gloo's tags do, at 2**31, and begin again."""

import pytest

pytest.importorskip("torch")
import torch
import torch.distributed as dist

from fourfold.runtime.links import _EXCHANGES, _TRANSFERS, TorchLink
from tests.support.ranks import run_on_ranks

CALLS = 12


def exchanged(rank: int, begin: int) -> list[float]:
    """Numbers that this rank receives in exchanges and transfers whose numbers go on from `begin`."""
    link, peer, received = TorchLink(dist.group.WORLD, native=False, _sequence=begin), 1 - rank, []
    for call in range(CALLS):
        sent = [torch.tensor([100.0 * rank + call + part / 4]) for part in range(3)]
        into = [torch.zeros(1) for _ in sent]
        for work in link.exchange([(x, peer) for x in sent], [(x, peer) for x in into]):
            work.wait()
        received += [x.item() for x in into]
        one, number = torch.tensor([1000.0 * rank + call]), begin + call
        got = torch.zeros(1)
        for work in (link.receive(got, peer, rank == 1, number), link.send(one, peer, rank == 0, number)):
            work.wait()
        received.append(got.item())
    return received


@pytest.mark.parametrize("near", [2**16, _EXCHANGES, 2**23, _TRANSFERS, 2**31, 2**32, 2**62])
def test_calls_go_on_across_every_limit(near: int) -> None:
    for rank, received in enumerate(run_on_ranks(2, exchanged, begin=near - CALLS // 2)):
        assert received == [
            value
            for call in range(CALLS)
            for value in (*(100.0 * (1 - rank) + call + part / 4 for part in range(3)), 1000.0 * (1 - rank) + call)
        ]


def _wrong(rank: int, begin: int, calls: int) -> int:
    """How many of these exchanges brought something else than their own number."""
    link, peer, wrong = TorchLink(dist.group.WORLD, native=False, _sequence=begin), 1 - rank, 0
    for call in range(calls):
        into = torch.zeros(1, dtype=torch.float64)
        for work in link.exchange([(torch.tensor([2.0 * call + rank], dtype=torch.float64), peer)], [(into, peer)]):
            work.wait()
        wrong += into.item() != 2.0 * call + peer
    return wrong


@pytest.mark.sweep
@pytest.mark.parametrize("near", [_EXCHANGES, 2**31])
def test_a_hundred_thousand_exchanges_lie_across_a_limit(near: int) -> None:
    for begin in range(near - 50_000, near + 50_000, 10_000):
        assert run_on_ranks(2, _wrong, begin=begin, calls=10_000) == [0, 0]
