"""What collectives reach of the bandwidth that links have, and what every hop of a ring costs beside it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Links:
    """Constants of the links of all clusters; bandwidths and latencies themselves are each cluster's.

    `network_share`: of the bandwidth beyond a node, beside what every tier loses (`Fitted.link_share`). `node_hop_seconds`: what a
    step of a ring adds to a tier's latency where the ring stays in a node; `network_hop_seconds`: where it leaves one, and
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
