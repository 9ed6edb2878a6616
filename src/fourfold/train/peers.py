"""Which rank keeps a second copy of another's state: one on another machine, a replica of it where the layout has one."""

from collections.abc import Sequence
from typing import NamedTuple

from fourfold.layout import Layout
from fourfold.program.view import RankView


class Peer(NamedTuple):
    """`is_replica`: it holds the same bits, so that nothing is sent."""

    rank: int
    is_replica: bool


def replicated_axes(view: RankView) -> tuple[str, ...]:
    """The axes along which ranks hold parameters and optimizer states alike."""
    flats = view.flats.values()
    unsharded = all(flat.num_shards == 1 and flat.domain == "dense" for flat in flats)
    return ("dp_replicate", "dp_shard", "cp") if unsharded else ("dp_replicate",)


def peers(layout: Layout, machines: Sequence[int], axes: tuple[str, ...]) -> list[Peer | None]:
    """The peer of every rank; None where all are on one machine. `machines`: that of each rank. `axes`: `replicated_axes`."""
    order = sorted(set(machines))
    places = {machine: place for place, machine in enumerate(order)}
    members: dict[int, list[int]] = {machine: [] for machine in order}
    for rank, machine in enumerate(machines):
        members[machine].append(rank)
    found: list[Peer | None] = []
    for rank, machine in enumerate(machines):
        if len(order) == 1:
            found.append(None)
            continue
        group = layout.group_of(rank, axes)
        at = group.index(rank)
        replica = next((r for r in (*group[at:], *group[:at]) if machines[r] != machine), None)
        others = members[order[(places[machine] + 1) % len(order)]]
        usual = others[members[machine].index(rank) % len(others)]
        found.append(Peer(usual, False) if replica is None else Peer(replica, True))
    return found


def sent_pairs(machines: Sequence[int], kept_by: Sequence[Peer | None]) -> list[tuple[int, int]]:
    """The pairs of ranks between which copies travel, in the order in which all ranks connect: those from every second machine
    first, so that no chain of machines waits one for another."""
    places = {machine: place for place, machine in enumerate(sorted(set(machines)))}
    pairs = [(rank, peer.rank) for rank, peer in enumerate(kept_by) if peer is not None and not peer.is_replica]
    return sorted(pairs, key=lambda pair: (places[machines[pair[0]]] % 2, pair))
