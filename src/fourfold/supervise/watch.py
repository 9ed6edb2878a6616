"""Watches ranks that live: which one no longer gets on, and which one is slower than its peers.

A rank stands still while its place does not change. That counts as time only as far as the rank could have got on: the processor
time that it used where it wants the processor, real time where it sleeps. A loaded machine therefore makes no rank look hung.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from fourfold.config.schema import FaultsSection
from fourfold.runtime.progress import COPYING, ENDED, EVALUATING, READING, SAVING, STARTING, TRAINING, Position
from fourfold.supervise.blame import Blame, Sighting, Verdict
from fourfold.supervise.generation import Generation
from fourfold.supervise.observation import Observation, is_stopped

_LOOK_SECONDS = 0.1
_MOST_SECONDS = 0.5
"""Longest time that one look counts: whoever watches may have been held up too."""
_SHARE = 0.85
"""Share of the limit after which a rank is named, so that its name is known within the limit."""
_LENIENT = 12.0
"""Times the limit for the first step, of which no earlier one tells anything, for an evaluation and for a copy to be saved."""
_TIMES_LONGEST = 3.0
_TIMES_STEP = 2.0
"""Times the longest step or evaluation, where a device runs it: what its host waits for may be the whole of it, as with a graph."""
_WINDOW_SECONDS, _WINDOW_STEPS = 2.0, 5
_RETRY_SECONDS = 1.0


@dataclass
class _WatchedRank:
    """One rank since it last got on. `still`: seconds that it could have got on and did not; `begun`: when it began what it does
    there, by the watcher's clock."""

    place: tuple[int, ...] = (-1, -1, -1)
    still: float = 0.0
    begun: float = 0.0
    processor: float = 0.0


@dataclass(frozen=True)
class Straggler:
    """A rank whose own work takes `ratio` times what the median of its peers says that it should, in seconds a step."""

    rank: int
    ratio: float
    seconds: float


