"""Ranks on their way through their programs, and all that is between them: what they start, what they join, and where they meet."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from fourfold.config import UserError
from fourfold.cost.prices import Prices
from fourfold.layout import Layout
from fourfold.program import Program
from fourfold.program.instruction import Op, Opcode
from fourfold.program.pattern import Pattern
from fourfold.simulate.durations import Durations

Place = tuple[int, int]
"""A pipeline rank and the index of an instruction of its."""


@dataclass
class RankTimes:
    """Times of one rank: when each instruction had its turn and when the rank went on; of what runs beside computation or with
    other ranks (collectives, transfers), from when to when it ran.

    `causes[i]`: what instruction i waited for, if for anything but the one before it: where several ranks meet, the one that came
    last. `joins[i]`: what the WAIT at i joined. `host[i]`: seconds in which the device waited for its host to issue instruction i.
    """

    starts: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    streams: dict[int, tuple[float, float]] = field(default_factory=dict)
    causes: dict[int, Place] = field(default_factory=dict)
    joins: dict[int, int] = field(default_factory=dict)
    host: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Times:
    """Times of all pipeline ranks. `makespan`: seconds from the first instruction to the last rank's end, streams included."""

    ranks: tuple[RankTimes, ...]
    makespan: float


class Rank:
    """A rank on its way through its program. `pending`: what is started, or entered, and not over, by its short form without the
    microbatch and the microbatch: when it ends, and the index that started it."""

    def __init__(self, index: int, program: Program) -> None:
        self.index = index
        self.steps = program.steps.steps
        self.at = 0
        self.now = 0.0
        self.times = RankTimes()
        self.free: dict[str, float] = {}
        self.pending: dict[tuple[str, int | None], tuple[float | Rendezvous, int]] = {}
        self.in_flight = 0.0
        self.network_free = 0.0
        self.on_network: set[tuple[str, int | None]] = set()
        self.ahead = 0.0
        self.ordinals: dict[str, int] = {}
        self.ends: dict[Pattern, End] = {}


class Rendezvous:
    """A transfer between two ranks, or what all pipeline ranks enter: known when everyone is there."""

    __slots__ = ("arrived", "end", "expected", "last", "start")

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self.arrived: list[tuple[float, int, int]] = []
        self.start = self.end = -1.0
        self.last: Place | None = None


@dataclass
class Channel:
    """Transfers from one pipeline rank to another. `waiting`: those that one end has started, in the order of their starts;
    `by_sender`: whether that is the sender. `free`: when the link is."""

    source: int
    target: int
    waiting: deque[Rendezvous] = field(default_factory=deque)
    by_sender: bool = False
    free: float = 0.0


class End(NamedTuple):
    """One end of the transfers of a pattern."""

    channel: Channel
    sends: bool
    seconds: float
    short: str


