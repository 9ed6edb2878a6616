"""Mutations of one rank's computation: its microbatches, its loss, and the norm and the updates at the end of the step."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from fourfold.program import Collective, Instruction, Op, Program, RankView, lower_step, rank_view
from tests.support.opcodes import BACKWARD_OPS, REDUCTIONS
from tests.support.program_mutations.edits import (
    Mutant,
    as_unit,
    change,
    drop,
    moved_with_wait,
    mutation,
    of_unit,
    once_more,
    others,
    starts,
    with_collective,
)
from tests.support.programs import edited, moved, positions, wait_of

# Computation


@mutation
def one_microbatch_without_backward(program: Program, view: RankView) -> Iterator[Mutant]:
    for m in range(view.spec.layout.num_microbatches):
        steps = program.instructions
        yield drop(program, *(i for i in positions(program, *BACKWARD_OPS) if steps[i].microbatch == m))


@mutation
def one_microbatch_left_out(program: Program, view: RankView) -> Iterator[Mutant]:
    """All instructions that carry its number, with the Waits that join them."""
    for m in range(view.spec.layout.num_microbatches):
        steps = program.instructions
        gone = [i for i, s in enumerate(steps) if s.microbatch == m or f"m{m}" in (s.handle or "").split()]
        yield drop(program, *gone)


@mutation
def one_microbatch_too_many(program: Program, view: RankView) -> Iterator[Mutant]:
    """A sound chain of instructions for a microbatch that the layout does not have."""
    more = replace(
        view.spec.layout,
        num_microbatches=view.spec.layout.num_microbatches + 1,
    )
    yield lower_step(rank_view(replace(view.spec, layout=more), view.pp_rank))


@mutation
def one_microbatch_run_as_another(program: Program, view: RankView) -> Iterator[Mutant]:
    for index, step in enumerate(program.instructions):
        if step.microbatch is not None and not step.op.is_reduction:
            yield change(program, index, microbatch=step.microbatch + 1)


@mutation
def backward_before_what_it_follows(program: Program, view: RankView) -> Iterator[Mutant]:
    backwards = positions(program, Op.BACKWARD, Op.BACKWARD_INPUT)
    for first, second in pairwise(backwards):
        a, b = program.instructions[first], program.instructions[second]
        if a.microbatch == b.microbatch and view.stages.following[b.segment or ""] == a.segment:
            yield edited(program, (first, [b]), (second, [a]))


@mutation
def another_segment_computed(program: Program, view: RankView) -> Iterator[Mutant]:
    for index in positions(program, Op.FORWARD, Op.BACKWARD, Op.BACKWARD_INPUT, Op.BACKWARD_WEIGHT, Op.RECOMPUTE):
        for unit in others(program.instructions[index].segment, view):
            yield change(program, index, segment=unit)


@mutation
def backward_split_in_one_half_only(program: Program, view: RankView) -> Iterator[Mutant]:
    for index in positions(program, Op.BACKWARD):
        yield change(program, index, op=Op.BACKWARD_INPUT)
        yield change(program, index, op=Op.BACKWARD_WEIGHT)


# The loss's divisor and its record


@mutation
def targets_counted_after_the_first_loss(program: Program, view: RankView) -> Iterator[Mutant]:
    for index in starts(program, Op.COUNT):
        heads = [i for i in positions(program, Op.BACKWARD) if program.instructions[i].segment == "head"]
        if not heads:
            return
        yield moved_with_wait(program, index, heads[0])


@mutation
def scalar_over_wrong_axes(program: Program, view: RankView) -> Iterator[Mutant]:
    for index in starts(program, Op.COUNT, Op.SUM_LOSS):
        for axes in ("dp_replicate", "dp_shard", "pp"):
            size = view.spec.layout.group_size(tuple(axes.split("+")))
            if axes != program.instructions[index].collectives[0].axes:
                yield with_collective(program, index, 0, axes=axes, group_size=size)


@mutation
def scalar_without_a_collective(program: Program, view: RankView) -> Iterator[Mutant]:
    for index in starts(program, Op.COUNT, Op.SUM_LOSS):
        yield change(program, index, collectives=())


@mutation
def scalar_summed_twice(program: Program, view: RankView) -> Iterator[Mutant]:
    for index in starts(program, Op.COUNT, Op.SUM_LOSS):
        yield once_more(program, index)


@mutation
def loss_summed_before_the_last_microbatch(program: Program, view: RankView) -> Iterator[Mutant]:
    heads = [i for i in positions(program, Op.BACKWARD) if program.instructions[i].segment == "head"]
    for index in starts(program, Op.SUM_LOSS):
        for head in heads:
            yield moved(program, index, head)


# The end of the step


def first(program: Program, *ops: Op) -> int:
    return positions(program, *ops)[0]


@mutation
def update_before_the_norm(program: Program, view: RankView) -> Iterator[Mutant]:
    for index in positions(program, Op.UPDATE):
        yield moved(program, index, first(program, Op.CLIP_NORM))


@mutation
def update_of_the_wrong_unit(program: Program, view: RankView) -> Iterator[Mutant]:
    for index in positions(program, Op.UPDATE):
        for unit in others(program.instructions[index].segment, view):
            yield of_unit(program, index, unit)


@mutation
def computation_after_an_update(program: Program, view: RankView) -> Iterator[Mutant]:
    """The norm and one update before the last backward; nothing that they read is missing there, only wrong."""
    last = positions(program, *BACKWARD_OPS)[-1]
    for index in positions(program, Op.UPDATE):
        norm = first(program, Op.CLIP_NORM)
        steps = [program.instructions[norm], program.instructions[index], program.instructions[last]]
        yield edited(program, (norm, []), (index, []), (last, steps))


@mutation
def norm_leaves_out_a_gradient(program: Program, view: RankView) -> Iterator[Mutant]:
    index = first(program, Op.CLIP_NORM)
    for name in program.instructions[index].reads:
        yield change(program, index, reads=tuple(n for n in program.instructions[index].reads if n != name))


@mutation
def norm_counts_a_gradient_twice(program: Program, view: RankView) -> Iterator[Mutant]:
    index = first(program, Op.CLIP_NORM)
    for name in program.instructions[index].reads:
        yield change(program, index, reads=(*program.instructions[index].reads, name))


@mutation
def norm_of_each_rank_alone(program: Program, view: RankView) -> Iterator[Mutant]:
    index = first(program, Op.CLIP_NORM)
    if program.instructions[index].collectives:
        yield change(program, index, collectives=())


@mutation
def norm_over_wrong_axes(program: Program, view: RankView) -> Iterator[Mutant]:
    index = first(program, Op.CLIP_NORM)
    for axes in ("dp_replicate", "dp_replicate+dp_shard"):
        size = view.spec.layout.group_size(tuple(axes.split("+")))
        if size > 1 and axes not in {c.axes for c in program.instructions[index].collectives}:
            yield change(program, index, collectives=(Collective("all_reduce", axes, 8, size),))


@mutation
def norm_before_the_last_reduction(program: Program, view: RankView) -> Iterator[Mutant]:
    norm = first(program, Op.CLIP_NORM)
    start = positions(program, *BACKWARD_OPS)[-1]
    last = positions(program, *REDUCTIONS)[-1:]
    for target in range(start, last[0] + 1) if last else ():
        yield moved(program, norm, target)


@mutation
def parameter_all_gather_twice_in_a_row(program: Program, view: RankView) -> Iterator[Mutant]:
    for index in starts(program, Op.PARAMETER_ALL_GATHER):
        yield once_more(program, index)


@mutation
def parameter_all_gather_before_its_update(program: Program, view: RankView) -> Iterator[Mutant]:
    for index in starts(program, Op.PARAMETER_ALL_GATHER):
        unit = program.instructions[index].segment
        update = next(i for i in positions(program, Op.UPDATE) if program.instructions[i].segment == unit)
        yield moved_with_wait(program, index, update, before=True)


@mutation
def parameter_all_gather_of_the_wrong_unit(program: Program, view: RankView) -> Iterator[Mutant]:
    for index in starts(program, Op.PARAMETER_ALL_GATHER):
        wait = wait_of(program, index)
        for unit in others(program.instructions[index].segment, view):
            step = as_unit(program.instructions[index], unit)
            yield edited(program, (index, [step]), (wait, [Instruction(Op.WAIT, handle=step.short)]))
