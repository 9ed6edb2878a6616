"""The event simulation of one step: every pipeline rank's program on its streams, with transfers and collectives between them.

Ranks that differ in other coordinates than pp run the same list at the same times: one of each is simulated. A rank computes its
list in order; what it starts goes to the stream of its group, one after the other, and a WAIT joins it. A transfer begins when the
sender has started it, the receiver has asked for it and the link is free; what all pipeline ranks enter together begins with the
last of them.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from fourfold.config import UserError
from fourfold.cost.prices import Prices
from fourfold.program import Program
from fourfold.program.buffers import Lowering
from fourfold.program.instruction import COMPUTE_OPS, RECEIVES, SENDS, STARTS, Instruction, Op
from fourfold.simulate.durations import Durations

Place = tuple[int, int]
"""A pipeline rank and the index of an instruction of its."""


@dataclass
class RankTimes:
    """Of one rank: when each instruction had its turn and when the rank went on; of what runs beside computation or with other
    ranks (collectives, transfers), from when to when it ran.

    `causes[i]`: what instruction i waited for, if for anything but the one before it: where several ranks meet, the one that came
    last.
    """

    starts: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    streams: dict[int, tuple[float, float]] = field(default_factory=dict)
    causes: dict[int, Place] = field(default_factory=dict)


@dataclass(frozen=True)
class Times:
    """Of all pipeline ranks. `makespan`: seconds from the first instruction to the last rank's end, streams included."""

    ranks: tuple[RankTimes, ...]
    makespan: float


class _Rank:
    """A rank on its way through its program."""

    def __init__(self, index: int, program: Program) -> None:
        self.index = index
        self.steps = program.instructions
        self.at = 0
        self.now = 0.0
        self.times = RankTimes()
        self.free: dict[str, float] = {}
        self.pending: dict[str, float | _Meeting] = {}
        self.origin: dict[str, Place] = {}
        self.in_flight = 0.0
        self.ordinals: dict[str, int] = {}


class _Meeting:
    """A transfer between two ranks, or what all pipeline ranks enter: known when everyone is there."""

    __slots__ = ("arrived", "end", "expected", "last", "start")

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self.arrived: list[tuple[float, int, int, str]] = []
        self.start = self.end = -1.0
        self.last: Place | None = None


def simulate_times(programs: Sequence[Program], facts: Lowering, prices: Prices) -> Times:
    """Runs the programs of all pipeline ranks to their end. Raises `UserError` where they wait for each other for ever."""
    ranks = [_Rank(index, program) for index, program in enumerate(programs)]
    durations = [Durations(facts.at(rank.index), prices) for rank in ranks]
    meetings: dict[object, _Meeting] = {}
    links: dict[tuple[int, int], float] = {}
    sides: dict[tuple[int, int, bool], int] = {}
    ready = deque(ranks)
    idle = 0
    while ready:
        rank = ready.popleft()
        before = rank.at
        _advance(rank, durations[rank.index], meetings, links, sides, ranks)
        if rank.at < len(rank.steps):
            ready.append(rank)
        idle = idle + 1 if rank.at == before else 0
        if idle > len(ready) + 1:
            stuck = [_waits_for(each, meetings) for each in sorted(ready, key=lambda each: each.index)]
            raise UserError("\n".join(["the programs wait for each other:", *stuck]))
    makespan = max(max(rank.now, *rank.free.values(), 0.0) if rank.free else rank.now for rank in ranks)
    makespan = max(makespan, max(links.values(), default=0.0))
    return Times(tuple(rank.times for rank in ranks), makespan)


def _waits_for(rank: _Rank, meetings: dict[object, _Meeting]) -> str:
    """Where a rank stands, and for whom: a transfer for the rank at its other end, what all enter for those not there yet."""
    step = rank.steps[rank.at]
    meeting = rank.pending.get(step.handle or f"{step.short} entered")
    missing = "others"
    if isinstance(meeting, _Meeting):
        there = {each[1] for each in meeting.arrived}
        key = next(key for key, value in meetings.items() if value is meeting)
        if isinstance(key, tuple) and len(key) == 3:
            missing = f"pp {next(each for each in key[:2] if each not in there)}"
        else:
            missing = f"{meeting.expected - len(there)} more beside pp {', '.join(map(str, sorted(there)))}"
    return f"pp {rank.index} at #{rank.at} `{step.short}` waits for {missing}"


def _advance(
    rank: _Rank,
    durations: Durations,
    meetings: dict[object, _Meeting],
    links: dict[tuple[int, int], float],
    sides: dict[tuple[int, int, bool], int],
    ranks: list[_Rank],
) -> None:
    """Runs the rank until it must wait for another."""
    steps, times = rank.steps, rank.times
    overlap, contention = durations.prices.stack.overlap_data, durations.prices.stack.contention
    while rank.at < len(steps):
        index = rank.at
        step = steps[index]
        start, op = rank.now, step.op
        if op is Op.WAIT:
            if step.handle not in rank.pending:
                raise UserError(f"pp {rank.index} at #{index} `{step.short}` joins what has not been started")
            end = rank.pending[step.handle]
            if isinstance(end, _Meeting):
                if end.end < 0:
                    return
                if end.end > rank.now and end.last is not None and end.last[0] != rank.index:
                    times.causes[index] = end.last
                end = end.end
            if end > rank.now:
                times.causes.setdefault(index, rank.origin[step.handle])
                rank.now = end
            del rank.pending[step.handle]
        elif op in COMPUTE_OPS:
            seconds = durations.compute(step)
            beside = rank.in_flight - rank.now
            if beside > 0:
                seconds += contention * min(seconds, beside)
            rank.now += seconds
        elif op in SENDS or op in RECEIVES:
            _post(rank, index, step, durations, meetings, links, sides, ranks)
        elif op in STARTS:
            if not _start(rank, index, step, durations, meetings, ranks, overlap):
                return
        elif step.collectives:
            if not _enter(rank, index, step, durations, meetings, ranks):
                return
        else:
            rank.now += durations.local(step)
        times.starts.append(start)
        times.ends.append(rank.now)
        rank.at += 1


