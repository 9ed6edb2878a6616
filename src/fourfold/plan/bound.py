"""Lower bounds of a layout's cost: vectorised over every pipeline and every data parallelism around one shape of a replica.

Time: all blocks' passes divided evenly among the stages, the idle time that the schedule cannot avoid, and what kernels lose to
traffic of gradients and parameters beside them; or that traffic alone; then the optimizer. Memory: parameters, gradients and
optimizer states divided evenly, and the activations of the microbatches that the schedule must hold. Nothing that the simulation
adds is ever negative, so that a layout whose bound is worse than a simulated layout need not be simulated.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import numpy as np

from fourfold.config.layout_section import Outermost
from fourfold.layout import Layout
from fourfold.plan.blocks import BlockPrice, BlockPricer, Way
from fourfold.plan.candidate import BlockShape, Candidate
from fourfold.plan.optimizer_costs import OptimizerCosts
from fourfold.plan.request import Request
from fourfold.plan.space import Arrangements, Column, Flags, Indices, Pipeline, arrangements
from fourfold.program.communicators import fewest_communicators
from fourfold.program.schedule import usual_schedule

EVEN_SHARE = 0.95
"""Least share of the mean over ranks that the fullest rank has: fewer segments than the mean, where the head's are dear."""


class Parts(NamedTuple):
    """Parts of a bound: the pipeline's computation, traffic that this may hide, what comes after; what sparing activations adds to
    the computation."""

    compute: float
    beside: float
    after: float
    spared: float = 0.0

    def around(self, compute: float) -> float:
        """Seconds of the bound with a sharper price of what the pipeline computes."""
        return max(compute + self.spared, self.beside) + self.after


@dataclass(frozen=True)
class Bounds:
    """Bounds of many layouts around one shape, in parallel columns. `compute_seconds`: of the pipeline; `beside_seconds`: traffic
    that it may hide, with the computation that this slows; `after_seconds`: what comes after it. They hold in any order of the
    axes, `outermost` or another (`queue.other_orders`). `states_away`: whether optimizer states lie in the host's memory;
    `states_bytes`: what they take on the device, or would. `overlaps`: whether all-to-alls of experts run behind another
    microbatch, which bounds know nothing of. `lacking_bytes`: what a layout holds too much that fits because each
    block does something else with its activations (`plan/moves/activations.py`), which costs `spared_seconds` at least; else 0."""

    outermost: Outermost
    states_away: bool
    overlaps: bool
    shape: BlockShape
    pipelines: tuple[Pipeline, ...]
    pipeline: Indices
    dp_shard: Indices
    dp_replicate: Indices
    zero: Indices
    seconds: Column
    memory_bytes: Column
    states_bytes: Column
    lacking_bytes: Column
    spared_seconds: Column
    compute_seconds: Column
    beside_seconds: Column
    after_seconds: Column

    def __len__(self) -> int:
        return len(self.seconds)

    @property
    def is_mixed(self) -> Flags:
        """Flags [rows]: whether layouts fit only because of what each block does with its activations."""
        return self.lacking_bytes > 0

    @property
    def kept_bytes(self) -> Column:
        """Bytes [rows] of memory if all blocks do with their activations what the shape says."""
        return self.memory_bytes + self.lacking_bytes

    @property
    def kept_seconds(self) -> Column:
        """Seconds [rows] if all blocks do."""
        plain = np.maximum(self.compute_seconds, self.beside_seconds) + self.after_seconds
        return np.where(self.is_mixed, plain, self.seconds)

    def where(self, fixed: Mapping[str, int | str]) -> "Bounds":
        """Rows that have these values of `Candidate`'s fields."""
        mask = np.ones(len(self), dtype=bool)
        for key, value in fixed.items():
            if key in ("dp_shard", "dp_replicate", "zero"):
                mask &= getattr(self, key) == value
            elif key == "dp":
                mask &= self.dp_shard * self.dp_replicate == value
            elif key in ("pp", "schedule", "virtual_stages"):
                mask &= np.array([getattr(p, key) == value for p in self.pipelines])[self.pipeline]
        if mask.all():
            return self
        columns = {name: getattr(self, name)[mask] for name in _COLUMNS}
        return replace(self, **columns)

    def parts(self, index: int) -> Parts:
        """The parts of one row, in seconds."""
        return Parts(
            float(self.compute_seconds[index]),
            float(self.beside_seconds[index]),
            float(self.after_seconds[index]),
            float(self.spared_seconds[index]),
        )

    def candidate(self, index: int) -> Candidate:
        """The layout of one row."""
        pipeline = self.pipelines[int(self.pipeline[index])]
        return Candidate(
            **vars(self.shape),
            pp=pipeline.pp,
            schedule=pipeline.schedule,
            virtual_stages=pipeline.virtual_stages,
            dp_replicate=int(self.dp_replicate[index]),
            dp_shard=int(self.dp_shard[index]),
            zero=int(self.zero[index]),
            outermost=self.outermost,
            offload_optimizer=self.states_away,
            overlap_experts=self.overlaps,
        )


