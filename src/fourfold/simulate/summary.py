"""The figures of a predicted step: rates, utilisation, where the seconds went, what the network carried, why it takes so long.

Communication is told by the axes of its groups, and by the directions of the link to the host. The exposed time of a segment's own
collectives is divided among their axes by their seconds.
"""

from dataclasses import dataclass
from functools import cached_property

from fourfold.cost.prices import Prices
from fourfold.hardware import Device, Level
from fourfold.model.counts import step_flops_per_token
from fourfold.model.work import Collective, CollectiveKind
from fourfold.program.instruction import Op
from fourfold.program.opcode import HOST_STREAMS
from fourfold.program.pattern import Pattern
from fourfold.simulate.critical_path import CriticalPath, critical_path
from fourfold.simulate.layer_kinds import LayerCosts, layer_costs
from fourfold.simulate.prediction import StepPrediction
from fourfold.simulate.step import IDLE, Simulation, exposed_axes, mean_seconds

BYTES, BUSY, EXPOSED = "sent_bytes", "busy_seconds", "exposed_seconds"
Sums = dict[tuple[str, str], float]
ONCE = "the software, once a step"
OF_GROUPS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all")
"""Kinds of collectives that a whole group enters."""
MEMORY_SHARE = 0.95
"""Share of a device's memory that a layout may fill: the rest is the driver's, and what an allocator cannot use."""
IMBALANCE = "imbalance"
"""Time that a rank waits for stages which have more to compute than its own, and would in a pipeline without end."""
HOST_BOUND_SHARE = 0.01
"""Share of a step from which a device's wait for its host is worth a word."""


def traffic(simulation: Simulation) -> list[Sums]:
    """Traffic of a device of every pipeline rank: by (axes, one of BYTES, BUSY, EXPOSED). A transfer counts where it is sent;
    while it is on its way, whoever waits for it is exposed to it, but not before."""
    return [_rank_traffic(simulation, rank) for rank in range(len(simulation.programs))]


def _rank_traffic(simulation: Simulation, rank: int) -> Sums:
    durations, prices = simulation.durations, simulation.durations.prices
    times, steps = simulation.times.ranks[rank], simulation.programs[rank].steps
    sums: Sums = {}

    def add(axes: str, what: str, amount: float) -> None:
        if amount > 0:
            sums[axes, what] = sums.get((axes, what), 0.0) + amount

    for pattern, microbatches in steps.microbatches.items():
        if pattern.op.is_compute:
            continue
        number = len(microbatches)
        for collective in pattern.work.collectives:
            add(collective.axes, BYTES, number * collective.sent_bytes)
        add(pattern.stream, BYTES, number * pattern.work.host_bytes)
        if not pattern.op.is_transfer:
            for axes, seconds in _seconds(pattern, prices).items():
                add(axes, BUSY, number * seconds)
    sent = (stream for index, stream in times.streams.items() if steps.steps[index][0].op.is_send)
    add("pp", BUSY, sum(stop - begin for begin, stop in sent))
    for index, ((step, _), start, end) in enumerate(zip(steps.steps, times.starts, times.ends, strict=True)):
        if end <= start or step.op.is_compute:
            continue
        joined = times.joins[index] if step.op is Op.WAIT else index
        begin, stop = times.streams.get(joined, (start, end))
        waited = min(end, stop) - max(start, begin)
        started, _ = steps.steps[joined]
        if started.op.is_transfer:
            add("pp", EXPOSED, waited)
            continue
        parts = _seconds(started, prices)
        total = sum(parts.values())
        for axes, seconds in parts.items():
            add(axes, EXPOSED, seconds / total * min(waited, total) if total else 0.0)
    for alike in simulation.passes[rank]:
        number, cost = alike.number, durations.phase(alike.step)
        for collective in alike.step.collectives:
            add(collective.axes, BYTES, number * collective.sent_bytes)
        total = sum(cost.communication.values())
        for axes, seconds in cost.communication.items():
            add(axes, BUSY, number * seconds)
            add(axes, EXPOSED, number * cost.exposed * seconds / total if total else 0.0)
    return sums


def level_bytes(simulation: Simulation) -> list[dict[tuple[str, int], float]]:
    """Bytes that a device of every pipeline rank sends through each level of the network: by (axes, level), 0 the innermost."""
    return [_rank_level_bytes(simulation, rank) for rank in range(len(simulation.programs))]


