"""One entry of a compute order, and the numbering of microbatches: every stage takes them in turn, 0, 1, 2, ..."""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from fourfold.program.instruction import Op


class Compute(NamedTuple):
    """Forward, backward, or one half of backward, of one stage on one microbatch."""

    op: Op
    stage: int
    microbatch: int


Orders = tuple[tuple[Compute, ...], ...]
"""The compute order of every pipeline rank."""

Kind = tuple[Op, int]
"""(op, stage), without the microbatch."""

FORWARD, BACKWARD = Op.FORWARD, Op.BACKWARD
BACKWARD_INPUT, BACKWARD_WEIGHT = Op.BACKWARD_INPUT, Op.BACKWARD_WEIGHT
HALVES = (BACKWARD_INPUT, BACKWARD_WEIGHT)
SCHEDULED_OPS = (FORWARD, BACKWARD, *HALVES)


def numbered(kinds: Iterable[Kind], num_microbatches: int) -> Iterator[Compute]:
    """Gives each (op, stage) its microbatch, first in first out; BACKWARD_WEIGHT takes the oldest that BACKWARD_INPUT left.

    Microbatches past `num_microbatches` are left out. So a ragged count is the order of a larger, even count with some
    entries missing, and what was executable stays executable: no entry depends on one of another microbatch.
    """
    forwards: dict[int, int] = {}
    backwards: dict[int, int] = {}
    pending: dict[int, deque[int]] = {}
    for op, stage in kinds:
        if op is BACKWARD_WEIGHT:
            microbatch = pending[stage].popleft()
        else:
            counts = forwards if op is FORWARD else backwards
            microbatch = counts.get(stage, 0)
            counts[stage] = microbatch + 1
            if op is BACKWARD_INPUT:
                pending.setdefault(stage, deque()).append(microbatch)
        if microbatch < num_microbatches:
            yield Compute(op, stage, microbatch)
