"""Every rank's program counter, which others can read while the rank runs: one file of fixed records in the run folder."""

import os
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fourfold.layout import Layout
from fourfold.program import Instruction, Op, Program

_RECORD = struct.Struct("<qqdi4x")
FILE_NAME = "progress.bin"
TRAINING, EVALUATING, SAVING = 0, 1, 2


@dataclass(frozen=True)
class Position:
    """Where a rank was last seen: step, index of its instruction, Unix time, and `kind`: training, evaluating or saving."""

    step: int
    counter: int
    time: float
    kind: int


class ProgressBoard:
    """Writes this rank's record: one small write for each recorded instruction."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._file = os.open(folder / FILE_NAME, os.O_RDWR | os.O_CREAT, 0o644)
        self._offset = rank * _RECORD.size
        self.step = 0
        self.kind = 0

    def record(self, counter: int) -> None:
        os.pwrite(self._file, _RECORD.pack(self.step, counter, time.time(), self.kind), self._offset)

    def close(self) -> None:
        os.close(self._file)


def read_positions(folder: Path) -> list[Position]:
    """The records of all ranks; an empty list where there are none."""
    try:
        raw = (folder / FILE_NAME).read_bytes()
    except FileNotFoundError:
        return []
    usable = len(raw) // _RECORD.size * _RECORD.size
    return [Position(step, counter, seen, kind) for step, counter, seen, kind in _RECORD.iter_unpack(raw[:usable])]


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
    instruction = program.instructions[index]
    start = index
    if instruction.op is Op.WAIT:
        start = max((i for i in range(index) if program.instructions[i].short == instruction.handle), default=index)
    lines = [f"rank {rank} waits at step {step} #{index} `{instruction.short}`"]
    for axes, members in _peers(rank, program.instructions[start], layout):
        for member in members:
            if member == rank or member >= len(positions):
                continue
            other, place = programs[layout.coordinates(member)["pp"]], positions[member]
            known = place.counter < len(other.instructions)
            at = f"step {place.step} #{place.counter} `{other.instructions[place.counter].short if known else 'end'}`"
            entry = start if other is program else _entry(program.instructions[start], other)
            behind = (place.step, place.counter) < (step, entry)
            state = f"stopped at {at}" if behind else f"has entered it, and was last seen at {at}"
            lines.append(f"rank {member} {state} ({axes})")
    if len(lines) == 1:
        lines.append("nothing is known of its peers")
    return "; ".join(lines)


def _peers(rank: int, started: Instruction, layout: Layout) -> list[tuple[str, tuple[int, ...]]]:
    """(name of a group, its ranks) for each collective; for a transfer its other end."""
    if started.peer is not None:
        return [("pp", (layout.group_of(rank, ("pp",))[started.peer],))]
    result = []
    for collective in started.collectives:
        axes = tuple(collective.axes.split("+"))
        group = layout.group_of(rank, axes)
        result.append((f"{collective.axes} group {layout.groups(axes).index(group)}", group))
    return result


_OTHER_END = {
    Op.SEND_ACTIVATION: Op.RECV_ACTIVATION,
    Op.RECV_ACTIVATION: Op.SEND_ACTIVATION,
    Op.SEND_GRADIENT: Op.RECV_GRADIENT,
    Op.RECV_GRADIENT: Op.SEND_GRADIENT,
}


def _entry(started: Instruction, other: Program) -> int:
    """The instruction with which another pipeline rank joins in: the other end of a transfer, or the same collective."""
    wanted = (_OTHER_END.get(started.op, started.op), started.segment, started.microbatch)
    entries = (i for i, s in enumerate(other.instructions) if (s.op, s.segment, s.microbatch) == wanted)
    return next(entries, len(other.instructions))


def describe_positions(
    programs: Mapping[int, Sequence[Program]], layout: Layout, positions: Sequence[Position]
) -> list[str]:
    """One line for each rank: step, counter, instruction, and its age. `programs`: by kind, of every pipeline coordinate."""
    lines = []
    for rank, place in enumerate(positions):
        ago = f"{time.time() - place.time:.1f} s ago"
        if place.kind == SAVING:
            lines.append(f"rank {rank}: saving step {place.step}, {ago}")
            continue
        program = programs[place.kind][layout.coordinates(rank)["pp"]]
        known = place.counter < len(program.instructions)
        what = f"`{program.instructions[place.counter].short}`" if known else "the end"
        lines.append(f"rank {rank}: step {place.step} #{place.counter} {what}, {ago}")
    return lines