def _rank_level_bytes(simulation: Simulation, rank: int) -> dict[tuple[str, int], float]:
    prices, sums = simulation.durations.prices, dict[tuple[str, int], float]()
    for pattern, microbatches in simulation.programs[rank].steps.microbatches.items():
        for each in pattern.work.collectives:
            size = len(microbatches) * each.sent_bytes
            for level, share in enumerate(sent_shares(prices, rank, pattern, each) if size else ()):
                if share:
                    sums[each.axes, level] = sums.get((each.axes, level), 0.0) + share * size
    return sums


def sent_shares(prices: Prices, rank: int, pattern: Pattern, collective: Collective) -> tuple[float, ...]:
    """The shares of what a device of a pipeline rank sends that go through each level of the network: a message's to its peer, a
    collective's over its axes."""
    if pattern.op.is_send and pattern.peer is not None:
        return prices.transfer_shares(rank, pattern.peer)
    return prices.level_shares(collective.kind, collective.axes)


def collective_counts(simulation: Simulation) -> list[dict[tuple[str, CollectiveKind, int], float]]:
    """How many collectives a device of every pipeline rank enters: by (axes, kind, bytes of the buffer). A message between two
    ranks is none."""
    return [_rank_collectives(simulation, rank) for rank in range(len(simulation.programs))]


def _rank_collectives(simulation: Simulation, rank: int) -> dict[tuple[str, CollectiveKind, int], float]:
    found = dict[tuple[str, CollectiveKind, int], float]()
    for pattern, microbatches in simulation.programs[rank].steps.microbatches.items():
        for each in pattern.work.collectives:
            if each.kind in OF_GROUPS and each.sent_bytes:
                key = each.axes, each.kind, each.bytes
                found[key] = found.get(key, 0.0) + len(microbatches)
    return found


def _seconds(step: Pattern, prices: Prices) -> dict[str, float]:
    """Seconds of an instruction's collectives, by axes; of a copy, by its direction."""
    if step.op.is_host_copy:
        return {step.stream: prices.host_copy(step.work.host_bytes)}
    seconds: dict[str, float] = {}
    for each in step.work.collectives:
        seconds[each.axes] = seconds.get(each.axes, 0.0) + prices.collective(each.kind, each.axes, each.bytes)
    return seconds


@dataclass(frozen=True)
class KindCount:
    """Collectives of one kind in a step, on average over devices: how many, and the buffer of those that carry the most bytes."""

    kind: CollectiveKind
    number: float
    buffer_bytes: int


@dataclass(frozen=True)
class AxesTraffic:
    """Communication of the groups along `axes`, or of a direction of the link to the host, on average over devices: bytes sent,
    seconds on the link, seconds waited for. `levels`: of links that they cross, innermost first. `ranks`: of a group, at most
    `ranks_per_node` of them in a node; 0 of the link to the host. `collectives`: by kind, those that carry most bytes first."""

    axes: str
    levels: tuple[str, ...]
    sent_bytes: float
    busy_seconds: float
    exposed_seconds: float
    ranks: int = 0
    ranks_per_node: int = 0
    collectives: tuple[KindCount, ...] = ()


@dataclass(frozen=True)
class LinkTraffic:
    """Bytes that a device sends through one level of the network in a step, on average over devices: bytes by axes, most first.
    `full_seconds`: how long that fills the device's links of the level at their stated rate, in one direction."""

    level: Level
    sent_bytes: dict[str, float]

    @property
    def total_bytes(self) -> float:
        """Bytes that a device sends through the level in a step."""
        return sum(self.sent_bytes.values())

    @property
    def full_seconds(self) -> float:
        """Seconds that they take at the level's full bandwidth."""
        return self.total_bytes / self.level.device_bytes_per_second


