"""Everything that a price depends on beside the program: the cluster, fitted constants, the software, number formats.

`share_left` is the share of causal attention's work that masks leave.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import exp, sqrt

from fourfold.cost.collectives import (
    Links,
    Span,
    Spared,
    collective_seconds,
    level_between,
    level_shares,
    network_seconds,
    span_of,
    transfer_seconds,
)
from fourfold.cost.fitted import fitted
from fourfold.cost.kernels import Kernels, kernel_times, memory_seconds
from fourfold.cost.software import SoftwareProfile
from fourfold.hardware import Cluster
from fourfold.layout import Layout
from fourfold.model.work import Attention, Elementwise, Gemm
from fourfold.program.schedule import find_schedule

MERGED_SHARE = 0.5
"""Share of expert dispatch that merged microbatches hide: runs of one source with it and without are 8 to 18 % apart, a third to
more than all of what hiding all of it would save (Megatron, DeepSeek-V3 of 14 layers; Megatron Bridge, Qwen3-30B)."""
OVERLAPPED_SHARE = 0.5
"""Share of a collective of tensor parallelism that overlapping hides, of what its matmul could hide: runs of one source with it and
without are 4 to 16 % apart, half of what hiding all would save (torchtitan's asynchronous tensor parallelism, Llama 3 8B and 70B on
H100: 1.04 to 1.16 times as fast, median 1.10; predicted 1.08 to 1.10)."""
SAMPLED = 4
"""Number of shards and of replicas whose pipelines are looked at."""


def masked_share(sequence_length: int, mean_tokens: float) -> float:
    """Share of the pairs of a causal window that lie within one document, where lengths of documents are spread as if each token
    ended one with the same chance (geometric, of that mean m).

    Two tokens d apart are of one document with the chance exp(-d / m); over a window of s tokens, as integrals,
    sum (s - d) exp(-d / m) / sum (s - d) = 2 x (1 - x (1 - exp(-1 / x))) with x = m / s.
    """
    x = mean_tokens / sequence_length
    if x > 1e4:  # the next term of the series: the difference of two large numbers would be lost
        return 1 - 1 / (3 * x)
    return min(1.0, 2 * x * (1 - x * (1 - exp(-1 / x))))


@dataclass(frozen=True)
class Windows:
    """Attention to the last `tokens` alone, in the part `layers` of a model's layers."""

    tokens: int
    layers: float = 1.0

    def share(self, sequence_length: int) -> float:
        """Share of the pairs of causal attention that windows leave: 1 - (1 - w / s)^2 in a layer that has them, as integrals."""
        hidden = (1 - min(1.0, self.tokens / sequence_length)) ** 2
        return 1 - self.layers * hidden


def share_left(sequence_length: int, document_tokens: float | None, windows: Windows | None = None) -> float:
    """Share of causal attention's work that documents of that mean length (None: one) and windows leave: the less of both."""
    documents = 1.0 if document_tokens is None else masked_share(sequence_length, document_tokens)
    return min(documents, 1.0 if windows is None else windows.share(sequence_length))


def _is_dispatch(kind: str, axes: str) -> bool:
    """Whether a collective brings tokens to experts, or back; heads of sequences change places by an all-to-all too."""
    return kind == "all_to_all" and axes == "ep"


