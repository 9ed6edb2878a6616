"""Mutations of sums over all ranks: loads of experts, loss and norm."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from fourfold.layout.mesh import AXES
from fourfold.program import Instruction, Op, Program, StepSpec
from fourfold.program.stage_map import stage_map
from tests.support.opcodes import BACKWARD_OPS
from tests.support.program_mutations.edits import (
    Mutant,
    change,
    double,
    drop,
    each,
    everywhere,
    pipeline_mutation,
    with_programs,
)
from tests.support.programs import altered, edited, moved, positions


@pipeline_mutation
def balance_left_out_or_doubled(programs: list[Program], spec: StepSpec) -> Iterator[Mutant]:
    for program, index in each(programs, Op.BALANCE):
        yield with_programs(programs, drop(program, index))
        yield with_programs(programs, double(program, index))
    for times in (0, 2):
        everywhere = [
            edited(program, *((i, [program.instructions[i]] * times) for i in positions(program, Op.BALANCE)))
            for program in programs
        ]
        if everywhere != programs:
            yield everywhere


@pipeline_mutation
def balance_before_the_last_tokens_are_routed(programs: list[Program], spec: StepSpec) -> Iterator[Mutant]:
    for program, index in each(programs, Op.BALANCE):
        routed = [i for i in positions(program, *BACKWARD_OPS - {Op.BACKWARD_WEIGHT})
                  if stage_map(spec).segments[program.instructions[i].segment or ""].moe]  # fmt: skip
        for target in routed:
            yield with_programs(programs, moved(program, index, target))


@pipeline_mutation
def balance_without_a_router(programs: list[Program], spec: StepSpec) -> Iterator[Mutant]:
    for program, index in each(programs, Op.BALANCE):
        step = program.instructions[index]
        for name in step.reads:
            rest = tuple(n for n in step.reads if n != name)
            yield with_programs(programs, change(program, index, reads=rest, writes=rest))


@pipeline_mutation
def sum_over_ranks_without_one_axis(programs: list[Program], spec: StepSpec) -> Iterator[Mutant]:
    """The count, the loss, the norm and the experts' loads lose an axis on all ranks: `pp`, `tp`, `cp`, or another."""
    for op in (Op.COUNT, Op.SUM_LOSS, Op.CLIP_NORM, Op.BALANCE):
        for axis in AXES:
            yield from _rescaled(programs, spec, op, lambda axes, axis=axis: tuple(a for a in axes if a != axis))  # type: ignore[misc]


@pipeline_mutation
def sum_over_ranks_with_one_axis_more(programs: list[Program], spec: StepSpec) -> Iterator[Mutant]:
    for op in (Op.COUNT, Op.SUM_LOSS, Op.CLIP_NORM, Op.BALANCE):
        for axis in spec.layout.active(AXES):
            yield from _rescaled(
                programs,
                spec,
                op,
                lambda axes, axis=axis: tuple(a for a in AXES if a in {*axes, axis}),  # type: ignore[misc]
            )


def _rescaled(
    programs: list[Program], spec: StepSpec, op: Op, axes_of: Callable[[tuple[str, ...]], tuple[str, ...]]
) -> Iterator[Mutant]:
    def edit(step: Instruction) -> Instruction:
        if step.op is not op or not step.collectives:
            return step
        (c,) = step.collectives
        axes = axes_of(tuple(c.axes.split("+")))
        other = replace(c, axes="+".join(axes), group_size=spec.layout.group_size(axes))
        return altered(step, collectives=(other,) if axes else ())

    mutant = everywhere(programs, edit)
    if mutant != programs:
        yield mutant


@pipeline_mutation
def scalar_collectives_of_one_stage_in_another_order(programs: list[Program], spec: StepSpec) -> Iterator[Mutant]:
    """One stage takes the norm before its loss is summed: on a group of the same ranks the other stages are one ahead."""
    for program, index in each(programs, Op.SUM_LOSS):
        norm = positions(program, Op.CLIP_NORM)[0]
        if _same_group(program, index, norm, spec) and len(programs) > 1:
            pair = [program.instructions[norm], program.instructions[index]]
            yield with_programs(programs, edited(program, (index, []), (norm, pair)))


def _same_group(program: Program, first: int, second: int, spec: StepSpec) -> bool:
    rank = next(r for r in range(spec.layout.world_size) if spec.layout.coordinates(r)["pp"] == program.pp_rank)
    groups = [
        spec.layout.group_of(rank, tuple(program.instructions[i].collectives[0].axes.split("+")))
        for i in (first, second)
        if program.instructions[i].collectives
    ]
    return len(groups) == 2 and groups[0] == groups[1]
