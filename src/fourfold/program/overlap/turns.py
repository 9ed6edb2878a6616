"""The overlap pass: two entries of a rank's order run as one, in turns, so that each one's all-to-alls run behind the other.

A schedule that pairs passes has a forward beside a backward (DualPipe; DeepSeek-AI 2024, section 3.2.1). Under any other,
microbatches go two by two: the schedule orders pairs of them, as if each was one. On one pipeline rank, that is gradient
accumulation.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, zip_longest

from fourfold.program.expand import expand_segments
from fourfold.program.instruction import Op
from fourfold.program.overlap.parts import in_parts
from fourfold.program.pattern import Step
from fourfold.program.schedule import Compute, Orders, find_schedule
from fourfold.program.schedule.execution import needs, walk
from fourfold.program.spec import StepSpec
from fourfold.program.stage_map import StageMap
from fourfold.program.view import RankView

Unit = tuple[Compute, ...]
"""An entry of a rank's order, or two that run in turns."""
Units = tuple[tuple[Unit, ...], ...]
"""The units of every pipeline rank."""

_SECONDS = {Op.FORWARD: 1.0, Op.BACKWARD: 2.0, Op.BACKWARD_INPUT: 1.0, Op.BACKWARD_WEIGHT: 1.0}


def overlapping_units(spec: StepSpec, orders: Orders, stages: StageMap) -> Units | None:
    """Which entries could run in turns; None where none do."""
    if not spec.overlaps_experts:
        return None
    pairs_passes = find_schedule(spec.layout.schedule).pairs_passes
    routed = {stage for stage, held in enumerate(stages.stages) if any(segment.moe for segment in held)}

    def fit(first: Compute, second: Compute) -> bool:
        if not {first.stage, second.stage} <= routed or first.microbatch == second.microbatch:
            return False
        if pairs_passes:
            return (first.op, second.op) == (Op.FORWARD, Op.BACKWARD)
        return first._replace(microbatch=second.microbatch) == second and first.microbatch % 2 == 0

    def cut(order: Sequence[Compute]) -> Iterator[Unit]:
        place = 0
        while place < len(order):
            unit = tuple(order[place : place + 2])
            if len(unit) < 2 or not fit(*unit):
                unit = unit[:1]
            yield unit
            place += len(unit)

    return tuple(tuple(cut(order)) for order in orders)


def placed_units(units: Units, num_stages: int) -> tuple[Units, list[list[int]]]:
    """The units, and their places in one global order of all ranks, in which each follows all that both of its entries need. A pair
    of which one entry waits, over other ranks, for the other is taken apart: that happens to few microbatches."""
    left = [deque(row) for row in units]
    placed: list[list[tuple[float, Unit]]] = [[] for _ in units]
    ends: dict[Compute, float] = {}

    def arrival(unit: Unit) -> float | None:
        """When all is there that the unit needs."""
        needed = [ends.get(each) for entry in unit for each in needs(entry, num_stages)]
        return None if None in needed else max([0.0, *(each for each in needed if each is not None)])

    def advance(rank: int) -> bool:
        """Places the rank's next units, until one needs what is not there. Whether there were any."""
        row, done = left[rank], placed[rank]
        before = len(done)
        while row and (arrived := arrival(row[0])) is not None:
            unit = row.popleft()
            free = ends[_result(done[-1][1][-1])] if done else 0.0
            end = max(free, arrived) + sum(_SECONDS[entry.op] for entry in unit)
            ends.update((_result(entry), end) for entry in unit)
            done.append((max(free, arrived), unit))
        return len(done) > before

    walk(range(len(left)), advance)
    while any(left):
        row = next(row for row in left if row and len(row[0]) > 1 and arrival(row[0][:1]) is not None)
        first, second = row.popleft()
        row.extendleft(((second,), (first,)))
        walk(range(len(left)), advance)
    flat = sorted((start, rank, index) for rank, row in enumerate(placed) for index, (start, _) in enumerate(row))
    places = [[0] * len(row) for row in placed]
    for place, (_, rank, index) in enumerate(flat):
        places[rank][index] = place
    return tuple(tuple(unit for _, unit in row) for row in placed), places


def _result(entry: Compute) -> Compute:
    """The entry that others wait for: a full backward gives the gradient that its first half does."""
    return entry._replace(op=Op.BACKWARD_INPUT) if entry.op is Op.BACKWARD else entry


@dataclass(frozen=True)
class Turns:
    """Units of every rank, with their places in the order of all."""

    units: Units
    unit_places: list[list[int]]

    @cached_property
    def places(self) -> list[list[int]]:
        """The places of single entries."""
        rows = zip(self.units, self.unit_places, strict=True)
        return [[at for unit, at in zip(*row, strict=True) for _ in unit] for row in rows]

    def expand(self, view: RankView) -> list[list[Step]]:
        """The steps of every unit: of two entries in turns, each up to the start of an all-to-all, then the other, which is joined
        when its turn comes again. A backward goes first: its dispatch starts at once, and needs something behind which to run."""
        units = self.units[view.pp_rank]
        alone = expand_segments([unit[0] for unit in units if len(unit) == 1], view)
        paired = expand_segments([entry for unit in units if len(unit) == 2 for entry in unit], view, routed=in_parts)
        singles, pairs = iter(alone), iter(paired)
        result = []
        for unit in units:
            if len(unit) == 1:
                result.append(next(singles))
                continue
            first, second = _turns(next(pairs)), _turns(next(pairs))
            if unit[1].op is not unit[0].op:
                first, second = second, first
            pairs_of_turns = zip_longest(first, second, fillvalue=list[Step]())
            result.append(list(chain.from_iterable(chain.from_iterable(pairs_of_turns))))
        return result


def interleave(spec: StepSpec, orders: Orders, stages: StageMap) -> Turns | None:
    """The turns of a step that overlaps its experts' all-to-alls; None of another."""
    units = overlapping_units(spec, orders, stages)
    return None if units is None else Turns(*placed_units(units, len(stages.ranks)))


def _turns(steps: Sequence[Step]) -> list[list[Step]]:
    """Cuts steps behind every start of an all-to-all."""
    turns: list[list[Step]] = [[]]
    for step in steps:
        turns[-1].append(step)
        if step[0].op.is_all_to_all:
            turns.append([])
    return turns
