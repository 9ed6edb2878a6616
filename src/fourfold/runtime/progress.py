"""Every rank's program counter, readable from outside while it runs: one file of fixed records in the run's folder."""

import os
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fourfold.layout import Layout
from fourfold.program import Op, Program

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
    """Writes this rank's record; costs one small write a published instruction."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._file = os.open(folder / FILE_NAME, os.O_RDWR | os.O_CREAT, 0o644)
        self._offset = rank * _RECORD.size
        self.step = 0
        self.kind = 0

    def publish(self, counter: int) -> None:
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
    """Which ranks have not come to save step `step`."""
    missing = [
        f"rank {member} stopped at step {place.step} #{place.counter}"
        for member, place in enumerate(positions)
        if member != rank and (place.step < step or place.kind != SAVING)
    ]
    return "; ".join(
        [f"rank {rank} waits to save step {step}", *(missing or ["all its peers came: a connection was lost"])]
    )


def describe_wait(
    rank: int, index: int, step: int, program: Program, layout: Layout, positions: Sequence[Position]
) -> str:
    """Who waits, at which instruction, and for whom: `rank 5 waits at #812 ...; rank 6 stopped at #640 ... (dp_shard group 2)`."""
    instruction = program.instructions[index]
    started = instruction
    if instruction.op is Op.WAIT:
        earlier = [s for s in program.instructions[:index] if s.short == instruction.handle]
        started = earlier[-1] if earlier else instruction
    lines = [f"rank {rank} waits at step {step} #{index} `{instruction.short}`"]
    for collective in started.collectives:
        axes = tuple(collective.axes.split("+"))
        group = layout.group_of(rank, axes)
        number = layout.groups(axes).index(group)
        for member in group:
            if member == rank or member >= len(positions):
                continue
            place = positions[member]
            known = place.counter < len(program.instructions)
            at = f"step {place.step} #{place.counter} `{program.instructions[place.counter].short if known else 'end'}`"
            behind = (place.step, place.counter) < (step, _start_index(program, index, started))
            state = f"stopped at {at}" if behind else f"has entered it, and was last seen at {at}"
            lines.append(f"rank {member} {state} ({collective.axes} group {number})")
    if len(lines) == 1:
        lines.append("nothing is known of its peers")
    return "; ".join(lines)


def _start_index(program: Program, index: int, started: object) -> int:
    return max((i for i, s in enumerate(program.instructions[: index + 1]) if s is started), default=index)


def describe_positions(programs: Mapping[int, Program], positions: Sequence[Position]) -> list[str]:
    """One line a rank: step, counter and instruction, and how long ago."""
    lines = []
    for rank, place in enumerate(positions):
        ago = f"{time.time() - place.time:.1f} s ago"
        if place.kind == SAVING:
            lines.append(f"rank {rank}: saving step {place.step}, {ago}")
            continue
        program = programs[place.kind]
        known = place.counter < len(program.instructions)
        what = f"`{program.instructions[place.counter].short}`" if known else "the end"
        lines.append(f"rank {rank}: step {place.step} #{place.counter} {what}, {ago}")
    return lines
