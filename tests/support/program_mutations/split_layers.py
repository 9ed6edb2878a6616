"""Collectives of split layers: partial sums of gradients, those inside a segment, the axes of shards and of experts."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from fourfold.program import Instruction, Op, Program, StepSpec, rank_view
from fourfold.program.stage_map import stage_map
from tests.support.opcodes import COMPUTE_OPS, REDUCTIONS
from tests.support.program_mutations.edits import (
    Mutant,
    change,
    each,
    everywhere,
    pipeline_mutation,
    with_collective,
    with_programs,
)
from tests.support.programs import altered

# Sums over tensor-parallel ranks


def _partial(spec: StepSpec, program: Program, index: int) -> int:
    """How many of a Reduce's collectives are partial sums."""
    return len(rank_view(spec, program.pp_rank).flats[program.instructions[index].segment or ""].sums)


def _partials(programs: list[Program], spec: StepSpec) -> Iterator[tuple[Program, int, int]]:
    for program, index in each(programs, *REDUCTIONS):
        for which in range(_partial(spec, program, index)):
            yield program, index, which


@pipeline_mutation
def partial_sum_left_out(programs: list[Program], spec: StepSpec) -> Iterator[Mutant]:
    for program, index, which in _partials(programs, spec):
        collectives = list(program.instructions[index].collectives)
        del collectives[which]
        yield with_programs(programs, change(program, index, collectives=tuple(collectives)))


@pipeline_mutation
def partial_sum_taken_twice(programs: list[Program], spec: StepSpec) -> Iterator[Mutant]:
    for program, index, which in _partials(programs, spec):
        collectives = list(program.instructions[index].collectives)
        collectives.insert(which, collectives[which])
        yield with_programs(programs, change(program, index, collectives=tuple(collectives)))


@pipeline_mutation
def partial_sum_of_another_range_or_axis(programs: list[Program], spec: StepSpec) -> Iterator[Mutant]:
    for program, index, which in _partials(programs, spec):
        size = program.instructions[index].collectives[which].bytes
        for other in (size + 4, size - 4):
            yield with_programs(programs, with_collective(program, index, which, bytes=other))
        for axes in {"tp", "tp_copy", "tp_head", "dp_shard"} - {program.instructions[index].collectives[which].axes}:
            degree = spec.layout.degree(axes)
            yield with_programs(programs, with_collective(program, index, which, axes=axes, group_size=degree))


@pipeline_mutation
def partial_sum_after_the_shards_are_scattered(programs: list[Program], spec: StepSpec) -> Iterator[Mutant]:
    for program, index in each(programs, *REDUCTIONS):
        collectives = program.instructions[index].collectives
        if _partial(spec, program, index) and len(collectives) > 1 and collectives[::-1] != collectives:
            yield with_programs(programs, change(program, index, collectives=collectives[::-1]))


# Collectives inside a segment


def _inside(programs: list[Program]) -> Iterator[tuple[Program, int, int]]:
    for program, index in each(programs, *COMPUTE_OPS):
        for which in range(len(program.instructions[index].collectives)):
            yield program, index, which


@pipeline_mutation
def inner_collective_left_out_or_doubled(programs: list[Program], spec: StepSpec) -> Iterator[Mutant]:
    for program, index, which in _inside(programs):
        collectives = program.instructions[index].collectives
        for times in (0, 2):
            changed = collectives[:which] + collectives[which : which + 1] * times + collectives[which + 1 :]
            yield with_programs(programs, change(program, index, collectives=changed))


@pipeline_mutation
def inner_collective_left_out_by_one_rank(programs: list[Program], spec: StepSpec) -> Iterator[Mutant]:
    for program, index, which in _inside(programs):
        collectives = program.instructions[index].collectives
        mutant = change(program, index, collectives=collectives[:which] + collectives[which + 1 :])
        stage = [r for r in range(spec.layout.world_size) if spec.layout.coordinates(r)["pp"] == program.pp_rank]
        yield {stage[-1]: mutant}


@pipeline_mutation
def inner_collective_over_another_axis(programs: list[Program], spec: StepSpec) -> Iterator[Mutant]:
    for program, index, which in _inside(programs):
        for axis in {"tp", "cp", "cp_ring", "ep", "dp_shard"} - {program.instructions[index].collectives[which].axes}:
            degree = spec.layout.degree(axis)
            yield with_programs(programs, with_collective(program, index, which, axes=axis, group_size=degree))


@pipeline_mutation
def inner_collective_of_other_bytes_or_kind(programs: list[Program], spec: StepSpec) -> Iterator[Mutant]:
    for program, index, which in _inside(programs):
        collective = program.instructions[index].collectives[which]
        yield with_programs(programs, with_collective(program, index, which, bytes=collective.bytes + 2))
        for kind in {"all_gather", "reduce_scatter", "all_reduce", "all_to_all", "shift"} - {collective.kind}:
            yield with_programs(programs, with_collective(program, index, which, kind=kind))


@pipeline_mutation
def inner_collectives_in_another_order(programs: list[Program], spec: StepSpec) -> Iterator[Mutant]:
    for program, index, which in _inside(programs):
        collectives = list(program.instructions[index].collectives)
        if which and collectives[which] != collectives[which - 1]:
            collectives[which], collectives[which - 1] = collectives[which - 1], collectives[which]
            yield with_programs(programs, change(program, index, collectives=tuple(collectives)))


# The axes of shards and of experts


@pipeline_mutation
def shards_without_the_context_ranks(programs: list[Program], spec: StepSpec) -> Iterator[Mutant]:
    """`cp` or `dp_shard` left out of what a unit's gradients are reduced over, or its parameters gathered over, on all ranks."""
    for op in (Op.REDUCE, Op.GATHER, Op.PARAMETER_ALL_GATHER):
        for unit in stage_map(spec).segments:
            for axis in ("cp", "dp_shard"):
                yield from _reaxed(programs, spec, op, unit, lambda axes, axis=axis: [a for a in axes if a != axis])  # type: ignore[misc]


def _reaxed(
    programs: list[Program], spec: StepSpec, op: Op, unit: str, axes_of: Callable[[list[str]], list[str]]
) -> Iterator[Mutant]:
    """The unit's collectives over other axes, on all ranks."""

    def edit(step: Instruction) -> Instruction:
        if step.op is not op or step.segment != unit:
            return step
        changed = []
        for c in step.collectives:
            axes = axes_of(c.axes.split("+"))
            size = spec.layout.group_size(tuple(axes))
            changed.append(replace(c, axes="+".join(axes), group_size=size) if axes else c)
        return altered(step, collectives=tuple(changed))

    mutant = everywhere(programs, edit)
    if mutant != programs:
        yield mutant


@pipeline_mutation
def experts_reduced_as_if_dense(programs: list[Program], spec: StepSpec) -> Iterator[Mutant]:
    """Over `dp_shard` and `cp`, whose ranks hold other experts, or over `ep` too; and dense units over the experts' axes."""
    dense = list(spec.layout.active(("dp_shard", "cp"))) or ["tp"]
    for op in (Op.REDUCE, Op.GATHER, Op.PARAMETER_ALL_GATHER):
        for segment in spec.segments:
            for unit in segment.own if segment.moe else ():
                other = dense if unit.domain == "expert" else ["edp"]
                old = ("edp",) if unit.domain == "expert" else ("dp_shard", "cp")
                for names in (other, [*other, "ep"] if other == ["edp"] else other):
                    yield from _reaxed(
                        programs, spec, op, unit.name,
                        lambda axes, names=names, old=old: names if set(axes) & set(old) else axes,  # type: ignore[misc]
                    )  # fmt: skip
