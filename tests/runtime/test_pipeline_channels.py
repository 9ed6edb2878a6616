"""With NCCL each pair of neighbours in a pipeline has a channel for each direction, so that neither waits for the other's."""

from types import SimpleNamespace
from typing import Any

import pytest

from fourfold.runtime.links import TorchLinks

RANKS = (3, 5, 7, 9)


def test_every_neighbour_has_a_channel_for_each_direction(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, ...]] = []

    def group(_: TorchLinks, ranks: tuple[int, ...]) -> int:
        made.append(tuple(ranks))
        return len(made)

    links: Any = object.__new__(TorchLinks)
    links._native = True
    monkeypatch.setattr(TorchLinks, "_group", group)
    monkeypatch.setattr(TorchLinks, "link", lambda *_: SimpleNamespace())
    layout: Any = SimpleNamespace(stage_ranks=(0, 1, 2, 3, 0, 1, 2, 3))
    near = {3: (5, 9), 5: (3, 7), 7: (5, 9), 9: (7, 3)}
    orders = []
    for rank in RANKS:
        made.clear()
        channels = links.pipeline(layout, rank, RANKS).channels
        assert set(channels) == {(other, upwards) for other in near[rank] for upwards in (False, True)}
        assert len(set(channels.values())) == len(channels)
        orders.append(list(made))
    for groups in zip(*orders, strict=True):  # all ranks make as many: one of itself for each that is others'
        pair = next(each for each in groups if len(each) == 2)
        assert [each == pair for each in groups] == [rank in pair for rank in RANKS]
