"""The critical path of a simulated step: the chain of work, each waiting for the one before, that ends when the step does.

It is walked backwards from the last end: through what an instruction waited for where it waited, else to the one before it on its
rank. Its parts follow one another without a gap, so that the sums by reason make up the makespan; to shorten the step is to
shorten something on it.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from fourfold.program.opcode import SMALL_SUMS
from fourfold.program.ops import Op
from fourfold.program.pattern import Pattern
from fourfold.simulate.step import Simulation

QUEUE, HOST = "links that were taken", "host"


@dataclass(frozen=True)
class PathLink:
    """One part of the path: a pipeline rank, an instruction of its, from when to when, and what the time went into."""

    rank: int
    index: int
    start: float
    end: float
    reasons: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class CriticalPath:
    """`links`: from the step's beginning to its end."""

    links: tuple[PathLink, ...]

    @cached_property
    def reasons(self) -> dict[str, float]:
        """Seconds on the path by reason, most first; they sum to the makespan."""
        sums: dict[str, float] = {}
        for link in self.links:
            for reason, seconds in link.reasons:
                sums[reason] = sums.get(reason, 0.0) + seconds
        return dict(sorted(sums.items(), key=lambda item: -item[1]))

    @property
    def crossings(self) -> int:
        """How often the path goes from one pipeline rank to another."""
        return sum(a.rank != b.rank for a, b in zip(self.links, self.links[1:], strict=False))


def critical_path(simulation: Simulation) -> CriticalPath:
    """The critical path of the step as simulated."""
    return CriticalPath(tuple(reversed(list(_Walk(simulation).links()))))


class _Walk:
    """The way back: at `rank`, everything after `time` is explained, and `index` is the last instruction that began before."""

    def __init__(self, simulation: Simulation) -> None:
        self.ranks = simulation.times.ranks
        self.patterns = [[pattern for pattern, _ in program.steps.steps] for program in simulation.programs]
        self.durations = simulation.durations
        self.makespan = simulation.times.makespan
        self.on_stream: dict[tuple[int, str], list[tuple[float, int]]] = {}

    def links(self) -> Iterator[PathLink]:
        rank = max(range(len(self.ranks)), key=self._end)
        index, time = len(self.patterns[rank]) - 1, self.makespan
        ran: tuple[int, int] | None = None
        if self._end(rank) < time:  # what nobody waits for ran on
            ran = self._streaming_until(time)
        while time > 0:
            if ran is not None:
                (rank, index), began = ran, time
                ran, link = self._ran(rank, index, time)
                yield link
                time = link.start
                index -= 1
                assert time < began or ran is None
                continue
            if index < 0:
                return
            step, times = self.patterns[rank][index], self.ranks[rank]
            start = times.starts[index]
            if start >= time:
                index -= 1
                continue
            if index in times.causes:
                ran = times.causes[index]
                continue
            late = min(times.host.get(index, 0.0), time - start)
            if not step.op.is_compute and index in times.streams and late < time - start:
                ran = rank, index
            else:
                reasons = self._reasons(step, time - start - late)
                yield PathLink(rank, index, start, time, ((HOST, late), *reasons) if late else reasons)
                index, time = index - 1, start

    def _end(self, rank: int) -> float:
        ends = self.ranks[rank].ends
        return ends[-1] if ends else 0.0

    def _streaming_until(self, time: float) -> tuple[int, int] | None:
        for rank, times in enumerate(self.ranks):
            for index, (_, end) in times.streams.items():
                if end == time:
                    return rank, index
        return None

    def _ran(self, rank: int, index: int, until: float) -> tuple[tuple[int, int] | None, PathLink]:
        """The link of what ran beside computation until then; and what held its stream before, where it had to wait for that."""
        times, step = self.ranks[rank], self.patterns[rank][index]
        asked = times.starts[index]
        begin = min(times.streams.get(index, (asked, until))[0], until)
        reason = "transfers between stages" if step.op.is_transfer else _collective(step)
        parts: tuple[tuple[str, float], ...] = ((reason, until - begin),)
        before = self._before_on_stream(rank, index, begin) if asked < begin else None
        if before is not None:
            return (rank, before), PathLink(rank, index, begin, until, parts)
        if asked < begin:
            late = min(times.host.get(index, 0.0), begin - asked)
            parts = (*((kind, s) for kind, s in ((QUEUE, begin - asked - late), (HOST, late)) if s > 0), *parts)
        return None, PathLink(rank, index, min(asked, begin), until, parts)

    def _before_on_stream(self, rank: int, index: int, begin: float) -> int | None:
        """The instruction that ran on the same stream until `begin`."""
        patterns = self.patterns[rank]
        step = patterns[index]
        if step.op.is_transfer:
            return None
        key = (rank, step.stream)
        if key not in self.on_stream:
            streams = self.ranks[rank].streams
            ends = [(end, i) for i, (_, end) in streams.items() if patterns[i].stream == step.stream]
            self.on_stream[key] = sorted(ends)
        ends = self.on_stream[key]
        place = bisect_left(ends, (begin, -1))
        for end, i in ends[place:]:
            if end > begin:
                break
            if i < index:
                return i
        return None

    def _reasons(self, step: Pattern, seconds: float) -> tuple[tuple[str, float], ...]:
        """Kinds of time of one instruction; parts of kernels as far as they are in it."""
        if step.op is Op.WAIT:
            return (("waiting", seconds),)
        if not step.op.is_compute:
            return ((step.op.info.time or SMALL_SUMS, seconds),)
        cost = self.durations.phase(step)
        share = min(1.0, seconds / cost.seconds) if cost.seconds else 0.0
        parts = {kind: busy * share for kind, busy in cost.busy.items()}
        if step.op.info.time:
            parts = {step.op.info.time: sum(parts.values())}
        parts[f"exposed {'+'.join(cost.communication) or 'other'} communication"] = cost.exposed * share
        parts[HOST] = cost.host * share
        parts["compute/communication contention"] = seconds - cost.seconds * share
        return tuple((kind, part) for kind, part in parts.items() if part > 0)


def _collective(step: Pattern) -> str:
    """`dp_shard reduce`; what the norm and the loss need is small and goes together."""
    return SMALL_SUMS if step.op.info.time == SMALL_SUMS else f"{step.stream} {step.op.words}"
