"""Every rank's program counter, which others can read while the rank runs: memory that they share through a file.

The file in the run's folder holds one record a rank. A rank writes to its own without a call to the system: the kernel brings the
pages to the disk when it likes, and a reader on the same machine sees them at once. A reader may catch a record half written; what
it shows of a rank that stands still is right. Machines share no memory: each has a file of its own.
"""

import mmap
import os
import struct
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from fourfold.layout import Layout
from fourfold.program import Instruction, Op, Program
from fourfold.program.ops import OTHER_END

_RECORD = struct.Struct("<qqddiiqqi4x")
_COUNTER = struct.Struct("<qdd")
"""The part of a record that every instruction changes, after the step."""
_TIMES, _COMPLETED, _SAVE = struct.Struct("<dd"), struct.Struct("<q"), struct.Struct("<i")
_TIMES_AT, _COMPLETED_AT, _SAVE_AT = 16, 48, 56
"""Places of a record that other threads than the main one write. One more is written than was completed: 0 is no device."""
WRITING, WAITING = 1, 2
"""States of a save under way: this rank does its own part, or waits for all ranks; 0: none is under way."""
FILES = "progress*.bin"
MOST_RANKS, MOST_FILES = 2**18, 2**16
"""Records of a file, and files, that are read at most."""
TRAINING, EVALUATING, SAVING, STARTING, READING, ENDED, COPYING = range(7)
ACTIVITIES = (
    "training",
    "evaluating",
    "saving",
    "starting",
    "reading the data of",
    "at the end,",
    "copying the state of",
)
"""The kinds of a position, as words before its step. SAVING waits for storage; COPYING does not: it is the copy to host memory that
a save beside training begins with."""


@dataclass(frozen=True)
class Position:
    """Where a rank was last seen: step, index of the instruction that its host has come to, Unix time, and `kind`. `busy_seconds`:
    spent in instructions that wait for no other rank. `pid`: its process, 0 before it has reported, on the machine that `host`
    names. `completed`: how many instructions its device has completed, where its host only issues them; -1 where the host itself
    computes. `save`: of the save under way, `WRITING` or `WAITING`."""

    step: int
    counter: int
    time: float
    busy_seconds: float
    kind: int
    pid: int
    host: int = 0
    completed: int = -1
    save: int = 0

    @property
    def at(self) -> int:
        """The instruction at which the rank stands: its device's where it has one, which the host's may be far ahead of."""
        return self.counter if self.completed < 0 else min(self.completed, self.counter)

    @property
    def is_issued_ahead(self) -> bool:
        """Whether the device has work left of what the host has issued: then the host's own calls say nothing."""
        return 0 <= self.completed < self.counter

    @property
    def runs_program(self) -> bool:
        return self.kind in (TRAINING, EVALUATING)

    @property
    def place(self) -> tuple[int, ...]:
        """Changes whenever the rank gets on, its host or its device."""
        return (self.step, self.kind, self.counter, self.completed, self.save)


NOWHERE = Position(0, 0, 0.0, 0.0, TRAINING, 0)
"""The position of a rank that has not reported."""


_BOOT = Path("/proc/sys/kernel/random/boot_id")


def this_boot() -> int:
    """A number below 2**60 that all processes of a machine share, whatever starts them and in whatever container, until it boots
    again; 0 where the system has none."""
    try:
        return int(_BOOT.read_text().replace("-", "")[:15], 16)
    except (OSError, ValueError):
        return 0


def this_host() -> int:
    """A number that processes share which see each other's numbers: of this boot of this machine, and of its container."""
    try:
        names = _BOOT.read_text() + os.readlink("/proc/self/ns/pid")
    except OSError:
        return 0
    return zlib.crc32(names.encode())


def positions_file(folder: Path, machine: int = 0) -> Path:
    """The file to which a machine's ranks write. `machine`: its number, 0 where rank 0 is."""
    return folder / (f"progress-{machine}.bin" if machine else "progress.bin")


