"""Ranks on their way through their programs: what they start, what they join, and where they meet."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from fourfold.config import UserError
from fourfold.cost.prices import Prices
from fourfold.layout import Layout
from fourfold.program import Program
from fourfold.program.instruction import COMPUTE_OPS, RECEIVES, SENDS, STARTS, Instruction, Op
from fourfold.simulate.durations import Durations

Place = tuple[int, int]
"""A pipeline rank and the index of an instruction of its."""


@dataclass
class RankTimes:
    """Times of one rank: when each instruction had its turn and when the rank went on; of what runs beside computation or with
    other ranks (collectives, transfers), from when to when it ran.

    `causes[i]`: what instruction i waited for, if for anything but the one before it: where several ranks meet, the one that came
    last. `joins[i]`: what the WAIT at i joined.
    """

    starts: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    streams: dict[int, tuple[float, float]] = field(default_factory=dict)
    causes: dict[int, Place] = field(default_factory=dict)
    joins: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Times:
    """Times of all pipeline ranks. `makespan`: seconds from the first instruction to the last rank's end, streams included."""

    ranks: tuple[RankTimes, ...]
    makespan: float


class Rank:
    """A rank on its way through its program."""

    def __init__(self, index: int, program: Program) -> None:
        self.index = index
        self.steps = program.steps.instructions
        self.at = 0
        self.now = 0.0
        self.times = RankTimes()
        self.free: dict[str, float] = {}
        self.pending: dict[str, float | Rendezvous] = {}
        self.origin: dict[str, Place] = {}
        self.in_flight = 0.0
        self.network_free = 0.0
        self.on_network: dict[str, int] = {}
        self.ahead = 0.0
        self.ordinals: dict[str, int] = {}


class Rendezvous:
    """A transfer between two ranks, or what all pipeline ranks enter: known when everyone is there."""

    __slots__ = ("arrived", "end", "expected", "last", "start")

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self.arrived: list[tuple[float, int, int]] = []
        self.start = self.end = -1.0
        self.last: Place | None = None


