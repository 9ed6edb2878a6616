"""Reductions, gathers and frees of units, and the Waits that join what is under way."""

from collections.abc import Iterator
from itertools import pairwise

from fourfold.program import Instruction, Op, Program, RankView
from tests.support.opcodes import BACKWARD_OPS, REDUCTIONS
from tests.support.program_mutations.edits import (
    Mutant,
    change,
    moved_with_wait,
    mutation,
    of_unit,
    once_more,
    others,
    starts,
    with_collective,
)
from tests.support.programs import edited, moved, positions, wait_of

# Reductions


@mutation
def gradients_dropped_before_the_last_microbatch(program: Program, view: RankView) -> Iterator[Mutant]:
    """The buffer is freed behind a backward or a reduction that a later one of the same unit follows, and made anew there."""
    for index, step in enumerate(program.instructions):
        started = [s for s in program.instructions[:index] if s.short == step.handle]
        for name in (started[-1] if started else step).writes:
            kept = name.startswith(("grad/", "grad_shard/")) and name not in step.frees
            again = any(name in later.writes for later in program.instructions[index + 1 :])
            if kept and again and (step.op is Op.WAIT or step.op in BACKWARD_OPS):
                yield change(program, index, frees=(*step.frees, name))


@mutation
def reduce_twice_in_a_row(program: Program, view: RankView) -> Iterator[Mutant]:
    for index in starts(program, *REDUCTIONS):
        yield once_more(program, index)


@mutation
def reduce_before_the_last_backward(program: Program, view: RankView) -> Iterator[Mutant]:
    """The full reduction, started and joined after the first microbatch's backward of an accumulation."""
    for index in starts(program, *REDUCTIONS):
        unit = program.instructions[index].segment
        if view.flats[unit or ""].zero >= 2 or view.spec.layout.num_microbatches < 2:
            continue
        early = next(i for i, step in enumerate(program.instructions) if f"grad/{unit}" in step.writes)
        yield moved_with_wait(program, index, early)


@mutation
def reduce_over_wrong_axes(program: Program, view: RankView) -> Iterator[Mutant]:
    for index in starts(program, *REDUCTIONS):
        for which, collective in enumerate(program.instructions[index].collectives):
            for axes in ("dp_replicate", "dp_shard", "dp_replicate+dp_shard", "pp", "tp"):
                if axes != collective.axes:
                    size = view.spec.layout.group_size(tuple(axes.split("+")))
                    yield with_collective(program, index, which, axes=axes, group_size=size)


@mutation
def reduce_of_the_wrong_kind(program: Program, view: RankView) -> Iterator[Mutant]:
    for index in starts(program, *REDUCTIONS):
        for which, collective in enumerate(program.instructions[index].collectives):
            for kind in ("all_gather", "reduce_scatter", "all_reduce", "all_to_all"):
                if kind != collective.kind:
                    yield with_collective(program, index, which, kind=kind)


@mutation
def replicas_not_summed(program: Program, view: RankView) -> Iterator[Mutant]:
    for index in starts(program, *REDUCTIONS):
        collectives = program.instructions[index].collectives
        if len(collectives) > 1:
            yield change(program, index, collectives=collectives[:1])
            yield change(program, index, collectives=collectives[1:])


@mutation
def replicas_summed_twice(program: Program, view: RankView) -> Iterator[Mutant]:
    for index in starts(program, *REDUCTIONS):
        collectives = program.instructions[index].collectives
        yield change(program, index, collectives=(*collectives, collectives[-1]))


@mutation
def replicas_summed_in_every_microbatch(program: Program, view: RankView) -> Iterator[Mutant]:
    reduces = {step.segment: step for step in program.instructions if step.op.is_reduction}
    for index in starts(program, *REDUCTIONS):
        step = program.instructions[index]
        final = reduces[step.segment]
        if len(final.collectives) > len(step.collectives):
            yield change(program, index, collectives=final.collectives)


@mutation
def reduce_without_a_collective(program: Program, view: RankView) -> Iterator[Mutant]:
    for index in starts(program, *REDUCTIONS):
        yield change(program, index, collectives=())


@mutation
def reduce_of_the_wrong_unit(program: Program, view: RankView) -> Iterator[Mutant]:
    for index in starts(program, *REDUCTIONS):
        for unit in others(program.instructions[index].segment, view):
            yield of_unit(program, index, unit)


