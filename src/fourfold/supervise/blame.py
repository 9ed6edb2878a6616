"""From where all ranks stand to the one at fault: who waits for whom, in the order of their programs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from fourfold.launch.resolve import ResolvedRun
from fourfold.layout import Layout
from fourfold.program import Program
from fourfold.results.diagnosis import Verdict
from fourfold.runtime.progress import (
    ACTIVITIES,
    COPYING,
    ENDED,
    EVALUATING,
    READING,
    SAVING,
    STARTING,
    TRAINING,
    WAITING,
    WRITING,
    Position,
    entry_of,
    join_of,
    own_work,
    peers_of,
    start_of,
)
from fourfold.supervise.observation import is_stopped

_ORDER = {STARTING: -1, EVALUATING: 0, SAVING: 1, COPYING: 2, READING: 3, TRAINING: 4, ENDED: 5}
"""The order in which a rank does these while its position names one step."""
_KINDS = {TRAINING: "train", EVALUATING: "evaluate"}
_SHOWN = 4
_COMMUNICATION = ("torch/distributed/", "runtime/collectives.py", "runtime/norm.py")
_DEVICE_WAITS = ("runtime/device.py", "runtime/corruption.py", "model/torch_operations.py", "torch/cuda/")
"""Files whose calls wait for the device within an instruction."""


@dataclass(frozen=True)
class Sighting:
    """One rank as seen from outside. `state`: the process's letter in /proc (R runs, S sleeps, T stopped; empty: gone).
    `traceback`: the calls of its main thread, innermost first; empty where they are not known."""

    position: Position
    state: str = ""
    traceback: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[int, int, int]:
        """Rises while the rank gets on."""
        return (self.position.step, _ORDER[self.position.kind], self.position.at)

    @property
    def host_key(self) -> tuple[int, int, int]:
        """Rises while its host gets on."""
        return (self.position.step, _ORDER[self.position.kind], self.position.counter)

    @property
    def is_in_communication(self) -> bool | None:
        """Whether the host waits in a collective, or for what its device does in one; None where the host's calls are not known, or
        say nothing because the device is behind them."""
        if self.position.is_issued_ahead or not self.traceback:
            return None
        parts = _COMMUNICATION + (_DEVICE_WAITS if self.position.completed >= 0 else ())
        return any(part in line for line in self.traceback[:3] for part in parts)


@dataclass(frozen=True)
class WaitingRank:
    """Rank `rank` waits for `member`, which has not come (`behind`), has come, or has gone past without it (`passed`)."""

    rank: int
    member: int
    group: str
    behind: bool
    passed: bool


class Blame:
    """The programs of a run's ranks, and what follows from them when ranks stand still."""

    def __init__(self, resolved: ResolvedRun) -> None:
        self._resolved = resolved
        self._layouts: Mapping[int, Layout] = {
            TRAINING: resolved.layout,
            EVALUATING: replace(resolved.layout, num_microbatches=resolved.evaluation_spec.layout.num_microbatches),
        }

    @property
    def on_device(self) -> bool:
        """Whether the ranks compute on devices, over NCCL."""
        return self._resolved.spec.transport == "native"

    def _programs(self, place: Position) -> Sequence[Program]:
        """The programs of every pipeline coordinate, of the kind and step of a position."""
        return self._resolved.programs_at(_KINDS[place.kind], place.step)

    def compile(self) -> None:
        """Compiles the programs now; else the first question about them does."""
        _ = self._programs

    def work(self, ranks: int) -> list[float]:
        """The FLOPs of each rank in a training step, over the mean of all: stages of a pipeline differ. 1 where another number of
        ranks runs than the run began with."""
        own = self._flops
        return [each * ranks / sum(own) for each in own] if len(own) == ranks and all(own) else [1.0] * ranks

    @cached_property
    def _flops(self) -> list[int]:
        """FLOPs of every rank in a training step; ranks of one pipeline coordinate run one program."""
        programs = self._resolved.train_programs
        of_stages = {each.pp_rank: each for each in programs.values()}
        flops = {stage: sum(step.flops for step in each.instructions) for stage, each in of_stages.items()}
        return [flops[programs[rank].pp_rank] for rank in sorted(programs)]

    def verdict(self, seen: Sequence[Sighting]) -> Verdict:
        """The rank at fault, of ranks that no longer get on."""
        waits = {rank: self.waits(rank, seen) for rank in range(len(seen))}
        rank, cause = self._culprit(seen, waits)
        words = {
            "stopped": "is stopped, as after SIGSTOP,",
            "looping": "computes without end",
            "hung": "hangs",
            "skipped": "left out what others wait for and went on",
            "lost": "waits though all of its group have come: a message was lost",
        }
        chain = [line for other in range(len(seen)) if other != rank for line in self._told(other, seen)]
        more = [f"and {len(chain) - _SHOWN} more"] if len(chain) > _SHOWN else []
        position = seen[rank].position
        alike = [
            other for other in waits if seen[other].key == seen[rank].key and bool(waits[other]) == bool(waits[rank])
        ]
        met = (
            [f"rank {wait.member} ({wait.group})" for wait in waits[rank] if not wait.passed] if cause == "lost" else []
        )
        ends = [f"it was to meet {', '.join(list(dict.fromkeys(met))[:_SHOWN])}"] if met else []
        tie = (
            [f"{len(alike)} ranks stand there, and none of them can be told from the others"]
            if len(alike) > 1 and cause in ("hung", "lost")
            else []
        )
        message = "; ".join(
            [f"rank {rank} {words[cause]} at {self.place(position, rank)}", *ends, *tie, *chain[:_SHOWN], *more]
        )
        instruction = self.instruction(position, rank) or ACTIVITIES[position.kind].removesuffix(" of")
        completed, issued = (self._short(position, rank, index) for index in (position.at - 1, position.counter))
        return Verdict(
            rank, cause, message, instruction, completed=completed, issued=issued if position.completed >= 0 else ""
        )

    def waits(self, rank: int, seen: Sequence[Sighting]) -> list[WaitingRank]:
        """For whom a rank waits, where it stands now. Empty: for nobody."""
        own = seen[rank]
        place = own.position
        if is_stopped(own.state) or (own.is_in_communication is False and place.save != WAITING):
            return []
        if place.kind == SAVING:
            return self._save_waits(rank, seen) if place.save != WRITING else []
        program = self._program(place, rank)
        if program is None or place.at >= len(program.instructions):
            return []
        if own_work(program)[place.at]:
            return []
        start = start_of(program, place.at)
        layout, programs = self._layouts[place.kind], self._programs(place)
        found = []
        for axes, members in peers_of(rank, program.instructions[start], layout):
            for member in members:
                if member == rank or member >= len(seen):
                    continue
                entry, end = self._span(program, start, programs[layout.coordinates(member)["pp"]])
                ours, theirs = (place.step, _ORDER[place.kind]), seen[member].key
                stopped_inside = is_stopped(seen[member].state) and theirs <= (*ours, end)
                is_behind = theirs < (*ours, entry) or stopped_inside
                found.append(WaitingRank(rank, member, axes, is_behind, theirs > (*ours, end)))
        return [] if self._is_left_behind(own, found, seen) else found

    @staticmethod
    def _span(program: Program, start: int, other: Program) -> tuple[int, int]:
        """Where another program joins in what instruction `start` begins, and where it waits for the end of that."""
        entry = start if other is program else entry_of(program.instructions[start], other)
        return entry, join_of(other, entry) if entry < len(other.instructions) else entry

    def _went_alone(self, wait: WaitingRank, seen: Sequence[Sighting]) -> bool:
        """Whether the rank that went past what another waits for left behind all whom it was to meet there; where some went on with
        it, it took part, and it is a message to the others that was lost."""
        place = seen[wait.rank].position
        layout, programs = self._layouts[place.kind], self._programs(place)
        program, other = self._program(place, wait.rank), programs[layout.coordinates(wait.member)["pp"]]
        if program is None:
            return True
        start = start_of(program, place.at)
        entry, _ = self._span(program, start, other)
        if entry >= len(other.instructions):
            return True
        met = {each for _, members in peers_of(wait.member, other.instructions[entry], layout) for each in members}
        for each in met - {wait.member, wait.rank}:
            _, end = self._span(program, start, programs[layout.coordinates(each)["pp"]])
            if each < len(seen) and seen[each].key > (place.step, _ORDER[place.kind], end):
                return False
        return True

    @staticmethod
    def _save_waits(rank: int, seen: Sequence[Sighting]) -> list[WaitingRank]:
        """In a save all wait for those that have not come to it, or still do their own part of it."""
        own = seen[rank]
        return [
            WaitingRank(rank, other, "all ranks", each.key < own.key or _writes(own, each), False)
            for other, each in enumerate(seen)
            if other != rank
        ]

    @staticmethod
    def _is_left_behind(own: Sighting, found: Sequence[WaitingRank], seen: Sequence[Sighting]) -> bool:
        """Whether a rank's device has done all that its host gave it, and that host does not get on: nobody is behind it,
        and others' hosts have gone on, which no call makes wait for another rank."""
        if own.position.completed < 0 or own.position.is_issued_ahead:
            return False
        return not any(wait.behind for wait in found) and any(
            seen[wait.member].host_key > own.host_key for wait in found
        )

    def _culprit(self, seen: Sequence[Sighting], waits: Mapping[int, list[WaitingRank]]) -> tuple[int, str]:
        def first(ranks: Sequence[int]) -> int:
            """The one that got least far; of several the one that came there last."""
            return min(ranks, key=lambda rank: (seen[rank].key, -seen[rank].position.time, rank))

        if stopped := [rank for rank, each in enumerate(seen) if is_stopped(each.state)]:
            return first(stopped), "stopped"
        if working := [rank for rank in waits if not waits[rank] and seen[rank].position.kind != ENDED]:
            own = [rank for rank in working if seen[rank].is_in_communication is not True] or working
            rank = first(own)
            host_computes = seen[rank].state == "R" and not seen[rank].position.is_issued_ahead
            return rank, "looping" if host_computes else "hung"
        if left := [rank for rank, each in waits.items() if len(each) > 1 and all(wait.passed for wait in each)]:
            return first(left), "lost"  # whoever leaves something out leaves all others waiting
        if skipped := [w.member for each in waits.values() for w in each if w.passed and self._went_alone(w, seen)]:
            return first(skipped), "skipped"
        idle = [rank for rank, each in enumerate(seen) if not each.position.is_issued_ahead]
        running = [rank for rank in idle if seen[rank].state == "R" and not seen[rank].traceback]
        if running := [rank for rank in running if seen[rank].position.runs_program]:  # too busy to say where it is
            return first(running), "looping"
        sinks = [rank for rank, each in waits.items() if not any(wait.behind for wait in each)]
        return first(sinks or list(waits)), "lost"

    def held_up_by(self, rank: int, seen: Sequence[Sighting]) -> list[WaitingRank]:
        """Ranks that keep a rank waiting: who has not come; or who has come and then stopped; or who went past."""
        waits = self.waits(rank, seen)
        return (
            [wait for wait in waits if wait.behind]
            or [wait for wait in waits if not wait.passed and not self.waits(wait.member, seen)]
            or [wait for wait in waits if wait.passed]
        )

    def _told(self, rank: int, seen: Sequence[Sighting]) -> list[str]:
        """One line on a rank that waits."""
        wanted = self.held_up_by(rank, seen)
        if not wanted:
            return []
        members = ", ".join(f"rank {wait.member}" for wait in wanted[:_SHOWN])
        passed = ", which went past it" if wanted[0].passed else ""
        return [
            f"rank {rank} waits at {self.place(seen[rank].position, rank)} for {members} ({wanted[0].group}){passed}"
        ]

    def chain(self, seen: Sequence[Sighting]) -> list[int]:
        """Ranks of which each waits for the next, as many as there are."""
        longest: list[int] = []
        for rank in range(len(seen)):
            found = [rank]
            while (by := self.held_up_by(found[-1], seen)) and (first := by[0].member) not in found:
                found.append(first)
            longest = max(longest, found, key=len)
        return longest

    def place(self, position: Position, rank: int) -> str:
        """`step 7 #12 `B b3 m0``, or what else the rank does; on a device also what it completed last, and what its host issues."""
        if not position.pid:
            return "its start"
        name = self.instruction(position, rank)
        if not name:
            return f"{ACTIVITIES[position.kind]} step {position.step}"
        kind = "evaluation after " if position.kind == EVALUATING else ""
        text = f"{kind}step {position.step} #{position.at} `{name}`"
        if position.completed < 0:
            return text
        last = self._short(position, rank, position.at - 1)
        completed = f"completed `{last}` last" if last else "completed nothing of it"
        return (
            f"{text} (its device has {completed}, its host is at #{position.counter} `{self._short(position, rank)}`)"
        )

    def instruction(self, position: Position, rank: int) -> str:
        """The short form of the instruction at which the rank stands; empty between programs."""
        return self._short(position, rank, position.at)

    def _short(self, position: Position, rank: int, index: int | None = None) -> str:
        """The short form of an instruction of the program at a position, by default of the one that its host is at."""
        program = self._program(position, rank) if position.pid else None
        index = position.counter if index is None else index
        if program is None or index < 0:
            return ""
        return program.instructions[index].short if index < len(program.instructions) else "end"

    def num_instructions(self, position: Position, rank: int) -> int:
        """How many instructions the program at a position has; 0 between programs."""
        program = self._program(position, rank)
        return len(program.instructions) if program is not None else 0

    def _program(self, place: Position, rank: int) -> Program | None:
        if place.kind not in self._layouts:
            return None
        return self._programs(place)[self._layouts[place.kind].coordinates(rank)["pp"]]


def _writes(own: Sighting, other: Sighting) -> bool:
    """Whether another rank still does its part of the save in which this one is."""
    return other.key == own.key and other.position.save == WRITING