class ProgressBoard:
    """Writes this rank's record. `has_device`: whether the host only issues the instructions of programs."""

    def __init__(self, folder: Path, rank: int, machine: int = 0, has_device: bool = False) -> None:
        offset = rank * _RECORD.size
        page = offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        file = os.open(positions_file(folder, machine), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            os.pwrite(
                file, bytes(_RECORD.size), offset
            )  # a page that the disk has no room for would end the process later
            self._map = mmap.mmap(file, offset - page + _RECORD.size, offset=page)
        finally:
            os.close(file)
        self._offset = offset - page
        self._changing = self._offset + 8
        self._pid, self._host = os.getpid(), this_host()
        self._last = time.time()
        self._busy = 0.0
        self._known: tuple[Program | None, Sequence[bool]] = None, ()
        self._works = False
        self._save = 0
        self.has_device, self.epoch = has_device, 0
        """`epoch` rises with every `enter`: what a thread found before is then of another program."""
        self._lock = threading.Lock()
        self.enter(STARTING, 0)

    def enter(self, kind: int, step: int, program: Program | None = None) -> None:
        """Begins something else. `program`: the one that runs now."""
        if program is not None and program is not self._known[0]:
            self._known = program, own_work(program)
        with self._lock:
            self.kind, self.step, self.epoch = kind, step, self.epoch + 1
            self.own_work = self._known[1] if program is not None else ()
            on_device = self.has_device and program is not None
            self._own = () if on_device else self.own_work
            completed = 1 if on_device else 0
            place = step, 0, self._last, self._busy, kind, self._pid, self._host, completed, self._save
            _RECORD.pack_into(self._map, self._offset, *place)
        self.record(0)

    def record(self, counter: int) -> None:
        """Notes that instruction `counter` begins; on a device, that its host has come to it."""
        now = time.time()
        if self._works:
            self._busy += now - self._last
        self._last = now
        self._works = self._own[counter] if counter < len(self._own) else self.kind == READING
        _COUNTER.pack_into(self._map, self._changing, counter, now, self._busy)

    def complete(self, number: int, busy_seconds: float, epoch: int) -> None:
        """Notes, from another thread, that the device has completed so many instructions of the program of that epoch, in
        `busy_seconds` more of its own work."""
        with self._lock:
            if epoch == self.epoch:
                self._busy += busy_seconds
                _TIMES.pack_into(self._map, self._offset + _TIMES_AT, time.time(), self._busy)
                _COMPLETED.pack_into(self._map, self._offset + _COMPLETED_AT, number + 1)

    def saves(self, what: int) -> None:
        """Notes, from any thread, what the save under way does."""
        with self._lock:
            self._save = what
            _SAVE.pack_into(self._map, self._offset + _SAVE_AT, what)


def own_work(program: Program) -> tuple[bool, ...]:
    """For each instruction whether it waits for no other rank."""
    return tuple(s.op is not Op.WAIT and (s.op.is_start or not s.collectives) for s in program.instructions)


def clear_positions(folder: Path, ranks: int, machine: int = 0) -> None:
    """Makes empty records for all ranks in the file of a machine. Raises `OSError`."""
    positions_file(folder, machine).write_bytes(bytes(ranks * _RECORD.size))


def read_positions(folder: Path, machine: int | None = None, ranks: int = MOST_RANKS) -> list[Position]:
    """The records of all ranks, of the first `ranks` at most, as the file of one machine has them, or by default those that were
    written last; an empty list where no rank has reported."""
    if machine is not None:
        found = _records(positions_file(folder, machine), ranks)
    else:
        found = _records(positions_file(folder), ranks)
        for path in islice(folder.glob(FILES), MOST_FILES):
            others = _records(path, len(found))
            found[: len(others)] = [max(pair, key=_last_written) for pair in zip(found, others, strict=False)]
    return found if any(position.pid for position in found) else []


def _last_written(position: Position) -> tuple[bool, float]:
    return (position.pid > 0, position.time)


def _records(path: Path, ranks: int) -> list[Position]:
    try:
        with open(path, "rb") as file:
            raw = file.read(ranks * _RECORD.size)
    except OSError:
        return []
    fields = _RECORD.iter_unpack(raw[: len(raw) // _RECORD.size * _RECORD.size])
    found = [
        Position(step, counter, time, busy, kind, pid, host, completed - 1, save)
        for step, counter, time, busy, kind, pid, host, completed, save in fields
    ]
    return [each if _is_sound(each) else NOWHERE for each in found]


def _is_sound(found: Position) -> bool:
    """Whether a rank could have written this: what damage or somebody else wrote is no position."""
    counts = 0 <= found.step < 2**53 and 0 <= found.counter < 2**53 and found.pid >= 0 and -1 <= found.completed < 2**53
    return counts and found.kind in range(len(ACTIVITIES)) and 0 <= found.time < 1e11 and abs(found.busy_seconds) < 1e11


def describe_save_wait(rank: int, step: int, positions: Sequence[Position]) -> str:
    """Names the ranks that have not come to save step `step`."""
    missing = [
        f"rank {member} stopped at step {place.step} #{place.counter}"
        for member, place in enumerate(positions)
        if member != rank and (place.step < step or place.kind != SAVING)
    ]
    return "; ".join(
        [f"rank {rank} waits to save step {step}", *(missing or ["all its peers came: a connection was lost"])]
    )


def describe_wait(
    rank: int, index: int, step: int, programs: Sequence[Program], layout: Layout, positions: Sequence[Position]
) -> str:
    """Who waits, at which instruction, and for whom: `rank 5 waits at #812 ...; rank 6 stopped at #640 ... (dp_shard group 2)`.

    `programs`: of every pipeline coordinate, of the kind that runs.
    """
    program = programs[layout.coordinates(rank)["pp"]]
    instruction, start = program.instructions[index], start_of(program, index)
    lines = [f"rank {rank} waits at step {step} #{index} `{instruction.short}`"]
    for axes, members in peers_of(rank, program.instructions[start], layout):
        for member in members:
            if member == rank or member >= len(positions):
                continue
            other, place = programs[layout.coordinates(member)["pp"]], positions[member]
            known = place.at < len(other.instructions)
            at = f"step {place.step} #{place.at} `{other.instructions[place.at].short if known else 'end'}`"
            entry = start if other is program else entry_of(program.instructions[start], other)
            behind = (place.step, place.at) < (step, entry)
            state = f"stopped at {at}" if behind else f"has entered it, and was last seen at {at}"
            lines.append(f"rank {member} {state} ({axes})")
    if len(lines) == 1:
        lines.append("nothing is known of its peers")
    return "; ".join(lines)


def start_of(program: Program, index: int) -> int:
    """The instruction that a wait joins; any other instruction itself."""
    step = program.instructions[index]
    if step.op is not Op.WAIT:
        return index
    return max((i for i in range(index) if program.instructions[i].short == step.handle), default=index)


def join_of(program: Program, start: int) -> int:
    """The wait that joins what instruction `start` begins; itself where it waits at once."""
    handle, steps = program.instructions[start].short, program.instructions
    return next((i for i in range(start, len(steps)) if steps[i].op is Op.WAIT and steps[i].handle == handle), start)


def peers_of(rank: int, started: Instruction, layout: Layout) -> list[tuple[str, tuple[int, ...]]]:
    """(name of a group, its ranks) for each collective; for a transfer its other end."""
    if started.peer is not None:
        return [("pp", (layout.group_of(rank, ("pp",))[started.peer],))]
    result = []
    for collective in started.collectives:
        axes = tuple(collective.axes.split("+"))
        group = layout.group_of(rank, axes)
        result.append((f"{collective.axes} group {layout.groups(axes).index(group)}", group))
    return result


def entry_of(started: Instruction, other: Program) -> int:
    """The instruction with which another pipeline rank joins in: the other end of a transfer, or the same collective."""
    wanted = (OTHER_END.get(started.op, started.op), started.segment, started.microbatch)
    entries = (i for i, s in enumerate(other.instructions) if (s.op, s.segment, s.microbatch) == wanted)
    return next(entries, len(other.instructions))


def describe_positions(
    programs: Callable[[str, int], Sequence[Program]], layout: Layout, positions: Sequence[Position]
) -> list[str]:
    """One line for each rank: step, counter, instruction, and its age. `programs`: of every pipeline coordinate, for a kind and
    a step."""
    lines = []
    for rank, place in enumerate(positions):
        ago = f"{time.time() - place.time:.1f} s ago"
        if not place.runs_program:
            lines.append(
                f"rank {rank}: {ACTIVITIES[place.kind]} step {place.step}, {ago}" if place.pid else f"rank {rank}: gone"
            )
            continue
        program = programs("train" if place.kind == TRAINING else "evaluate", place.step)[layout.pp_rank(rank)]
        known = place.at < len(program.instructions)
        what = f"`{program.instructions[place.at].short}`" if known else "the end"
        lines.append(f"rank {rank}: step {place.step} #{place.at} {what}, {ago}")
    return lines