@dataclass(frozen=True)
class StepSummary:
    """Figures of a step, for all of its microbatches. `memory_share`: of a device's memory that it may fill."""

    step: StepPrediction
    num_microbatches: int
    memory_share: float = MEMORY_SHARE

    @property
    def seconds(self) -> float:
        """Seconds of a step."""
        return self.step.seconds

    @property
    def devices(self) -> int:
        """Number of devices that the layout uses."""
        return self.step.simulation.spec.layout.world_size

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        layout = self.step.simulation.spec.layout
        return self.num_microbatches * layout.microbatch_sequences * layout.data_degree * layout.sequence_length

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second of all devices together."""
        return self.tokens / self.seconds

    @property
    def device(self) -> Device:
        """The cluster's device."""
        return self.step.simulation.prices.cluster.device

    @property
    def peak_flops_per_second(self) -> float:
        """FLOP/s of one device, in the format of the matmuls."""
        return self.device.peak(self.step.simulation.prices.matmul_format)

    @cached_property
    def layers(self) -> tuple[LayerCosts, ...]:
        """The different layers, and what each costs."""
        return layer_costs(self.step.simulation)

    @cached_property
    def flops_per_token(self) -> float:
        """FLOPs that a token needs, recomputation aside: as in `model.counts.step_flops_per_token`, and in a run's
        `metrics.jsonl`."""
        spec = self.step.simulation.spec
        return step_flops_per_token(spec.model, spec.layout.sequence_length)

    @property
    def model_flops_per_second(self) -> float:
        """Model FLOP/s of one device."""
        return self.flops_per_token * self.tokens_per_second / self.devices

    @property
    def mfu(self) -> float:
        """Model FLOPs utilisation (Chowdhery et al. 2022): what tokens need / (seconds x devices x peak)."""
        return self.model_flops_per_second / self.peak_flops_per_second

    @cached_property
    def executed_flops(self) -> float:
        """FLOPs of all devices in a step: what every instruction declares, recomputation and attention's second look at its
        scores included."""
        simulation = self.step.simulation
        patterns = (each for program in simulation.programs for each in program.steps.microbatches.items())
        once = sum(pattern.work.flops * len(microbatches) for pattern, microbatches in patterns)
        layout = simulation.spec.layout
        return once * (self.devices // layout.pp) * self.num_microbatches / layout.num_microbatches

    @property
    def hfu(self) -> float:
        """Hardware FLOPs utilisation: what is executed / (seconds x devices x peak)."""
        return self.executed_flops / (self.seconds * self.devices * self.peak_flops_per_second)

    @cached_property
    def spent(self) -> list[dict[str, float]]:
        """Seconds of every pipeline rank by what they went into; each sums to `seconds`. A rank that waits for other stages waits
        for imbalance as long as the busiest rank computes longer than itself, and else for the pipeline to fill, to drain, and to
        move on."""
        once = self.step.simulation.prices.software.step_seconds
        ranks = self.step.along(lambda simulation: simulation.spent)
        most = max(map(_computing, ranks))
        return [_with_imbalance(rank, most - _computing(rank), once) for rank in ranks]

    @property
    def bubble_fraction(self) -> float:
        """The share of all devices' time that they wait for the pipeline to fill and to drain."""
        return self._share(IDLE)

    @property
    def imbalance_fraction(self) -> float:
        """The share of all devices' time that they wait because other ranks have more to compute."""
        return self._share(IMBALANCE)

    @property
    def waiting_fraction(self) -> float:
        """The share of all devices' time that they wait for other stages, whatever for."""
        return self.bubble_fraction + self.imbalance_fraction

    @property
    def busiest_rank(self) -> int:
        """The pipeline rank that computes longest."""
        computing = [_computing(rank) for rank in self.spent]
        return max(range(len(computing)), key=computing.__getitem__)

    def _share(self, kind: str) -> float:
        return sum(rank.get(kind, 0.0) for rank in self.spent) / (len(self.spent) * self.seconds)

    @cached_property
    def exposed_shares(self) -> dict[str, float]:
        """The share of all devices' time that they wait for collectives, by the axes of their groups, most first. Transfers
        between stages count as pipeline bubble."""
        sums: dict[str, float] = {}
        for rank in self.spent:
            for kind, seconds in rank.items():
                if (axes := exposed_axes(kind)) is not None:
                    sums[axes] = sums.get(axes, 0.0) + seconds / (len(self.spent) * self.seconds)
        return dict(sorted(sums.items(), key=lambda item: -item[1]))

    @property
    def time_shares(self) -> dict[str, float | dict[str, float]]:
        """Shares of all devices' time, which sum to 1: computing, waiting for collectives by axes, the pipeline bubble,
        imbalance."""
        exposed, bubble, uneven = self.exposed_shares, self.bubble_fraction, self.imbalance_fraction
        compute = 1 - sum(exposed.values()) - bubble - uneven
        return {"compute": compute, "exposed": exposed, "bubble": bubble, "imbalance": uneven}

    @cached_property
    def host_bound(self) -> dict[str, float]:
        """Shares of all devices' time that they wait for their hosts, by the operation that they wait for, most first; none of
        a hundredth of the step or less in all."""
        mean = mean_seconds(self.step.along(lambda simulation: simulation.host_bound))
        if sum(mean.values()) <= HOST_BOUND_SHARE * self.seconds:
            return {}
        return {name: seconds / self.seconds for name, seconds in sorted(mean.items(), key=lambda item: -item[1])}

    @cached_property
    def communication(self) -> list[AxesTraffic]:
        """By axes, the most exposed first."""
        ranks = self.step.along(traffic)
        mean = {key: sum(rank.get(key, 0.0) for rank in ranks) / len(ranks) for rank in ranks for key in rank}
        prices = self.step.simulation.prices
        found = []
        for axes in dict.fromkeys(axes for axes, _ in mean):
            sent, busy, exposed = (mean.get((axes, what), 0.0) for what in (BYTES, BUSY, EXPOSED))
            here = axes in HOST_STREAMS
            levels, (size, in_node) = ((), (0, 0)) if here else (prices.levels(axes), prices.group_ranks(axes))
            found.append(AxesTraffic(axes, levels, sent, busy, exposed, size, in_node, self._kinds(axes)))
        return sorted(found, key=lambda each: (-each.exposed_seconds, -each.busy_seconds, each.axes))

    def _kinds(self, axes: str) -> tuple[KindCount, ...]:
        carried: dict[CollectiveKind, list[tuple[float, float, int]]] = {}
        for (found, kind, size), number in self._collectives.items():
            if found == axes:
                carried.setdefault(kind, []).append((number * size, number, size))
        most = sorted(carried.items(), key=lambda item: -sum(total for total, _, _ in item[1]))
        return tuple(KindCount(kind, sum(number for _, number, _ in each), max(each)[2]) for kind, each in most)

    @cached_property
    def _collectives(self) -> dict[tuple[str, CollectiveKind, int], float]:
        """How many collectives of a device by (axes, kind, bytes of the buffer), mean over pipeline ranks."""
        ranks, sums = self.step.along(collective_counts), dict[tuple[str, CollectiveKind, int], float]()
        for rank in ranks:
            for key, number in rank.items():
                sums[key] = sums.get(key, 0.0) + number / len(ranks)
        return sums

    @cached_property
    def links(self) -> list[LinkTraffic]:
        """By level of the network, innermost first."""
        ranks = self.step.along(level_bytes)
        sums = [dict[str, float]() for _ in self.step.simulation.prices.cluster.levels]
        for rank in ranks:
            for (axes, level), size in rank.items():
                sums[level][axes] = sums[level].get(axes, 0.0) + size / len(ranks)
        return [
            LinkTraffic(level, dict(sorted(sent.items(), key=lambda item: -item[1])))
            for level, sent in zip(self.step.simulation.prices.cluster.levels, sums, strict=True)
        ]

    @cached_property
    def path(self) -> dict[str, float]:
        """Seconds on the critical path by reason, most first; they sum to `seconds`."""
        last = self.step.simulation
        found = self.step.along(lambda each: [(self._critical if each is last else critical_path(each)).reasons])[0]
        once = self.step.simulation.prices.software.step_seconds
        if once:
            found[ONCE] = once
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    @property
    def path_crossings(self) -> int:
        """How often the critical path goes from one pipeline rank to another, in the microbatches simulated."""
        return self._critical.crossings

    @cached_property
    def _critical(self) -> CriticalPath:
        """The critical path of the simulation that the step ends with; asked for its reasons and for its crossings."""
        return critical_path(self.step.simulation)

    @property
    def host_lacks(self) -> int:
        """Bytes that one device's share of its host's memory lacks for the step; 0 where the cluster does not say it."""
        share = self.step.simulation.prices.cluster.host_memory_bytes_per_device
        return 0 if share is None else max(0, self.step.host_bytes - share)

    @property
    def fits(self) -> bool:
        """Whether the device holds the step, and the host what it takes over."""
        return max(self.step.device_bytes) <= self.memory_limit and not self.host_lacks

    @property
    def memory_limit(self) -> int:
        """Bytes that a device may hold."""
        return int(self.device.memory_bytes * self.memory_share)


def _computing(spent: dict[str, float]) -> float:
    """Seconds in which a rank waits for nobody."""
    return sum(
        seconds for kind, seconds in spent.items() if kind not in (IDLE, IMBALANCE) and exposed_axes(kind) is None
    )


def _with_imbalance(spent: dict[str, float], less: float, once: float) -> dict[str, float]:
    """A rank's seconds, with imbalance beside the bubble. `less`: seconds that it computes less than the busiest."""
    found = dict(spent)
    idle = found.pop(IDLE, 0.0)
    uneven = min(idle, less)
    shown = {IDLE: idle - uneven, IMBALANCE: uneven, ONCE: once}
    return found | {kind: seconds for kind, seconds in shown.items() if seconds > 0}
