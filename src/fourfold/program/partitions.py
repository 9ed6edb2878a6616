"""A list of instructions cut into partitions that have no buffer in common: one for each microbatch's own buffers, one for all
others.

A law about buffers holds for the list where it holds for every partition. Microbatches that do the same have equal partitions: one
of them is looked at for all.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fourfold.program.instruction import Instruction, Op
from fourfold.program.pattern import Pattern, Steps, split_name


@dataclass(frozen=True)
class Partition:
    """Equal partitions. `places`: of each, where its instructions stand in the list. `make(k)`: the instructions of the k-th, with
    those of their buffers alone that are the partition's."""

    places: Sequence[Sequence[int]]
    make: Callable[[int], Sequence[Instruction]]


def cut_into_partitions(steps: Steps, resident: Sequence[str]) -> tuple[Partition, list[Partition]]:
    """The common partition, which has the buffers that outlive the step (`resident`), and those of microbatches.

    A list that cannot be cut is one partition: where an instruction names another microbatch's buffers, or starts what uses
    buffers of both kinds.
    """
    started = _started(steps, resident)
    if started is None:
        return Partition([range(len(steps))], lambda _: steps.instructions), []
    own = {pattern: part for pattern in steps.microbatches if (part := _part(pattern, True, started))}
    shared = {pattern: part for pattern in steps.microbatches if (part := _part(pattern, False, started))}
    common: list[int] = []
    rows: dict[int | None, list[int]] = {}
    for index, (pattern, m) in enumerate(steps.steps):
        if pattern in own:
            if m in rows:
                rows[m].append(index)
            else:
                rows[m] = [index]
        if pattern in shared:
            common.append(index)
    equal: dict[tuple[Pattern, ...], list[int | None]] = {}
    for m, places in rows.items():
        equal.setdefault(tuple([steps.steps[index][0] for index in places]), []).append(m)
    return Partition([common], lambda _: _common(steps, common, shared)), [
        Partition([rows[m] for m in numbers], _maker([own[pattern] for pattern in sequence], numbers))
        for sequence, numbers in equal.items()
    ]


def _maker(parts: list[Pattern], numbers: list[int | None]) -> Callable[[int], list[Instruction]]:
    return lambda k: [part.of(numbers[k]) for part in parts]


def _common(steps: Steps, common: list[int], shared: dict[Pattern, Pattern]) -> list[Instruction]:
    """Only what is started and joined is told apart by its microbatch."""
    examples = {pattern: part.of(steps.microbatches[pattern][0]) for pattern, part in shared.items()}
    result = []
    for index in common:
        pattern, m = steps.steps[index]
        example = examples[pattern]
        result.append(shared[pattern].of(m) if example.op.is_start or example.op is Op.WAIT else example)
    return result


def _started(steps: Steps, resident: Sequence[str]) -> dict[str, bool] | None:
    """By the short form of what is started, whether it uses its microbatch's own buffers; None where the list cannot be cut."""
    started: dict[str, bool] = {}
    if any(split_name(buffer)[1] is not None for buffer in resident):
        return None
    for pattern in steps.microbatches:
        if pattern.strays:
            return None
        if pattern.op.is_start:
            kinds = {own for _, own in (*pattern.reads, *pattern.writes, *pattern.frees)} or {False}
            if len(kinds) > 1 or started.setdefault(pattern.short, *kinds) not in kinds:
                return None
    return started


def _part(pattern: Pattern, own: bool, started: dict[str, bool]) -> Pattern | None:
    """The pattern's part in the microbatch's own partition, or in the common one."""
    joins = pattern.op is Op.WAIT and started.get(pattern.handle or "", False) == own
    starts = pattern.op.is_start and started[pattern.short] == own
    part = pattern.part(own, Op.FREE if pattern.op is Op.WAIT and not joins else pattern.op)
    return part if joins or starts or part.reads or part.writes or part.frees else None
