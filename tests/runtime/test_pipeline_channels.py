"""With NCCL each pair of neighbours in a pipeline has a channel for each direction, so that neither waits for the other's."""

from types import SimpleNamespace
from typing import Any

import pytest

from fourfold.runtime.links import TorchLinks

PIPELINES = [(3, 5, 7, 9), (2, 4, 6, 8)]


def test_every_neighbour_has_a_channel_for_each_direction(monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks name all channels in one order, since torch numbers groups; a rank is in those of its own pairs alone."""
    named: list[tuple[int, ...]] = []

    def group(_: TorchLinks, ranks: tuple[int, ...], rank: int) -> int:
        named.append(tuple(ranks))
        return len(named)

    links: Any = object.__new__(TorchLinks)
    links.native = True
    monkeypatch.setattr(TorchLinks, "_group", group)
    layout: Any = SimpleNamespace(stage_ranks=(0, 1, 2, 3, 0, 1, 2, 3), groups=lambda axes: PIPELINES)
    near = {3: (5, 9), 5: (3, 7), 7: (5, 9), 9: (7, 3)}
    orders = []
    for rank in PIPELINES[0]:
        named.clear()
        link = links.pipeline(layout, rank, None)
        assert link.process_group is None, "a communicator of the pipeline would have nothing to do"
        assert set(link.channels) == {(other, upwards) for other in near[rank] for upwards in (False, True)}
        assert len(set(link.channels.values())) == len(link.channels)
        orders.append(list(named))
    assert all(order == orders[0] for order in orders)