class SimulationState:
    """All ranks of a step, and what is between them."""

    def __init__(self, programs: Sequence[Program], durations: Durations, layout: Layout, prices: Prices) -> None:
        self.ranks = [Rank(index, program) for index, program in enumerate(programs)]
        self.durations = durations
        self.prices = prices
        self.layout = layout
        self._rendezvous: dict[object, Rendezvous] = {}
        self._links: dict[tuple[int, int], float] = {}
        self._sides: dict[tuple[int, int, bool], int] = {}

    def times(self) -> Times:
        """When all ranks are at their end."""
        ends = [max([rank.now, *rank.free.values()]) for rank in self.ranks]
        return Times(tuple(rank.times for rank in self.ranks), max([*ends, *self._links.values()]))

    def take(self, rank: Rank) -> float | None:
        """Begins the rank's next instruction. Returns the seconds that the rank itself works on it, on idle links; None where it
        must wait for another rank."""
        step = rank.steps[rank.at]
        op = step.op
        if op in COMPUTE_OPS:
            return self.durations.compute(step)
        if op is Op.WAIT:
            return 0.0 if self.join(rank) else None
        if op in SENDS or op in RECEIVES:
            self.post(rank)
        elif op in STARTS:
            self.start(rank)
        elif not step.collectives:
            return self.durations.local(step)
        elif not self.enter(rank):
            return None
        return 0.0

    def join(self, rank: Rank) -> bool:
        """The rank's WAIT. False: what it waits for is not known to end yet. Raises `UserError` where it was not started."""
        index, step = rank.at, rank.steps[rank.at]
        handle = step.handle or ""
        if handle not in rank.pending:
            raise UserError(f"pp {rank.index} at #{index} `{step.short}` joins what has not been started")
        end, origin = rank.pending[handle], rank.origin[handle]
        if isinstance(end, Rendezvous):
            if end.end < 0:
                return False
            if end.end > rank.now and end.last is not None and end.last[0] != rank.index:
                rank.times.causes[index] = end.last
            end = end.end
        if end > rank.now:
            rank.times.causes.setdefault(index, origin)
            rank.now = end
        del rank.pending[handle]
        rank.on_network.pop(handle, None)
        rank.times.joins[index] = origin[1]
        return True

    def post(self, rank: Rank) -> None:
        """One end of a transfer: between two ranks they pair up in the order of their starts."""
        index, step = rank.at, rank.steps[rank.at]
        assert step.peer is not None
        sends = step.op in SENDS
        channel = (rank.index, step.peer) if sends else (step.peer, rank.index)
        ordinal = self._sides.get((*channel, sends), 0)
        self._sides[*channel, sends] = ordinal + 1
        rendezvous = self._rendezvous.setdefault((*channel, ordinal), Rendezvous(2))
        rendezvous.arrived.append((rank.now, rank.index, index))
        handle = step.short
        rank.pending[handle] = rendezvous
        rank.origin[handle] = (rank.index, index)
        if len(rendezvous.arrived) == 2:
            seconds = self.prices.transfer(step.collectives[0].bytes, *channel)
            first, latest = rendezvous.arrived
            if first[0] > latest[0] or (first[0] == latest[0] and first[1] == channel[0]):
                latest = first
            begin = max(latest[0], self._links.get(channel, 0.0))
            self._links[channel] = begin + seconds
            self._hold(rendezvous, begin, seconds, latest)

    def start(self, rank: Rank) -> None:
        """A collective beside computation; where several pipeline ranks take part, once all of them have started it."""
        index, step = rank.at, rank.steps[rank.at]
        seconds = self.durations.collectives(step)
        handle = step.short
        rank.origin[handle] = (rank.index, index)
        if step.op is Op.PARAMETER_ALL_GATHER and self.prices.software.overlap_param_gather:
            self._gather_ahead(rank, handle, seconds)
            return
        expected = self._ranks_in(step)
        if expected > 1:
            rank.pending[handle] = self._meet(rank, expected, seconds)
            return
        begin = max(rank.now, rank.free.get(step.stream, 0.0))
        on_network = any(self.prices.leaves_node(collective.axes) for collective in step.collectives)
        if on_network:
            begin = max(begin, rank.network_free)
        end = begin + seconds
        rank.free[step.stream] = end
        if on_network:
            rank.network_free = end
            rank.on_network[handle] = index
        rank.times.streams[index] = (begin, end)
        rank.pending[handle] = end
        if self._overlaps(step):
            rank.in_flight = max(rank.in_flight, end)
        else:
            rank.now = end

    def share_network(self, rank: Rank, step: Instruction) -> float:
        """The rank's pass has collectives that leave the node, beside those that it has started: all share its port to the network.
        Delays what is started. Returns the seconds that the pass takes longer."""
        beside, cost = rank.network_free - rank.now, self.durations.phase(step)
        delay = min(cost.network, beside)
        if delay <= 0:
            return 0.0
        streams = rank.times.streams
        for handle, index in rank.on_network.items():
            begin, end = streams[index]
            if end > rank.now:
                streams[index] = (begin + delay if begin > rank.now else begin, end + delay)
                rank.pending[handle] = end + delay
                stream = rank.steps[index].stream
                rank.free[stream] = max(rank.free[stream], end + delay)
        rank.network_free += delay
        rank.in_flight = max(rank.in_flight, rank.network_free)
        return cost.delay(beside)

    def _overlaps(self, step: Instruction) -> bool:
        """Whether a collective that is started runs beside computation."""
        software = self.prices.software
        unsharded = step.op is Op.REDUCE and self.layout.zero == 0 and self.layout.pp == 1
        return software.overlap_data or (software.overlap_all_reduce and unsharded)

    def _gather_ahead(self, rank: Rank, handle: str, seconds: float) -> None:
        """A unit's parameters may arrive until the next step uses them, which it does as long after its start as this one did; what
        its kernels lose meanwhile is this step's."""
        step = rank.steps[rank.at]
        use = self._first_use(rank, step.segment or "")
        begin = max(rank.now, rank.free.get(step.stream, 0.0), rank.ahead)
        rank.ahead = begin + seconds
        rank.now += self.prices.software.contention * min(seconds, use)
        end = max(rank.now, rank.ahead - use)
        rank.times.streams[rank.at] = (rank.now, end)
        rank.pending[handle] = end

    def _first_use(self, rank: Rank, unit: str) -> float:
        """When this step first used a unit's parameters; at its start, if it is another segment that does."""
        segment = unit.partition(".")[0]
        used = (i for i, step in enumerate(rank.steps) if step.segment == segment and step.op in COMPUTE_OPS)
        first = next(used, None)
        return 0.0 if first is None else rank.times.starts[first]

    def enter(self, rank: Rank) -> bool:
        """A collective that computation waits for. False: others are not there yet."""
        index, step = rank.at, rank.steps[rank.at]
        durations = self.durations
        seconds = durations.collectives(step) + durations.local(step)
        expected = self._ranks_in(step)
        if expected == 1:
            rank.now += seconds
            return True
        key = f"{step.short} entered"
        rendezvous = rank.pending.get(key)
        if rendezvous is None:
            rendezvous = rank.pending[key] = self._meet(rank, expected, seconds)
        assert isinstance(rendezvous, Rendezvous)
        if rendezvous.end < 0:
            return False
        del rank.pending[key]
        if rendezvous.last is not None and rendezvous.last[0] != rank.index:
            rank.times.causes[index] = rendezvous.last
        rank.now = max(rank.now, rendezvous.end)
        return True

    def waits_for(self, rank: Rank) -> str:
        """Where a rank stands, and for whom: a transfer for the rank at its other end, what all enter for those not there yet."""
        step = rank.steps[rank.at]
        rendezvous = rank.pending.get(step.handle or f"{step.short} entered")
        missing = "others"
        if isinstance(rendezvous, Rendezvous):
            there = {each[1] for each in rendezvous.arrived}
            key = next(key for key, value in self._rendezvous.items() if value is rendezvous)
            if isinstance(key, tuple) and len(key) == 3:
                missing = f"pp {next(each for each in key[:2] if each not in there)}"
            else:
                missing = f"{rendezvous.expected - len(there)} more beside pp {', '.join(map(str, sorted(there)))}"
        return f"pp {rank.index} at #{rank.at} `{step.short}` waits for {missing}"

    def _meet(self, rank: Rank, expected: int, seconds: float) -> Rendezvous:
        step = rank.steps[rank.at]
        ordinal = rank.ordinals[step.op.value] = rank.ordinals.get(step.op.value, 0) + 1
        rendezvous = self._rendezvous.setdefault((step.op, ordinal), Rendezvous(expected))
        rendezvous.arrived.append((rank.now, rank.index, rank.at))
        if len(rendezvous.arrived) == expected:
            latest = max(rendezvous.arrived)
            self._hold(rendezvous, latest[0], seconds, latest)
        return rendezvous

    def _hold(self, rendezvous: Rendezvous, begin: float, seconds: float, last: tuple[float, int, int]) -> None:
        """Everyone is there: when it runs, for all who take part."""
        rendezvous.start, rendezvous.end = begin, begin + seconds
        rendezvous.last = last[1:]
        for _, rank, index in rendezvous.arrived:
            self.ranks[rank].times.streams[index] = (rendezvous.start, rendezvous.end)

    def _ranks_in(self, step: Instruction) -> int:
        """How many pipeline ranks take part."""
        axes = {axis for collective in step.collectives for axis in collective.axes.split("+")}
        if "tied" in axes:
            return self.layout.degree("tied")
        return self.layout.pp if "pp" in axes else 1