def may_mix(request: Request) -> bool:
    """Whether it is open what each block does with its activations."""
    return not request.constraints.states("recompute")


def _cheapest(ways: Sequence[Way], size: Column, room: Column) -> Column:
    """Seconds that it costs at least to spare so many bytes, with so much `room` in the host's memory; infinite where all ways
    spare less. The dual of the choice in which blocks could be divided: a price of the host's bytes is added to the ways' seconds,
    and what the room is worth at that price comes off; the best price of a few counts."""
    here = [way.seconds for way in ways if not way.host_bytes]
    prices = {(each - way.seconds) / way.host_bytes for way in ways if way.host_bytes for each in here}
    found = _on_hull(ways, size, 0.0)
    for price in prices:
        if price > 0 and np.isfinite(room).all():
            found = np.maximum(found, _on_hull(ways, size, price) - price * np.maximum(0.0, room))
    return found


def _on_hull(ways: Sequence[Way], size: Column, price: float) -> Column:
    """The lower convex hull of (bytes spared, seconds and the price of the host's bytes), from nothing spared, at so many bytes."""
    hull = [(0.0, 0.0)]
    left = [(way.spared_bytes, way.seconds + price * way.host_bytes) for way in ways]
    while left:
        bytes_before, before = hull[-1]
        nearest = min(left, key=lambda way: ((way[1] - before) / (way[0] - bytes_before), -way[0]))
        hull.append(nearest)
        left = [way for way in left if way[0] > nearest[0]]
    sizes, seconds = zip(*hull, strict=True)
    return np.interp(size, sizes, seconds, right=np.inf)


_SHARED = ("outermost", "states_away", "overlaps", "shape", "pipelines")
_COLUMNS = tuple(field.name for field in fields(Bounds) if field.name not in _SHARED)


