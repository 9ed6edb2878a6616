"""The mesh of ranks, a box with axes `pp, dp_replicate, dp_shard, cp, tp` (tp innermost), its finer views, where its ranks lie on
the devices, and the layout on it."""

from dataclasses import dataclass
from math import gcd, prod
from typing import Literal

from fourfold.config.layout_section import LayoutKeys, Outermost
from fourfold.model.context.placement import ContextShare, zigzag
from fourfold.model.spec import Domain

AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
DATA_AXES = ("dp_replicate", "dp_shard", "cp")
"""Axes whose ranks see different tokens: every dense gradient is summed over them."""
VIEWS = (
    AXES,
    ("pp", "dp_replicate", "edp", "ep", "etp"),
    ("pp", "dp_replicate", "dp_shard", "cp_ring", "cp_ulysses", "tp"),
    ("pp", "dp_replicate", "dp_shard", "cp", "tp_head", "tp_copy"),
)
"""Ways of reading the same ranks: experts divide `dp_shard x cp x tp` anew, context parallelism divides `cp`, and key and value
heads divide `tp` into ranks with different heads and copies of the same."""
ALL_AXES = (*dict.fromkeys(axis for view in VIEWS for axis in view), "tied")
ORDERS: dict[Outermost, tuple[str, ...]] = {
    "pp": AXES,
    "dp_replicate": ("dp_replicate", "pp", "dp_shard", "cp", "tp"),
    "dp": ("dp_replicate", "dp_shard", "pp", "cp", "tp"),
}
"""Orders in which the axes lie on the devices, by what is farthest apart: the stages of a pipeline (Megatron-LM), full replicas
(one of HSDP's a pod), or all ranks that read different data (Llama 3, section 3.3.2)."""
Recompute = Literal["none", "selective", "full"]