# Gathers and frees


@mutation
def free_before_use(program: Program, view: RankView) -> Iterator[Mutant]:
    for index in positions(program, Op.FREE):
        buffer = program.instructions[index].frees[0]
        users = [i for i in range(index) if buffer in program.instructions[i].reads]
        yield moved(program, index, users[-1])


@mutation
def free_by_another_name(program: Program, view: RankView) -> Iterator[Mutant]:
    for index in positions(program, Op.FREE):
        for unit in others(program.instructions[index].segment, view):
            yield of_unit(program, index, unit)


@mutation
def free_of_what_outlives_the_step(program: Program, view: RankView) -> Iterator[Mutant]:
    for name in program.resident:
        steps = [*program.instructions, Instruction(Op.FREE, name.partition("/")[2] or None, frees=(name,))]
        yield program.with_instructions(steps)


@mutation
def gather_of_the_wrong_unit(program: Program, view: RankView) -> Iterator[Mutant]:
    for index in starts(program, Op.GATHER):
        for unit in others(program.instructions[index].segment, view):
            yield of_unit(program, index, unit)


@mutation
def gather_over_wrong_axes(program: Program, view: RankView) -> Iterator[Mutant]:
    for index in starts(program, Op.GATHER, Op.PARAMETER_ALL_GATHER):
        for axes in ("dp_replicate", "dp_replicate+dp_shard", "pp"):
            size = view.spec.layout.group_size(tuple(axes.split("+")))
            if axes != program.instructions[index].collectives[0].axes:
                yield with_collective(program, index, 0, axes=axes, group_size=size)


@mutation
def gather_of_the_wrong_kind(program: Program, view: RankView) -> Iterator[Mutant]:
    for index in starts(program, Op.GATHER, Op.PARAMETER_ALL_GATHER):
        for kind in ("all_reduce", "reduce_scatter", "all_to_all"):
            yield with_collective(program, index, 0, kind=kind)


@mutation
def gather_without_a_collective(program: Program, view: RankView) -> Iterator[Mutant]:
    for index in starts(program, Op.GATHER, Op.PARAMETER_ALL_GATHER):
        yield change(program, index, collectives=())


@mutation
def gather_after_its_use(program: Program, view: RankView) -> Iterator[Mutant]:
    for index in starts(program, Op.GATHER):
        wait, buffer = wait_of(program, index), program.instructions[index].writes[0]
        users = (i for i in range(wait, len(program.instructions)) if buffer in program.instructions[i].reads)
        if (use := next(users, None)) is not None:
            yield moved_with_wait(program, index, use)


# Waits


@mutation
def wait_too_late(program: Program, view: RankView) -> Iterator[Mutant]:
    """After the first instruction that touches what is in flight (for the count of targets: that divides by it)."""
    for wait in positions(program, Op.WAIT):
        handle = program.instructions[wait].handle
        start = max(i for i in range(wait) if program.instructions[i].short == handle)
        touched = {*program.instructions[start].writes, *program.instructions[start].reads}
        for index in range(wait + 1, len(program.instructions)):
            step = program.instructions[index]
            divides = handle == "N" and step.op is Op.BACKWARD and step.segment == "head"
            if divides or touched & {*step.reads, *step.frees, *(step.writes if step.op is not Op.WAIT else ())}:
                yield moved(program, wait, index + 1)
                break


@mutation
def wait_before_its_start(program: Program, view: RankView) -> Iterator[Mutant]:
    for index in starts(program):
        yield moved(program, wait_of(program, index), index)


@mutation
def wait_for_something_unknown(program: Program, view: RankView) -> Iterator[Mutant]:
    for wait in positions(program, Op.WAIT):
        yield change(program, wait, handle="R nothing m0")
        yield change(program, wait, handle=None)


@mutation
def waits_joining_each_other(program: Program, view: RankView) -> Iterator[Mutant]:
    """Two neighbouring Waits' handles exchanged, their frees left where they are."""
    waits = positions(program, Op.WAIT)
    for first, second in pairwise(waits):
        a, b = program.instructions[first], program.instructions[second]
        if a.frees and a.frees != b.frees:
            yield edited(program, (first, [a._replace(handle=b.handle)]), (second, [b._replace(handle=a.handle)]))