class Bounder:
    """Bounds of a request's layouts, shape by shape."""

    def __init__(
        self, request: Request, outermost: Outermost = "pp", blocks: BlockPricer | None = None, mixes: bool = False
    ) -> None:
        """`mixes`: whether layouts that lack memory for their activations count with what it costs at least to spare these."""
        self.request, self.outermost, self._mixes = request, outermost, mixes
        self._pricer = blocks or BlockPricer(request)
        self._costs = OptimizerCosts(request)
        self._slopes: dict[tuple[str, int, int], float] = {}
        self._known: dict[tuple[int, ...], Arrangements | None] = {}

    def bounds(self, shape: BlockShape, floor: BlockPrice | None = None) -> Bounds | None:
        """Bounds of a shape; None where no layout has it. `floor`: a lower bound of its price, for bounds that cost less."""
        table = self.arrangements(shape)
        if table is None:
            return None
        price = floor or self._pricer.price(shape)
        idle = self._idle_seconds(price, price.backward_seconds, table)
        even = table.microbatches * (price.forward_seconds + price.backward_seconds) / table.pp
        compute = self._compute_seconds(price, table, even + idle)
        traffic, after = self._data_seconds(shape, table)
        beside = np.maximum(traffic, even + idle + self._slowed(table) * np.maximum(0.0, traffic - idle))
        after += self._costs.update_seconds(shape, table)
        memory, states = self._memory(shape, price, table)
        if away := bool(self.request.offload_optimizer):
            beside = np.maximum(beside, even + self._costs.copy_seconds(states) - after)
        spared = self._spared_seconds(shape, price, floor is not None, (memory, states), table)
        mixed = np.isfinite(spared) & (spared >= 0) & (memory > self.request.memory_bytes)
        spared, lacking = np.where(mixed, spared, 0.0), np.where(mixed, memory - self.request.memory_bytes, 0.0)
        memory = np.where(mixed, self.request.memory_bytes, memory)
        return Bounds(
            self.outermost,
            away,
            bool(self.request.overlap_experts),
            shape,
            table.pipelines,
            table.pipeline,
            table.dp_shard.astype(int),
            (table.dp / table.dp_shard).astype(int),
            table.zero.astype(int),
            np.maximum(compute + spared, beside) + after,
            memory,
            states,
            lacking,
            spared,
            compute,
            beside,
            after,
        )

    def arrangements(self, shape: BlockShape) -> Arrangements | None:
        """Every pipeline and data parallelism around a shape; None where there is none."""
        key: tuple[int, ...] = (shape.tp * shape.cp, shape.cp, shape.ep * shape.etp, shape.microbatch_sequences)
        if self.request.constraints.limits:
            key += (shape.tp > 1, shape.ep > 1, shape.etp > 1)
        if key not in self._known:
            self._known[key] = arrangements(self.request, shape)
        return self._known[key]

    def _spared_seconds(
        self, shape: BlockShape, price: BlockPrice, is_floor: bool, held: tuple[Column, Column], table: Arrangements
    ) -> Column:
        """Seconds of a step that it costs at least to spare the activations that a device has no room for: those of the cheapest
        mix of ways, as if blocks could be divided. Infinite where all ways together spare too little, or none may be chosen."""
        request, (memory, states) = self.request, held
        lacking = memory - request.memory_bytes
        if not self._mixes or shape.recompute != "none" or not may_mix(request) or not (lacking > 0).any():
            return np.full_like(memory, np.inf)
        ways = (self._pricer.floor_ways if is_floor else self._pricer.ways)(shape)
        left = max(0.0, price.saved_bytes - max((way.spared_bytes for way in ways), default=0.0))
        possible = self._memory(shape, replace(price, saved_bytes=left), table)[0]
        more = 1 + request.software.fragmentation
        share = np.where(table.pp > 1, EVEN_SHARE, 1.0) * more
        along = table.pp / table.in_flight  # from a device to a microbatch of all pipeline ranks

        def least(freed: Column, room: Column) -> Column:
            """`freed`: bytes of states that leave the device; `room`: of the host's memory for activations."""
            found = _cheapest(ways, np.maximum(0.0, lacking - freed) * along / share, room * along)
            return np.where(possible - freed <= request.memory_bytes, found, np.inf)

        stay = least(np.zeros_like(memory), np.full_like(memory, request.host_bytes))
        if request.states_may_leave:
            away = least(more * states, request.host_bytes - states)
            stay = np.where(states <= request.host_bytes, np.minimum(stay, away), stay)
        return stay * table.microbatches / table.pp

    def _compute_seconds(self, price: BlockPrice, table: Arrangements, even: Column) -> Column:
        """Stages divided evenly, and the idle time that the schedule cannot avoid; never less than one microbatch's whole way."""
        headless = self._idle_seconds(price, price.backward_seconds - price.head_seconds, table)
        head = table.microbatches * self._head_rank_seconds(price, table) + headless
        one = price.forward_seconds + price.backward_seconds - price.weight_seconds
        return np.maximum(np.maximum(even, head), one)

    @staticmethod
    def _idle_seconds(price: BlockPrice, backward_seconds: float, table: Arrangements) -> Column:
        """Seconds that a rank idles at least while a microbatch passes the other stages, whose backward takes so long in all. The
        first stage, which has the embedding, may be a block shorter than the mean."""
        pp = table.pp
        total = price.forward_seconds + price.backward_seconds
        stages = pp - 1 - np.minimum(1.0, price.block_seconds * pp * table.virtual_stages / total)
        first = table.idle_forward * price.forward_seconds / pp
        busy = table.idle_backward * backward_seconds / pp - table.idle_weight * price.weight_seconds / pp
        return np.maximum(0.0, stages) * (first + np.maximum(0.0, busy))

    def _slowed(self, table: Arrangements) -> Column:
        """Seconds that computation loses to a second of traffic beside it, which idle ranks alone do not lose: all of it where the
        software overlaps nothing."""
        software = self.request.software
        overlaps = software.overlap_data | (software.overlap_all_reduce & (table.zero == 0) & (table.pp == 1))
        return np.where(overlaps, software.contention / (1 + software.contention), 1.0)

    def _head_rank_seconds(self, price: BlockPrice, table: Arrangements) -> Column:
        """One microbatch on the rank that holds the head: besides it at least a segment, which is the embedding on a V, for each of
        its other stages."""
        others = np.where(table.is_v, price.embedding_seconds, (table.virtual_stages - 1) * price.block_seconds)
        return price.head_seconds + np.where(table.pp > 1, others, 0.0)

    def _data_seconds(self, shape: BlockShape, table: Arrangements) -> tuple[Column, Column]:
        """Reductions of gradients and gathers of parameters beside computation, and the parameter all-gather of ZeRO-1 and 2 after
        it, unless the next step hides it: of dense parameters and of experts, which travel in groups of their own, whichever takes
        longer."""
        experts = shape.ep * shape.etp
        columns: list[tuple[Column, float, int]] = [
            (self._costs.parameters[0] / (table.pp * shape.tp), shape.cp, shape.tp)
        ]
        if self._costs.parameters[1]:
            columns.append((self._costs.parameters[1] / (table.pp * experts), shape.cp * shape.tp / experts, experts))
        both = [self._domain_seconds(numbers, over, stride, table) for numbers, over, stride in columns]
        return np.maximum.reduce([beside for beside, _ in both]), np.maximum.reduce([after for _, after in both])

    def _domain_seconds(self, numbers: Column, over: float, stride: int, table: Arrangements) -> tuple[Column, Column]:
        """Seconds of parameters that dp_shard x `over` ranks share, which lie `stride` apart."""
        zero, microbatches = table.zero, table.microbatches
        gradients, values = numbers * self.request.gradient_bytes, numbers * self.request.element_bytes
        degrees, row = table.degrees
        ranks = [int(degree * over) for degree in degrees]

        def slopes(kind: str) -> Column:
            return np.array([self._slope(kind, n, stride) if n > 1 else 0.0 for n in ranks])[row]

        gather = slopes("all_gather") * values
        per_step = slopes("reduce_scatter") * gradients * np.where(zero >= 2, microbatches, 1.0)
        per_step += gather * np.where(zero == 3, 2 * microbatches, 0.0)
        beside = np.where(zero == 0, slopes("all_reduce") * gradients, per_step)
        waits = (zero > 0) & (zero < 3) & (not self.request.software.overlap_param_gather)
        return beside, np.where(waits, gather, 0.0)

    def _slope(self, kind: str, ranks: int, stride: int) -> float:
        """Seconds a byte of a collective over ranks that far apart: only its bandwidth, for messages are many or few."""
        key = (kind, ranks, stride)
        if key not in self._slopes:
            layout = Layout(
                pp=1, dp_replicate=1, dp_shard=ranks, cp=1, tp=stride, zero=0, schedule=usual_schedule(1).name,
                microbatch_sequences=1, num_microbatches=1, sequence_length=1, recompute=(), prefetch=1,
            )  # fmt: skip
            prices = self.request.prices(layout)
            small, large = (prices.collective(kind, "dp_shard", size) for size in (10**9, 2 * 10**9))
            self._slopes[key] = (large - small) / 1e9
        return self._slopes[key]

    def _memory(self, shape: BlockShape, price: BlockPrice, table: Arrangements) -> tuple[Column, Column]:
        """Bytes that a device holds, and those of its optimizer states, which are among them unless they lie in the host's memory
        and fit there."""
        request, pp, zero, numel = self.request, table.pp, table.zero, self._costs.shard_numel
        everywhere = np.ones(len(pp), dtype=bool)
        unsharded = numel(shape, pp, np.ones_like(pp), ~everywhere)
        shard = numel(shape, pp, table.dp_shard * shape.cp, everywhere)
        values = np.where(zero == 3, shard, unsharded) * request.element_bytes
        states = self._costs.state_bytes(shape, table)
        leave = states <= request.host_bytes if request.offload_optimizer else ~everywhere
        gradients = np.where(zero >= 2, shard, unsharded) * request.gradient_bytes
        software = request.software
        block = numel(shape, np.full_like(pp, request.model.num_layers + 2), np.ones_like(pp), ~everywhere)
        units = 1 + min(1, request.kept.prefetch)
        gathered = np.where(zero == 3, units * request.element_bytes, 0) + np.where(
            zero >= 2, request.gradient_bytes, 0
        )
        share = np.where(pp > 1, EVEN_SHARE, 1.0)
        each = price.saved_bytes / pp
        full = table.in_flight * each
        # Gradients are made in the first backward: of few microbatches, when the most activations are held there are none yet.
        steady = table.microbatches > table.in_flight + 1
        peak = np.where(steady, gradients + full, np.maximum(full, gradients + full - each))
        transient = np.where(steady, price.transient_bytes + 0.9 * block * gathered, 0.0)
        held = share * (values + np.where(leave, 0.0, states) + peak) + transient
        connected = fewest_communicators(request.transport, request.devices, pp, shape.tp) * software.communicator_bytes
        return held * (1 + software.fragmentation) + software.context_bytes + connected, states