class SimulationState:
    """All ranks of a step, and what is between them."""

    def __init__(self, programs: Sequence[Program], durations: Durations, layout: Layout, prices: Prices) -> None:
        self.ranks = [Rank(index, program) for index, program in enumerate(programs)]
        self.durations = durations
        self.prices = prices
        self.layout = layout
        self._alone: dict[Pattern, float | None] = {}
        self._meetings: dict[tuple[Opcode, int], Rendezvous] = {}
        self._channels: dict[tuple[int, int], Channel] = {}

    def times(self) -> Times:
        """When all ranks are at their end."""
        ends = [max([rank.now, *rank.free.values()]) for rank in self.ranks]
        links = [channel.free for channel in self._channels.values()]
        return Times(tuple(rank.times for rank in self.ranks), max([*ends, *links]))

    def take(self, rank: Rank) -> float | None:
        """Begins the rank's next instruction. Returns the seconds that the rank itself works on it, on idle links; None where it
        must wait for another rank. Raises `UserError` for a WAIT for what was not started."""
        pattern, m = rank.steps[rank.at]
        op = pattern.op
        if op is Op.WAIT:
            return 0.0 if self.join(rank, pattern, m) else None
        if op.is_transfer:
            self.post(rank, pattern, m)
            return 0.0
        seconds = self._alone.get(pattern, -1.0)
        if seconds == -1.0:
            seconds = self._alone[pattern] = self._seconds_alone(pattern)
        if seconds is not None:
            return seconds
        if op.is_start:
            self.start(rank, pattern, m)
        elif not self.enter(rank, pattern, m):
            return None
        return 0.0

    def _seconds_alone(self, pattern: Pattern) -> float | None:
        """Seconds of what no other rank takes part in but by its own collectives; None of what is started or entered."""
        if pattern.op.is_compute:
            return self.durations.compute(pattern)
        return None if pattern.op.is_start or pattern.work.collectives else self.durations.local(pattern)

    def join(self, rank: Rank, pattern: Pattern, m: int | None) -> bool:
        """The rank's WAIT. False: what it waits for is not known to end yet. Raises `UserError` where it was not started."""
        index, key = rank.at, (pattern.handle or "", m)
        found = rank.pending.get(key)
        if found is None:
            raise UserError(f"pp {rank.index} at #{index} `{pattern.of(m).short}` joins what has not been started")
        end, started = found
        if isinstance(end, Rendezvous):
            if end.end < 0:
                return False
            if end.end > rank.now and end.last is not None and end.last[0] != rank.index:
                rank.times.causes[index] = end.last
            end = end.end
        if end > rank.now:
            rank.times.causes.setdefault(index, (rank.index, started))
            rank.now = end
        del rank.pending[key]
        rank.on_network.discard(key)
        rank.times.joins[index] = started
        return True

    def post(self, rank: Rank, pattern: Pattern, m: int | None) -> None:
        """One end of a transfer: between two ranks they pair up in the order of their starts."""
        end = rank.ends.get(pattern)
        if end is None:
            end = rank.ends[pattern] = self._end(rank, pattern)
        channel, sends, seconds, short = end
        index, waiting, arrival = rank.at, channel.waiting, (rank.now, rank.index, rank.at)
        if not waiting or channel.by_sender == sends:
            channel.by_sender = sends
            rendezvous = Rendezvous(2)
            rendezvous.arrived.append(arrival)
            waiting.append(rendezvous)
        else:
            rendezvous = waiting.popleft()
            first = rendezvous.arrived[0]
            rendezvous.arrived.append(arrival)
            latest = arrival if first[0] < arrival[0] or (first[0] == arrival[0] and not channel.by_sender) else first
            begin = max(latest[0], channel.free)
            channel.free = begin + seconds
            self._hold(rendezvous, begin, seconds, latest)
        rank.pending[short, m] = rendezvous, index

    def _end(self, rank: Rank, pattern: Pattern) -> End:
        assert pattern.peer is not None
        sends = pattern.op.is_send
        ends = (rank.index, pattern.peer) if sends else (pattern.peer, rank.index)
        channel = self._channels.setdefault(ends, Channel(*ends))
        return End(channel, sends, self.prices.transfer(pattern.work.collectives[0].bytes, *ends), pattern.short)

    def start(self, rank: Rank, pattern: Pattern, m: int | None) -> None:
        """A collective beside computation; where several pipeline ranks take part, once all of them have started it."""
        index, key = rank.at, (pattern.short, m)
        seconds = self.durations.collectives(pattern)
        if pattern.op is Op.PARAMETER_ALL_GATHER and self.prices.software.overlap_param_gather:
            rank.pending[key] = self._gather_ahead(rank, pattern, seconds), index
            return
        expected = self._ranks_in(pattern)
        if expected > 1:
            rank.pending[key] = self._meet(rank, pattern, expected, seconds), index
            return
        begin = max(rank.now, rank.free.get(pattern.stream, 0.0))
        on_network = any(self.prices.leaves_node(collective.axes) for collective in pattern.work.collectives)
        if on_network:
            begin = max(begin, rank.network_free)
        end = begin + seconds
        rank.free[pattern.stream] = end
        if on_network:
            rank.network_free = end
            rank.on_network.add(key)
        rank.times.streams[index] = (begin, end)
        rank.pending[key] = end, index
        if pattern.op.is_host_copy and not self.prices.copies_share_memory:
            return
        if self._overlaps(pattern):
            rank.in_flight = max(rank.in_flight, end)
        else:
            rank.now = end

    def share_network(self, rank: Rank, pattern: Pattern) -> float:
        """The rank's pass has collectives that leave the node, beside those that it has started: all share its port to the network.
        Delays what is started. Returns the seconds that the pass takes longer."""
        beside, cost = rank.network_free - rank.now, self.durations.phase(pattern)
        delay = min(cost.network, beside)
        if delay <= 0:
            return 0.0
        streams = rank.times.streams
        for key in rank.on_network:
            index = rank.pending[key][1]
            begin, end = streams[index]
            if end > rank.now:
                streams[index] = (begin + delay if begin > rank.now else begin, end + delay)
                rank.pending[key] = end + delay, index
                stream = rank.steps[index][0].stream
                rank.free[stream] = max(rank.free[stream], end + delay)
        rank.network_free += delay
        rank.in_flight = max(rank.in_flight, rank.network_free)
        return cost.delay(beside)

    def _overlaps(self, pattern: Pattern) -> bool:
        """Whether a collective that is started runs beside computation."""
        software = self.prices.software
        if pattern.op.is_all_to_all or pattern.op.is_host_copy:
            return True
        unsharded = pattern.op is Op.REDUCE and self.layout.zero == 0 and self.layout.pp == 1
        return software.overlap_data or (software.overlap_all_reduce and unsharded)

    def _gather_ahead(self, rank: Rank, pattern: Pattern, seconds: float) -> float:
        """When a unit's parameters are there: they may arrive until the next step uses them, which it does as long after its start
        as this one did; what its kernels lose meanwhile is this step's."""
        use = self._first_use(rank, pattern.segment or "")
        begin = max(rank.now, rank.free.get(pattern.stream, 0.0), rank.ahead)
        rank.ahead = begin + seconds
        rank.now += self.prices.software.contention * min(seconds, use)
        end = max(rank.now, rank.ahead - use)
        rank.times.streams[rank.at] = (rank.now, end)
        return end

    def _first_use(self, rank: Rank, unit: str) -> float:
        """When this step first used a unit's parameters; at its start, if it is another segment that does."""
        segment = unit.partition(".")[0]
        used = (i for i, (each, _) in enumerate(rank.steps) if each.segment == segment and each.op.is_compute)
        first = next(used, None)
        return 0.0 if first is None else rank.times.starts[first]

    def enter(self, rank: Rank, pattern: Pattern, m: int | None) -> bool:
        """A collective that computation waits for. False: others are not there yet."""
        index, key = rank.at, (pattern.short, m)
        durations = self.durations
        seconds = durations.collectives(pattern) + durations.local(pattern)
        expected = self._ranks_in(pattern)
        if expected == 1:
            rank.now += seconds
            return True
        if key not in rank.pending:
            rank.pending[key] = self._meet(rank, pattern, expected, seconds), index
        rendezvous = rank.pending[key][0]
        assert isinstance(rendezvous, Rendezvous)
        if rendezvous.end < 0:
            return False
        del rank.pending[key]
        if rendezvous.last is not None and rendezvous.last[0] != rank.index:
            rank.times.causes[index] = rendezvous.last
        rank.now = max(rank.now, rendezvous.end)
        return True

    def deadlock(self) -> UserError:
        """The error of ranks of which none can go on: where each stands, and for whom."""
        stuck = [self._waits_for(rank) for rank in self.ranks if rank.at < len(rank.steps)]
        return UserError("\n".join(["the programs wait for each other:", *stuck]))

    def _waits_for(self, rank: Rank) -> str:
        """Where a rank stands, and for whom: a transfer for the rank at its other end, what all enter for those not there yet."""
        pattern, m = rank.steps[rank.at]
        rendezvous, _ = rank.pending.get((pattern.handle or pattern.short, m), (None, 0))
        missing = "others"
        if isinstance(rendezvous, Rendezvous):
            there = {each[1] for each in rendezvous.arrived}
            ends = (
                (each.source, each.target)
                for each in self._channels.values()
                if any(waiting is rendezvous for waiting in each.waiting)
            )
            missing = f"{rendezvous.expected - len(there)} more beside pp {', '.join(map(str, sorted(there)))}"
            missing = next((f"pp {end}" for pair in ends for end in pair if end not in there), missing)
        return f"pp {rank.index} at #{rank.at} `{pattern.of(m).short}` waits for {missing}"

    def _meet(self, rank: Rank, pattern: Pattern, expected: int, seconds: float) -> Rendezvous:
        op = pattern.op
        ordinal = rank.ordinals[op.value] = rank.ordinals.get(op.value, 0) + 1
        rendezvous = self._meetings.setdefault((op, ordinal), Rendezvous(expected))
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

    def _ranks_in(self, pattern: Pattern) -> int:
        """How many pipeline ranks take part."""
        axes = {axis for collective in pattern.work.collectives for axis in collective.axes.split("+")}
        if "tied" in axes:
            return self.layout.degree("tied")
        return self.layout.pp if "pp" in axes else 1
