"""From where all ranks stand to the one at fault: who waits for whom, in the order of their programs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from fourfold.launch.resolve import ResolvedRun
from fourfold.layout import Layout
from fourfold.program import Program
from fourfold.runtime.progress import (
    ACTIVITIES,
    COPYING,
    ENDED,
    EVALUATING,
    READING,
    SAVING,
    STARTING,
    TRAINING,
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
        return (self.position.step, _ORDER[self.position.kind], self.position.counter)

    @property
    def is_in_communication(self) -> bool | None:
        """Whether the innermost calls are those of a collective; None where the traceback is not known."""
        return any(part in line for line in self.traceback[:3] for part in _COMMUNICATION) if self.traceback else None


@dataclass(frozen=True)
class Verdict:
    """The rank at fault. `cause`: stopped, looping, hung, skipped or lost. `message` names step, instruction and who waits."""

    rank: int
    cause: str
    message: str
    instruction: str
    still_seconds: float = 0.0


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
        place = self.place(seen[rank].position, rank)
        message = "; ".join([f"rank {rank} {words[cause]} at {place}", *chain[:_SHOWN], *more])
        position = seen[rank].position
        doing = ACTIVITIES[position.kind].removesuffix(" of")
        return Verdict(rank, cause, message, self.instruction(position, rank) or doing)

    def waits(self, rank: int, seen: Sequence[Sighting]) -> list[WaitingRank]:
        """For whom a rank waits, where it stands now. Empty: for nobody."""
        own = seen[rank]
        place = own.position
        if is_stopped(own.state) or own.is_in_communication is False:
            return []
        if place.kind == SAVING:
            return [
                WaitingRank(rank, other, "all ranks", seen[other].key < own.key, False)
                for other in range(len(seen))
                if other != rank
            ]
        program = self._program(place, rank)
        if program is None or place.counter >= len(program.instructions):
            return []
        if own_work(program)[place.counter]:
            return []
        start = start_of(program, place.counter)
        layout, programs = self._layouts[place.kind], self._programs(place)
        found = []
        for axes, members in peers_of(rank, program.instructions[start], layout):
            for member in members:
                if member == rank or member >= len(seen):
                    continue
                other, theirs = programs[layout.coordinates(member)["pp"]], seen[member].key
                entry = start if other is program else entry_of(program.instructions[start], other)
                end = join_of(other, entry) if entry < len(other.instructions) else entry
                ours = (place.step, _ORDER[place.kind])
                stopped_inside = is_stopped(seen[member].state) and theirs <= (*ours, end)
                is_behind = theirs < (*ours, entry) or stopped_inside
                found.append(WaitingRank(rank, member, axes, is_behind, theirs > (*ours, end)))
        return found

    def _culprit(self, seen: Sequence[Sighting], waits: Mapping[int, list[WaitingRank]]) -> tuple[int, str]:
        def first(ranks: Sequence[int]) -> int:
            return min(ranks, key=lambda rank: (seen[rank].key, rank))

        if stopped := [rank for rank, each in enumerate(seen) if is_stopped(each.state)]:
            return first(stopped), "stopped"
        if working := [rank for rank in waits if not waits[rank] and seen[rank].position.kind != ENDED]:
            own = [rank for rank in working if seen[rank].is_in_communication is not True] or working
            rank = first(own)
            return rank, "looping" if seen[rank].state == "R" else "hung"
        if skipped := [wait.member for each in waits.values() for wait in each if wait.passed]:
            return first(skipped), "skipped"
        running = [rank for rank, each in enumerate(seen) if each.state == "R" and not each.traceback]
        if running := [rank for rank in running if seen[rank].position.runs_program]:  # too busy to say where it is
            return first(running), "looping"
        sinks = [rank for rank, each in waits.items() if not any(wait.behind for wait in each)]
        return first(sinks or list(waits)), "lost"

    def held_up_by(self, rank: int, seen: Sequence[Sighting]) -> list[WaitingRank]:
        """Those that keep a rank waiting: who has not come; or who has come and then stopped; or who went past."""
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
        """`step 7 #12 `B b3 m0``, or what else the rank does."""
        if not position.pid:
            return "its start"
        name = self.instruction(position, rank)
        if not name:
            return f"{ACTIVITIES[position.kind]} step {position.step}"
        kind = "evaluation after " if position.kind == EVALUATING else ""
        return f"{kind}step {position.step} #{position.counter} `{name}`"

    def instruction(self, position: Position, rank: int) -> str:
        """The short form of the instruction at a position; empty between programs."""
        if not position.pid:
            return ""
        program = self._program(position, rank)
        if program is None:
            return ""
        steps = program.instructions
        return steps[position.counter].short if position.counter < len(steps) else "end"

    def num_instructions(self, position: Position, rank: int) -> int:
        """How many instructions the program at a position has; 0 between programs."""
        program = self._program(position, rank)
        return len(program.instructions) if program is not None else 0

    def _program(self, place: Position, rank: int) -> Program | None:
        if place.kind not in self._layouts:
            return None
        return self._programs(place)[self._layouts[place.kind].coordinates(rank)["pp"]]