@dataclass
class Watch:
    """Looks at ranks again and again, over all generations of a launch: what they took before is the measure of what they may take.

    `timeout_seconds`: for whatever has no measure yet.
    """

    faults: FaultsSection
    timeout_seconds: float
    blame: Blame
    longest: dict[int, float] = field(default_factory=dict)
    """By the kind of a position: the longest time that a rank stood still and then got on."""
    longest_step: dict[int, float] = field(default_factory=dict)
    """By the kind of a position: the longest time that a device took for a step or an evaluation."""
    _ranks: dict[int, _WatchedRank] = field(default_factory=dict)
    _looked: float = 0.0
    _judged: float = 0.0
    _window: tuple[float, Sequence[Position]] = (0.0, ())
    _slow: dict[int, int] = field(default_factory=dict)

    @property
    def stall_seconds(self) -> float:
        """`faults.stall_seconds`, or its default where the ranks compute. 0: nobody watches."""
        return self.faults.stall_limit(self.blame.on_device)

    def notes(self) -> list[str]:
        """A line on the limit, where it is neither the run file's nor that of processors."""
        if self.faults.stall_seconds is not None or not self.blame.on_device:
            return []
        return [
            f"faults.stall_seconds: {self.stall_seconds:g}, the default on CUDA: a link may be away for tens of seconds"
        ]

    def begin(self) -> None:
        """A new generation."""
        self._ranks.clear()
        self._looked = self._judged = time.monotonic()
        self._window = (0.0, ())
        self._slow.clear()

    def look(self, generation: Generation) -> Verdict | None:
        """The rank at fault once it has stood still for too long. Called as often as one likes; looks ten times a second."""
        now = time.monotonic()
        passed = min(now - self._looked, _MOST_SECONDS)
        if passed < _LOOK_SECONDS or not self.stall_seconds:
            return None
        self._looked = now
        seen = generation.observe()
        for rank, each in enumerate(seen):
            self._follow(self._ranks.setdefault(rank, _WatchedRank()), each, passed)
        late = [rank for rank, each in enumerate(seen) if self._ranks[rank].still > self._limit(rank, each)]
        if not late or now - self._judged < _RETRY_SECONDS:
            return None
        self._judged = now
        if gone := [rank for rank in late if self._has_vanished(rank, seen[rank])]:
            message = f"rank {gone[0]} no longer says where it is: somebody removed or replaced progress.bin in the run's folder"
            return Verdict(gone[0], "hung", message, "", self._ranks[gone[0]].still)
        calls = generation.tracebacks()
        found = self.blame.verdict(
            [Sighting(each.position, each.state, calls.get(rank, ())) for rank, each in enumerate(seen)]
        )
        depends_on_others = found.cause in ("skipped", "lost")
        if depends_on_others and not all(each.is_fresh for each in seen):  # a machine is judged by its silence
            return None
        own = self._ranks[found.rank]
        left = self._limit(found.rank, seen[found.rank]) - own.still
        if left >= 0:  # one that waits for it began to stand still before: asked again once it has had its time
            self._judged = now + min(left, _RETRY_SECONDS) - _RETRY_SECONDS
            return None
        return replace(found, still_seconds=own.still)

    def _follow(self, own: _WatchedRank, seen: Observation, passed: float) -> None:
        position, used = seen.position, seen.processor_seconds
        if not seen.is_fresh:
            return
        if not position.pid:
            is_late = is_stopped(seen.state) or (own.place[1] >= 0 and seen.state)
            own.still = own.still + passed if is_late else 0.0
            return
        if position.place != own.place:
            starts = own.place[1] == STARTING == position.kind  # its connections say nothing of the rest of a start
            if own.place[1] >= 0 and own.place[1] != ENDED and not starts:
                self.longest[own.place[1]] = max(self.longest.get(own.place[1], 0.0), own.still)
            if position.step > own.place[0] >= 0:  # it read and trained in between, perhaps too quickly to be seen
                for kind in (READING, TRAINING):
                    self.longest.setdefault(kind, 0.0)
            if position.place[:2] != own.place[:2]:
                self._learn(own)
                own.begun = self._looked
            own.place, own.still = position.place, 0.0
        elif position.kind != ENDED:
            wants = seen.state == "R" or used - own.processor > 0.05 * passed
            own.still += min(passed, used - own.processor) if wants else passed
        own.processor = used

    def _learn(self, own: _WatchedRank) -> None:
        """Takes note of how long a step or an evaluation took that has ended on a device."""
        if own.place[1] in (TRAINING, EVALUATING) and own.place[3] >= 0:
            kind = own.place[1]
            self.longest_step[kind] = max(self.longest_step.get(kind, 0.0), self._looked - own.begun)

    def _has_vanished(self, rank: int, seen: Observation) -> bool:
        """Whether a rank that had a place, and was not stopped, has none any more."""
        return not seen.position.pid and self._ranks[rank].place[1] >= 0 and not is_stopped(seen.state)

    def _limit(self, rank: int, seen: Observation) -> float:
        """How long a rank may stand still where it stands."""
        position, stall = seen.position, self.stall_seconds
        if is_stopped(seen.state):
            return _SHARE * stall
        first = max(stall, min(_LENIENT * stall, self.timeout_seconds))
        if self._has_vanished(rank, seen):
            return first
        is_step = position.kind in (TRAINING, READING)
        if position.kind not in (self.longest_step if position.completed >= 0 else self.longest):
            return first if is_step or position.kind == COPYING else self.timeout_seconds
        longest = _TIMES_LONGEST * self.longest[position.kind]
        if position.completed >= 0:
            longest = max(longest, _TIMES_STEP * self.longest_step.get(position.kind, 0.0))
        if position.kind == SAVING:  # a save that begins may wait for the whole of the one before
            return max(self.timeout_seconds, longest)
        return _SHARE * max(stall, longest) if is_step else max(first, longest)

    def stragglers(self, generation: Generation) -> list[Straggler]:
        """Ranks that became slow: for two windows in a row their own work took longer than their peers' by the ratio allowed. A
        rank with more to compute may take as much longer; one with less may take as long as the others."""
        now = time.monotonic()
        began, before = self._window
        if now - began < _WINDOW_SECONDS:
            return []
        positions = [each.position for each in generation.observe()]
        steps = [p.step - q.step for p, q in zip(positions, before, strict=False)]
        if before and (len(steps) < 2 or (0 <= min(steps) < _WINDOW_STEPS)):
            return []
        self._window = (now, positions)
        if not before or min(steps) < 0:
            return []
        busy = [(p.busy_seconds - q.busy_seconds) / n for p, q, n in zip(positions, before, steps, strict=True)]
        found = []
        work = self.blame.work(len(busy))
        paces = [seconds / share for seconds, share in zip(busy, work, strict=True)]
        for rank, own in enumerate(busy):
            usual, scaled = (median(each[:rank] + each[rank + 1 :]) for each in (busy, paces))
            others = max(usual, work[rank] * scaled)  # in a small step most of the time is spent on what no FLOPs count
            ratio = own / max(others, 1e-9)
            is_slow = ratio > self.faults.straggler_ratio and own - others > 0.1 * (now - began) / min(steps)
            self._slow[rank] = self._slow.get(rank, 0) + 1 if is_slow else 0
            if self._slow[rank] == 2:
                found.append(Straggler(rank, ratio, own))
        return found