@dataclass(frozen=True, kw_only=True)
class Layout(LayoutKeys):
    """Degrees of every axis and how a rank's step is arranged, complete and checked (`resolve_layout` makes it).

    `recompute`: one policy a segment, in forward order. `offload`: whether each segment's activations wait in the host's memory,
    likewise; empty: none do. `segments_per_stage`: how many segments each pipeline stage has; `stage_ranks`: the pp coordinate of
    each stage. `global_sequences` = num_microbatches x microbatch_sequences x dp_replicate x dp_shard. `outermost`: a key of
    `ORDERS`; ranks are numbered in that order. Views read the box of `AXES`, whatever the order.
    """

    virtual_stages: int = 1
    segments_per_stage: tuple[int, ...] = ()  # type: ignore[assignment]
    dp_shard: int
    sequence_parallel: bool = False
    recompute: tuple[Recompute, ...]  # type: ignore[assignment]
    offload: tuple[bool, ...] = ()  # type: ignore[assignment]
    num_microbatches: int
    sequence_length: int
    stage_ranks: tuple[int, ...] = (0,)
    cp_ulysses: int = 1
    tp_head: int = 1

    @property
    def edp(self) -> int:
        """Ranks that hold the same part of the experts, within a replica."""
        return self.dp_shard * self.cp * self.tp // (self.ep * self.etp)

    @property
    def cp_ring(self) -> int:
        return self.cp // self.cp_ulysses

    @property
    def tp_copy(self) -> int:
        """Ranks of `tp` that hold the same key and value heads."""
        return self.tp // self.tp_head

    @property
    def world_size(self) -> int:
        return prod(self.degree(axis) for axis in AXES)

    @property
    def data_degree(self) -> int:
        """Ranks that read different rows of the global batch."""
        return self.dp_replicate * self.dp_shard

    @property
    def tokens(self) -> int:
        """Tokens of a microbatch on one rank of `tp`, before sequence parallelism splits them."""
        return self.microbatch_sequences * self.sequence_length // self.cp

    @property
    def hidden_tokens(self) -> int:
        """Tokens of a microbatch whose residual stream one rank holds."""
        return self.tokens // (self.tp if self.sequence_parallel else 1)

    def shard_axes(self, domain: Domain) -> tuple[str, ...]:
        """The active axes over which ZeRO shards a unit's state."""
        return self.active(("dp_shard", "cp") if domain == "dense" else ("edp",))

    def gradient_axes(self, domain: Domain) -> tuple[str, ...]:
        """The active axes over which a unit's gradient is summed: those whose ranks have the same part of its parameters."""
        return self.active(DATA_AXES if domain == "dense" else ("dp_replicate", "edp"))

    def domain_degrees(self, domain: Domain) -> tuple[int, int]:
        """(replicas, ranks that ZeRO shards over) of a unit's part."""
        return self.dp_replicate, self.group_size(self.shard_axes(domain))

    def degree(self, axis: str) -> int:
        if axis == "tied":
            return len(set(self.tied_ranks))
        return int(getattr(self, axis))

    @property
    def tied_ranks(self) -> tuple[int, int]:
        """pp coordinates of the embedding and of the head."""
        return self.stage_ranks[0], self.stage_ranks[-1]

    def group_size(self, axes: tuple[str, ...]) -> int:
        return prod(self.degree(axis) for axis in axes)

    def active(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        """Axes among `axes` along which there is more than one rank."""
        return tuple(axis for axis in axes if self.degree(axis) > 1)

    def coordinates(self, rank: int) -> dict[str, int]:
        """Position of a rank on every axis of every view."""
        result: dict[str, int] = {}
        place = self._renumbered(rank, ORDERS[self.outermost], AXES)
        for view in VIEWS:
            rest = place
            for axis in reversed(view):
                rest, result[axis] = divmod(rest, self.degree(axis))
        return {axis: result[axis] for axis in ALL_AXES if axis in result}

    def pp_rank(self, rank: int) -> int:
        """The pp coordinate of a rank."""
        order = ORDERS[self.outermost]
        inner = self.group_size(order[order.index("pp") + 1 :])
        return rank // inner % self.pp

    def rank_of(self, coordinates: dict[str, int], view: tuple[str, ...] = AXES) -> int:
        place = 0
        for axis in view:
            place = place * self.degree(axis) + coordinates[axis]
        return self._renumbered(place, AXES, ORDERS[self.outermost])

    def _renumbered(self, number: int, order: tuple[str, ...], other: tuple[str, ...]) -> int:
        """The number in another order of the axes."""
        if order == other:
            return number
        places: dict[str, int] = {}
        for axis in reversed(order):
            number, places[axis] = divmod(number, self.degree(axis))
        for axis in other:
            number = number * self.degree(axis) + places[axis]
        return number

    def group_of(self, rank: int, axes: tuple[str, ...]) -> tuple[int, ...]:
        """The ranks that differ from `rank` on these axes alone, ascending. `tied`: the holders of embedding and head."""
        view = next(view for view in VIEWS if set(axes) <= {*view, "tied"})
        order = ORDERS[self.outermost]
        rank, stride = self._renumbered(rank, order, AXES), self.world_size
        base = rank
        offsets = [0]
        for axis in view:
            degree = self.degree(axis)
            stride //= degree
            tied = axis == "pp" and "tied" in axes
            if axis in axes or tied:
                base -= rank // stride % degree * stride
                places = sorted(set(self.tied_ranks)) if tied else range(degree)
                steps = [place * stride for place in places]
                if view != VIEWS[1]:  # the axes of experts alone cross those of the mesh: their sums carry
                    steps = [self._renumbered(step, AXES, order) for step in steps]
                offsets = [offset + step for offset in offsets for step in steps]
        if order == AXES:
            return tuple(base + offset for offset in offsets)
        if view != VIEWS[1]:
            base = self._renumbered(base, AXES, order)
            return tuple(sorted(base + offset for offset in offsets))
        return tuple(sorted(self._renumbered(base + offset, AXES, order) for offset in offsets))

    def groups(self, axes: tuple[str, ...]) -> list[tuple[int, ...]]:
        """All groups along these axes; together they hold every rank once (`tied`: every rank that shares something)."""
        members = list(range(self.world_size))
        if "tied" in axes:
            members = [rank for rank in members if self.coordinates(rank)["pp"] in self.tied_ranks]
        found, placed = list[tuple[int, ...]](), set[int]()
        for rank in members:
            if rank not in placed:
                found.append(self.group_of(rank, axes))
                placed.update(found[-1])
        return sorted(found)

    def data_rank(self, rank: int) -> int:
        own = self.coordinates(rank)
        return own["dp_replicate"] * self.dp_shard + own["dp_shard"]

    def rows(self, rank: int, microbatch: int) -> range:
        """Rows of the global batch that this rank reads as its `microbatch`."""
        start = (self.data_rank(rank) * self.num_microbatches + microbatch) * self.microbatch_sequences
        return range(start, start + self.microbatch_sequences)

    def context_share(self, rank: int) -> ContextShare:
        own = self.coordinates(rank)
        return ContextShare(self.cp_ring, own["cp_ring"], self.cp_ulysses, own["cp_ulysses"])

    def positions(self, rank: int) -> list[int]:
        """Positions of a sequence that this rank has in zig-zag, in the order that it holds them: the full sequence, or its parts
        of two chunks, one from the front and one from the back."""
        return self.context_share(rank).positions(zigzag(self.cp_ring), 0, self.sequence_length)


def tensor_head_degree(tp: int, num_kv_heads: int) -> int:
    """Ranks of `tp` with different key and value heads: as many as divide both."""
    return gcd(tp, num_kv_heads)


def axes_name(axes: tuple[str, ...]) -> str:
    """`("dp_replicate", "dp_shard")` -> `dp_replicate+dp_shard`, the name of a group in programs and ledgers."""
    return "+".join(axes)