@dataclass(frozen=True)
class Prices:
    """Seconds of kernels, collectives and transfers for the ranks of `layout` on `cluster`.

    `dtype`: the compute format; `gemm_dtype`: that of matmuls alone, where the software converts on its way (fp8). `recipe`: of
    the matmuls that state one, whose operands the program quantizes; None: there are none. `link_share`: of each
    level's bandwidth that collectives reach. `masked_share`: of causal attention's work that masks leave. `top_k`: experts
    of a token; `top_nodes`: on so many nodes at most (0: on any), as where experts are chosen in groups (DeepSeek-AI 2024, 2.1.2).
    """

    cluster: Cluster
    layout: Layout
    kernels: Kernels = field(default_factory=Kernels)
    software: SoftwareProfile = field(default_factory=SoftwareProfile)
    dtype: str = "bf16"
    gemm_dtype: str = "bf16"
    element_bytes: int = 2
    link_share: float = 0.8
    masked_share: float = 1.0
    top_k: int = 1
    top_nodes: int = 0
    links: Links = field(default_factory=lambda: fitted().link_constants)
    recipe: str | None = None

    @cached_property
    def _software_links(self) -> Links:
        """The links as the software's network is: its hops."""
        return replace(self.links, network_hop_seconds=self.links.network_hop_seconds * self.software.network_hops)

    @property
    def _link_share(self) -> float:
        return self.link_share * self.software.link_speed

    @cached_property
    def _collectives(self) -> dict[tuple[str, str, int], float]:
        return {}

    @cached_property
    def _transfers(self) -> dict[tuple[int, int, int], float]:
        return {}

    @cached_property
    def _hosts(self) -> dict[str, float]:
        return {}

    @cached_property
    def _spans(self) -> dict[str, Span]:
        return {}

    @cached_property
    def _kernel(self) -> Callable[[Gemm | Attention | Elementwise], float]:
        return kernel_times(self.cluster.device, self.kernels, self.gemm_dtype, self.dtype, self.element_bytes)

    @property
    def matmul_format(self) -> str:
        """The format that matmuls are multiplied in, but the head's."""
        return self.gemm_dtype if self.recipe is None else "fp8"

    @cached_property
    def plain(self) -> "Prices":
        """Prices with every matmul in the compute format, as the head's are."""
        return self if self.gemm_dtype == self.dtype else replace(self, gemm_dtype=self.dtype)

    def kernel(self, item: Gemm | Attention | Elementwise) -> float:
        """Seconds of one kernel on the device."""
        seconds = self._kernel(item)
        return seconds * self.masked_share if isinstance(item, Attention) else seconds

    def collective(self, kind: str, axes: str, size: int) -> float:
        """Seconds of one collective over the groups along `axes`, on a buffer of `size` bytes."""
        key = (kind, axes, size)
        found = self._collectives.get(key)
        if found is None:
            found = self._dispatch(axes, size) if _is_dispatch(kind, axes) else self._group(kind, axes, size)
            self._collectives[key] = found
        return found

    def network(self, kind: str, axes: str, size: int) -> float:
        """Seconds of that in which the device's port to the network is full; 0 where the group stays in a node."""
        span = self._span(axes)
        spared = self._spared(span) if _is_dispatch(kind, axes) else (0.0, 0.0)
        return network_seconds(kind, size / self._link_share, span, self.cluster, self._software_links, spared)

    def leaves_node(self, axes: str) -> bool:
        """Whether groups along `axes` cross the network."""
        span = self._span(axes)
        return span.size > span.members[0]

    def group_ranks(self, axes: str) -> tuple[int, int]:
        """Ranks of a group along `axes`, and how many of them lie in one node at most."""
        span = self._span(axes)
        return span.size, span.members[0]

    def _span(self, axes: str) -> Span:
        found = self._spans.get(axes)
        if found is None:
            found = self._spans[axes] = span_of(self.layout, tuple(axes.split("+")), self.cluster)
        return found

    def levels(self, axes: str) -> tuple[str, ...]:
        """Names of the interconnect levels that groups along `axes` cross, innermost first."""
        members = (1, *self._span(axes).members)
        return tuple(
            level.name
            for level, inner, outer in zip(self.cluster.levels, members, members[1:], strict=False)
            if outer > inner
        )

    def level_shares(self, kind: str, axes: str) -> tuple[float, ...]:
        """How what groups along `axes` send divides among the levels, innermost first."""
        return level_shares(kind, self._span(axes))

    def transfer_shares(self, source: int, target: int) -> tuple[float, ...]:
        """Shares of the levels in messages from one pipeline rank to another, over the pipelines that are looked at."""
        crossed = [level_between(ranks[source], ranks[target], self.cluster) for ranks in self._pipelines]
        return tuple(crossed.count(level) / len(crossed) for level in range(len(self.cluster.levels)))

    def _group(self, kind: str, axes: str, size: float, spared: Spared = (0.0, 0.0)) -> float:
        size /= self._link_share
        return collective_seconds(kind, size, self._span(axes), self.cluster, self._software_links, spared)

    def _dispatch(self, axes: str, size: float) -> float:
        """Tokens to their experts, or back."""
        etp, software = self.layout.etp, self.software
        spared = self._spared(self._span(axes))
        if not software.dispatch_first or etp == 1:
            return self._group("all_to_all", axes, size, spared)
        return self._group("all_to_all", axes, size / etp, spared) + self._group("all_gather", "etp", size)

    def _spared(self, span: Span) -> Spared:
        """Shares of a dispatch that the software need not send."""
        if not self.software.dispatches_once:
            return 0.0, 0.0
        nodes = -(-span.size // span.members[0])
        return spared_copies(span.size, self.top_k), spared_copies(nodes, self.top_k, self.top_nodes)

    @cached_property
    def paired_share(self) -> float:
        """How much of what goes to experts runs beside the computation of another microbatch."""
        if self.software.overlap_experts and find_schedule(self.layout.schedule).pairs_passes:
            return 1.0
        return MERGED_SHARE if self.software.merged_experts else 0.0

    @property
    def chosen_kernels(self) -> dict[str, str]:
        """Words for the kernels and what runs beside them, by key (`KernelChoice`); none for fourfold, whose program has them."""
        words = dict(self.software.kernels)
        return words | {"ep_collectives": "overlapped" if self.paired_share else "exposed"} if words else words

    def host(self, axes: str) -> float:
        """Seconds in which the host starts one collective inside a segment."""
        found = self._hosts.get(axes)
        if found is None:
            found, software = self.software.host_collective_seconds, self.software
            if software.host_crowded_seconds:
                stages, span = self._span("pp"), self._span(axes)
                if stages.size > stages.members[0] and span.size > 1:
                    blocks = -(-span.size // span.members[0])
                    found += software.host_crowded_seconds * span.size * sqrt(blocks)
            self._hosts[axes] = found
        return found

    def transfer(self, size: int, source: int, target: int) -> float:
        """Seconds of a message between two pipeline ranks; all ranks of a stage send theirs at once, and the farthest is waited
        for."""
        key = (source, target, size)
        found = self._transfers.get(key)
        if found is None:
            senders, scaled = self.layout.world_size // self.layout.pp, size / self._link_share
            found = max(
                transfer_seconds(scaled, ranks[source], ranks[target], self.cluster, senders, self._software_links)
                for ranks in self._pipelines
            )
            self._transfers[key] = found
        return found

    @cached_property
    def _pipelines(self) -> tuple[tuple[int, ...], ...]:
        """Ranks of the stages of pipelines that lie in different ways on the cluster's blocks, of the first few."""
        layout, found = self.layout, dict[tuple[tuple[int, ...], ...], tuple[int, ...]]()
        last = {"cp": layout.cp - 1, "tp": layout.tp - 1}
        for shard in range(min(layout.dp_shard, SAMPLED)):
            for replica in range(min(layout.dp_replicate, SAMPLED)):
                for inner in ({"cp": 0, "tp": 0}, last):
                    place = {"pp": 0, "dp_replicate": replica, "dp_shard": shard, **inner}
                    ranks = layout.group_of(layout.rank_of(place), ("pp",))
                    blocks = tuple(
                        tuple(rank // level.devices - ranks[0] // level.devices for rank in ranks)
                        for level in self.cluster.levels
                    )
                    found.setdefault(blocks, ranks)
        return tuple(found.values())

    def host_copy(self, size: float) -> float:
        """Seconds of a copy of `size` bytes between a device and its host's memory; each direction has a link of its own."""
        return size / self.cluster.device.host_link_bytes_per_second

    @property
    def copies_share_memory(self) -> bool:
        """Whether copies to the host's memory take from kernels, as on a processor, whose memory it is."""
        return self.cluster.device.units is None

    def memory(self, size: float) -> float:
        """Seconds in which the device's memory moves `size` bytes."""
        return self.kernels.launch_seconds + memory_seconds(size, self.cluster.device, self.kernels)

    def update(self, size: float) -> float:
        """Seconds of the update of one unit's parameters, in which one kernel would move `size` bytes: its kernels one after the
        other, or their launches by the host."""
        if not size:
            return 0.0
        software, number = self.software, self.software.update_launches
        moved = self.memory(size * software.update_passes) + (number - 1) * self.kernels.launch_seconds
        return max(moved, (number - 1) * software.host_launch_seconds)


def spared_copies(places: int, top_k: int, at_most: int = 0) -> float:
    """Share of a token's copies for `top_k` experts, each on one of `places` ranks or nodes, that need not be sent where each of
    those gets it once. `at_most`: it has experts on so many of them (0: on any)."""
    if places == 1:
        return 0.0
    chance = 1 - (1 - 1 / places) ** top_k
    reached = (places - 1) * (min(chance, at_most / places) if at_most else chance)
    return 1 - reached / (top_k * (1 - 1 / places))
