"""How long a collective takes on the interconnect levels that its group crosses.

A group is seen as a tree of blocks: how many of its members lie together in each level. Rings go through the members of a block
before they leave it, one ring for every member of a block, so that each device's port to a level carries what leaves its block
divided by the members in it (NCCL's multi-ring algorithms; Thakur et al. 2005 for the costs). Groups that run beside each other,
one for every coordinate on the other axes, have each their own devices' ports: a level is shared evenly.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import ceil, log2

from fourfold.hardware import Cluster, Level
from fourfold.layout import Layout
from fourfold.model.work import sent_bytes


@dataclass(frozen=True)
class Links:
    """Constants of the links of all clusters; bandwidths and latencies themselves are each cluster's.

    `network_share`: of the bandwidth beyond a node, beside what every level loses (`Fitted.link_share`). `node_hop_seconds`: what a
    step of a ring adds to a level's latency where the ring stays in a node; `network_hop_seconds`: where it leaves one, and
    `inner_hop`, as a share of that, for its steps within nodes (NCCL's simple protocol hands on a chunk only when it is complete).
    `hop_bytes`: of a buffer from which on a hop costs all of that; smaller ones go by a protocol with less latency, in proportion.
    `network_hop_bytes`: the same of one member's part of a buffer, in a step that leaves a node: what it hands on.
    `tree_hop`: a tree's level, in hops of a ring.
    """

    network_share: float = 1.0
    node_hop_seconds: float = 6e-6
    network_hop_seconds: float = 15e-6
    inner_hop: float = 0.25
    hop_bytes: float = 4e6
    network_hop_bytes: float = 3e6
    tree_hop: float = 4.0


NO_LOSS = Links(node_hop_seconds=0.0, network_hop_seconds=0.0)


@dataclass(frozen=True)
class Span:
    """How a group lies on a cluster's levels: `members[i]` of its ranks are in one block of level i (the most of any block).

    `size` is the last one; `shared[i]`: groups of the same kind that use level i's block, where all its devices divide it.
    """

    size: int
    members: tuple[int, ...]
    shared: tuple[int, ...]


def span_of(layout: Layout, axes: tuple[str, ...], cluster: Cluster) -> Span:
    """The span of the groups along these axes; ranks are devices in order."""
    return ranks_span(layout.group_of(0, axes), cluster, layout.world_size)


@lru_cache(maxsize=1024)
def ranks_span(ranks: tuple[int, ...], cluster: Cluster, world_size: int) -> Span:
    """The span of one group and of those like it, shifted."""
    size = len(ranks)
    members = tuple(max(Counter(rank // level.devices for rank in ranks).values()) for level in cluster.levels)
    shared = tuple(
        max(1, min(level.devices, world_size) // max(1, count))
        for level, count in zip(cluster.levels, members, strict=True)
    )
    return Span(size, (*members[:-1], size), shared)


Spared = tuple[float, float]
"""Shares of an all-to-all within a node and beyond it that need not be sent."""


def collective_seconds(
    kind: str, size: float, span: Span, cluster: Cluster, links: Links = NO_LOSS, spared: Spared = (0.0, 0.0)
) -> float:
    """`size`: the full buffer's bytes, as `program.Collective` counts them."""
    if span.size <= 1:
        return 0.0
    if kind == "all_to_all":
        return _all_to_all(size, span, cluster, links, spared)
    if kind in ("shift", "send", "recv"):
        return _shift(size, span, cluster, links)
    return _ring_seconds(kind, size, span, cluster, links) + _latency(kind, size, span, cluster, links)


def network_seconds(
    kind: str, size: float, span: Span, cluster: Cluster, links: Links = NO_LOSS, spared: Spared = (0.0, 0.0)
) -> float:
    """Seconds in which a collective fills its devices' ports to the network. Arguments as of `collective_seconds`."""
    if span.size <= span.members[0]:
        return 0.0
    if kind == "all_to_all":
        return _parts_seconds(size, span, cluster, links, spared, first=1)
    if kind in ("shift", "send", "recv"):
        return _shift(size, span, cluster, links)
    return _ring_seconds(kind, size, span, cluster, links, first=1)


def _crossed(span: Span) -> Iterator[tuple[int, int, int]]:
    """Levels that a group crosses: index, and members in a block of the level below and of this one."""
    inner = 1
    for index, members in enumerate(span.members):
        if members > inner:
            yield index, inner, members
            inner = members


def _ring_seconds(kind: str, size: float, span: Span, cluster: Cluster, links: Links, first: int = 0) -> float:
    """Seconds of the rings' bytes on the slowest level, of those from `first` on."""
    volume = sent_bytes(kind, int(size), span.size)
    return max(
        volume
        / inner
        / (_rate(cluster, index, 1 if index else span.shared[0], inner, links) * _rings(cluster.levels[index], members))
        for index, inner, members in _crossed(span)
        if index >= first
    )


def _rate(cluster: Cluster, index: int, groups: int, members: int, links: Links) -> float:
    """Bytes a second that one device of the group may send through a level. Around a torus both directions of a link serve."""
    level, share = cluster.levels[index], links.network_share if index else 1
    if level.kind == "shared":
        return level.bytes_per_second / max(1, groups * members) * share
    return level.bytes_per_second * (2 if level.kind == "torus" else 1) * share


def _rings(level: Level, members: int) -> int:
    """Dimensions of a torus that a group spans: a ring runs along each at once, each with a part of the buffer. A slice is as near
    to a cube as it can be, four chips a side at least (16 of two dimensions, 64 of three)."""
    return max(1, min(len(level.dimensions), int(log2(members) / 2))) if level.kind == "torus" else 1


def _latency(kind: str, size: float, span: Span, cluster: Cluster, links: Links) -> float:
    """Latency of the better of a ring, whose steps go one device on, and a tree over blocks (all-reduce, Sanders et al. 2009)."""
    ring = tree = 0.0
    part = min(1.0, size / links.hop_bytes)
    leaves = span.size > span.members[0]
    handed_on = min(part, size / span.size / links.network_hop_bytes)
    for index, inner, members in _crossed(span):
        blocks, latency, hop = ceil(members / inner), cluster.levels[index].latency_seconds, _hop(index, leaves, links)
        steps = (blocks - 1) * (span.size // members if index == 0 else 1)
        ring += steps * (latency + (handed_on if index else part) * hop)
        tree += ceil(log2(blocks)) * (latency + links.tree_hop * part * hop)
    within = (span.members[0] - 1) * (cluster.levels[0].latency_seconds + part * links.node_hop_seconds)
    ring = max(ring, within)
    if kind == "all_reduce":
        return 2 * min(ring, tree)
    return min(ring, 2 * tree) if size < links.hop_bytes else ring


def _hop(index: int, leaves: bool, links: Links) -> float:
    """Seconds that a step through level `index` adds to the level's latency."""
    if not leaves:
        return links.node_hop_seconds
    return links.network_hop_seconds * (1.0 if index else links.inner_hop)


def _all_to_all(size: float, span: Span, cluster: Cluster, links: Links, spared: Spared) -> float:
    """Each member sends an equal part to every other; a level carries what goes to members outside the level below."""
    part = min(1.0, size / links.hop_bytes)
    latency = max(
        (cluster.levels[index].latency_seconds + part * _hop(index, index > 0, links)) * log2(members) * 2
        for index, _, members in _crossed(span)
    )
    return _parts_seconds(size, span, cluster, links, spared) + latency


def _parts_seconds(size: float, span: Span, cluster: Cluster, links: Links, spared: Spared, first: int = 0) -> float:
    """Seconds of an all-to-all's bytes on the slowest level, of those from `first` on."""
    return max(
        size
        * (span.size - inner)
        / span.size
        * (1 - spared[index > 0])
        / _rate(cluster, index, 1 if index else span.shared[0], members, links)
        for index, inner, members in _crossed(span)
        if index >= first
    )


def _shift(size: float, span: Span, cluster: Cluster, links: Links) -> float:
    """Every member to the next: the one that crosses the outermost level is the last."""
    outermost = max((index for index, _, _ in _crossed(span)), default=0)
    return size / _rate(cluster, outermost, span.shared[0], 1, links) + cluster.levels[outermost].latency_seconds


def level_shares(kind: str, span: Span) -> tuple[float, ...]:
    """How what a group sends divides among the levels, innermost first; the shares sum to 1. Around a ring one member of every
    block sends on to the next block; in an all-to-all every member sends to every other."""
    size = span.size
    if size <= 1:
        return (0.0,) * len(span.members)
    if kind == "all_to_all":
        outside = [(size - members) / (size - 1) for members in (1, *span.members)]
    else:
        outside = [1 / members if members < size else 0.0 for members in (1, *span.members)]
    return tuple(before - after for before, after in pairwise(outside))


def transfer_seconds(
    size: float, source: int, target: int, cluster: Cluster, senders: int = 1, links: Links = NO_LOSS
) -> float:
    """One message between two devices. `senders`: ranks beside it that send at the same time through a medium they share."""
    index = level_between(source, target, cluster)
    hop = cluster.levels[index].latency_seconds + min(1.0, size / links.hop_bytes) * _hop(index, index > 0, links)
    return size / _rate(cluster, index, senders, 1, links) + hop


def level_between(source: int, target: int, cluster: Cluster) -> int:
    """The innermost level that joins two devices. Raises `ValueError`."""
    for index, level in enumerate(cluster.levels):
        if source // level.devices == target // level.devices:
            return index
    raise ValueError(f"devices {source} and {target} are not both in a cluster of {cluster.devices}")
