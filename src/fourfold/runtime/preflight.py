"""The rate of every link that groups' rings go over, measured before the first step, and the slow one among them.

In each group every rank sends a message to the next and receives one from the rank before, all groups of a name at once, as in a
step. A slow link holds up both of its ends, and no rank beside them: its time is the shorter one of its two ends.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, nan
from statistics import median
from typing import Any

import torch

from fourfold.layout import Layout
from fourfold.runtime.collectives import AxisGroup
from fourfold.runtime.links import neighbours

TRANSFERS = "transfers between stages"
MOST_RANKS = 1024
"""Beyond it a run measures only where it is asked to."""
MESSAGE_BYTES = {"cpu": 4 << 20, "cuda": 64 << 20}
_REPEATS = 4
_SLOW = 0.5
"""Share of the median of a group's links below which a link is named."""


@dataclass(frozen=True)
class LinkRate:
    """Rates at which ranks send to the next of their group, in bytes a second: of the median link, and of the slowest, which goes
    from `sender` to `receiver`. `stated`: as the cluster's file has it, None where it has none."""

    axes: str
    bytes_per_second: float
    slowest: float
    sender: int
    receiver: int
    stated: float | None

    @property
    def is_slow(self) -> bool:
        """Whether its slowest link is slow beside the others, or all beside what the cluster's file states."""
        expected = max(self.bytes_per_second, self.stated or 0.0)
        return self.slowest < _SLOW * expected

    def text(self) -> str:
        stated = f" (the cluster's file: {self.stated / 1e9:.1f})" if self.stated else ""
        line = f"{self.axes} {self.bytes_per_second / 1e9:.1f} GB/s{stated}"
        if not self.is_slow:
            return line
        return f"{line}, slow link: rank {self.sender} to rank {self.receiver} {self.slowest / 1e9:.2f} GB/s"


def measures(stated: bool | None, device: torch.device, world_size: int) -> bool:
    """Whether a run measures. `stated`: `run.preflight`."""
    if world_size == 1:
        return False
    return stated if stated is not None else device.type == "cuda" and world_size <= MOST_RANKS


def measured_names(names: Iterable[str], layout: Layout) -> list[str]:
    """The groups that are measured, and `TRANSFERS`, between the stages of a pipeline."""
    return [*sorted(names), *([TRANSFERS] if layout.pp > 1 else [])]


def ring_seconds(
    groups: Mapping[str, AxisGroup], names: Sequence[str], layout: Layout, device: torch.device
) -> list[float]:
    """This rank's shortest time to send one message and receive another, for each name; NaN where it is in no such group."""
    found = []
    for name in names:
        group = groups.get("pp" if name == TRANSFERS else name)
        found.append(_shift_seconds(group, name, layout, device) if group is not None else nan)
    return found


def _links(name: str, ranks: tuple[int, ...], layout: Layout) -> list[tuple[int, int]]:
    """(sender, receiver) of each link of a group."""
    if name == TRANSFERS:
        return list(neighbours(layout, ranks))
    return list(zip(ranks, (*ranks[1:], ranks[0]), strict=True))


def _shift_seconds(group: AxisGroup, name: str, layout: Layout, device: torch.device) -> float:
    count, own, best = MESSAGE_BYTES[device.type] // 4, group.ranks[group.index], float("inf")
    links = _links(name, group.ranks, layout)
    sent = [(torch.zeros(count, device=device), receiver) for sender, receiver in links if sender == own]
    received = [(torch.zeros(count, device=device), sender) for sender, receiver in links if receiver == own]
    for _ in range(_REPEATS):
        begun = time.perf_counter()
        if name != TRANSFERS:
            works = list(group.link.exchange(sent, received))
        else:
            works = [group.link.receive(x, rank, True, 0) for x, rank in received]
            works += [group.link.send(x, rank, True, 0) for x, rank in sent]
        for pending in works:
            pending.wait()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - begun)
    return best


def link_rates(
    seconds: Sequence[Sequence[float]],
    names: Sequence[str],
    layout: Layout,
    message_bytes: int,
    levels: Sequence[tuple[int, float]] = (),
) -> list[LinkRate]:
    """Rates of links, from what all ranks measured, by rank and name. `levels`: as in `stated_levels`."""
    found = []
    for place, name in enumerate(names):
        links = {
            (sender, receiver): message_bytes / min(seconds[sender][place], seconds[receiver][place])
            for ranks in layout.groups(("pp",) if name == TRANSFERS else tuple(name.split("+")))
            for sender, receiver in _links(name, ranks, layout)
        }
        slowest = min(links, key=lambda link: links[link])
        stated = _stated(slowest, levels)
        found.append(LinkRate(name, median(links.values()), links[slowest], *slowest, stated))
    return found


def stated_levels(table: Any) -> list[tuple[int, float]]:
    """(devices that it joins, bytes a second of one of them) of each interconnect level, innermost first, as the run's `data.json`
    has them; empty where it has no such list."""
    try:
        found = [(int(devices), float(rate)) for devices, rate in table]
    except (TypeError, ValueError, OverflowError):
        return []
    return found if all(devices > 0 and 0 < rate < inf for devices, rate in found) else []


def _stated(link: tuple[int, int], levels: Sequence[tuple[int, float]]) -> float | None:
    """The bytes a second that a device may send through the level at which two devices meet."""
    return next((rate for devices, rate in levels if link[0] // devices == link[1] // devices), None)