def _post(
    rank: _Rank,
    index: int,
    step: Instruction,
    durations: Durations,
    meetings: dict[object, _Meeting],
    links: dict[tuple[int, int], float],
    sides: dict[tuple[int, int, bool], int],
    ranks: list[_Rank],
) -> None:
    """One end of a transfer: between two ranks they pair up in the order of their starts."""
    assert step.peer is not None
    sends = step.op in SENDS
    channel = (rank.index, step.peer) if sends else (step.peer, rank.index)
    ordinal = sides.get((*channel, sends), 0)
    sides[*channel, sends] = ordinal + 1
    meeting = meetings.setdefault((*channel, ordinal), _Meeting(2))
    meeting.arrived.append((rank.now, rank.index, index, step.short))
    rank.pending[step.short] = meeting
    rank.origin[step.short] = (rank.index, index)
    if len(meeting.arrived) == 2:
        seconds = durations.prices.transfer(step.collectives[0].bytes, *channel)
        first, latest = meeting.arrived
        if first[0] > latest[0] or (first[0] == latest[0] and first[1] == channel[0]):
            latest = first
        meeting.start = max(latest[0], links.get(channel, 0.0))
        meeting.end = links[channel] = meeting.start + seconds
        meeting.last = (latest[1], latest[2])
        _note(meeting, ranks)


def _start(
    rank: _Rank,
    index: int,
    step: Instruction,
    durations: Durations,
    meetings: dict[object, _Meeting],
    ranks: list[_Rank],
    overlap: bool,
) -> bool:
    """A collective beside computation; where several pipeline ranks take part, once all of them have started it."""
    seconds = durations.collectives(step)
    rank.origin[step.short] = (rank.index, index)
    expected = _ranks_in(step, durations.facts)
    if expected > 1:
        meeting = _meet(rank, index, step, meetings, expected, seconds, ranks)
        rank.pending[step.short] = meeting
        return True
    begin = max(rank.now, rank.free.get(step.stream, 0.0))
    end = begin + seconds
    rank.free[step.stream] = end
    rank.times.streams[index] = (begin, end)
    rank.pending[step.short] = end
    if overlap:
        rank.in_flight = max(rank.in_flight, end)
    else:
        rank.now = end
    return True


def _enter(
    rank: _Rank,
    index: int,
    step: Instruction,
    durations: Durations,
    meetings: dict[object, _Meeting],
    ranks: list[_Rank],
) -> bool:
    """A collective that computation waits for. False: others are not there yet."""
    seconds = durations.collectives(step) + durations.local(step)
    expected = _ranks_in(step, durations.facts)
    if expected == 1:
        rank.now += seconds
        return True
    key = f"{step.short} entered"
    meeting = rank.pending.get(key)
    if meeting is None:
        meeting = rank.pending[key] = _meet(rank, index, step, meetings, expected, seconds, ranks)
    assert isinstance(meeting, _Meeting)
    if meeting.end < 0:
        return False
    del rank.pending[key]
    if meeting.last is not None and meeting.last[0] != rank.index:
        rank.times.causes[index] = meeting.last
    rank.now = max(rank.now, meeting.end)
    return True


def _meet(
    rank: _Rank,
    index: int,
    step: Instruction,
    meetings: dict[object, _Meeting],
    expected: int,
    seconds: float,
    ranks: list[_Rank],
) -> _Meeting:
    ordinal = rank.ordinals[step.op.value] = rank.ordinals.get(step.op.value, 0) + 1
    meeting = meetings.setdefault((step.op, ordinal), _Meeting(expected))
    meeting.arrived.append((rank.now, rank.index, index, step.short))
    if len(meeting.arrived) == expected:
        latest = max(meeting.arrived)
        meeting.start, meeting.end = latest[0], latest[0] + seconds
        meeting.last = (latest[1], latest[2])
        _note(meeting, ranks)
    return meeting


def _note(meeting: _Meeting, ranks: list[_Rank]) -> None:
    """When it ran, for everyone who takes part."""
    for _, rank, index, _ in meeting.arrived:
        ranks[rank].times.streams[index] = (meeting.start, meeting.end)


def _ranks_in(step: Instruction, facts: Lowering) -> int:
    """How many pipeline ranks take part."""
    axes = {axis for collective in step.collectives for axis in collective.axes.split("+")}
    if "tied" in axes:
        return facts.layout.degree("tied")
    return facts.layout.pp if "pp" in axes else 1
