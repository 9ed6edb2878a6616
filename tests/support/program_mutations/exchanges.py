"""Exchanges of experts' rows: not joined, joined late, begun before their rows are there, or in another order on one rank."""

from collections.abc import Iterator
from itertools import pairwise

from fourfold.program import Op, Program, RankView
from fourfold.program.overlap.rows import OverlapOp
from tests.support.opcodes import ALL_TO_ALLS
from tests.support.program_mutations.edits import Mutant, drop, mutation, starts, with_collective
from tests.support.programs import edited, moved, positions, wait_of

PARTS = (
    Op.FORWARD,
    OverlapOp.EXPERTS_FORWARD,
    OverlapOp.FINISH_FORWARD,
    Op.BACKWARD,
    OverlapOp.EXPERTS_BACKWARD,
    OverlapOp.FINISH_BACKWARD,
)


def _neighbour(program: Program, index: int, step: int) -> int:
    """The next or the last part of the pass whose exchange is at `index`."""
    own = program.instructions[index]
    place = index + step
    while True:
        there = program.instructions[place]
        if there.op in PARTS and (there.segment, there.microbatch) == (own.segment, own.microbatch):
            return place
        place += step


@mutation
def exchange_not_joined(program: Program, view: RankView) -> Iterator[Mutant]:
    for index in starts(program, *ALL_TO_ALLS):
        yield drop(program, wait_of(program, index))


@mutation
def exchange_joined_after_its_reader(program: Program, view: RankView) -> Iterator[Mutant]:
    for index in starts(program, *ALL_TO_ALLS):
        yield moved(program, wait_of(program, index), _neighbour(program, index, 1) + 1)


@mutation
def exchange_started_before_its_rows(program: Program, view: RankView) -> Iterator[Mutant]:
    for index in starts(program, *ALL_TO_ALLS):
        yield moved(program, index, _neighbour(program, index, -1))


@mutation
def exchanges_in_another_order_on_one_rank(program: Program, view: RankView) -> Iterator[Mutant]:
    """Two that are in flight together; nothing is wrong within the rank's own list."""
    for first, second in pairwise(starts(program, *ALL_TO_ALLS)):
        a, b = program.instructions[first], program.instructions[second]
        if second < wait_of(program, first) and a.microbatch != b.microbatch:
            yield {0: edited(program, (first, []), (second, [b, a]))}


@mutation
def exchange_of_other_bytes(program: Program, view: RankView) -> Iterator[Mutant]:
    for index in positions(program, *ALL_TO_ALLS):
        yield with_collective(program, index, 0, bytes=program.instructions[index].collectives[0].bytes // 2)
