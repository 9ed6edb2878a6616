"""The halves of backward, and the gradient of an embedding that two stages share."""

from collections.abc import Iterator
from dataclasses import replace

from fourfold.program import Instruction, Op, Program, StepSpec, rank_view
from fourfold.program.overlap.rows import OverlapOp
from fourfold.program.stage_map import stage_map
from tests.support.opcodes import REDUCTIONS
from tests.support.program_mutations.edits import (
    Mutant,
    change,
    drop,
    each,
    everywhere,
    moved_with_wait,
    pipeline_mutation,
    twice,
    with_programs,
)
from tests.support.programs import altered, edited, moved, positions, wait_of

# Backward in halves


@pipeline_mutation
def weight_gradient_before_the_input_gradient(programs: list[Program], spec: StepSpec) -> Iterator[Mutant]:
    for program, index in each(programs, Op.BACKWARD_WEIGHT):
        yield with_programs(programs, moved(program, index, _half(program, index, Op.BACKWARD_INPUT)))


def _half(program: Program, index: int, op: Op) -> int:
    step = program.instructions[index]
    same = [i for i in positions(program, op) if program.instructions[i].segment == step.segment]
    return next(i for i in same if program.instructions[i].microbatch == step.microbatch)


@pipeline_mutation
def one_half_dropped(programs: list[Program], spec: StepSpec) -> Iterator[Mutant]:
    for program, index in each(programs, Op.BACKWARD_WEIGHT, Op.BACKWARD_INPUT):
        yield with_programs(programs, drop(program, index))


@pipeline_mutation
def weight_gradient_dropped_with_its_deferred_operands(programs: list[Program], spec: StepSpec) -> Iterator[Mutant]:
    """The operands are dropped properly; what they were kept for never happens."""
    for program, index in each(programs, Op.BACKWARD_WEIGHT):
        step = program.instructions[index]
        deferred = f"deferred/{step.segment}/m{step.microbatch}"
        yield with_programs(programs, edited(program, (index, [Instruction(Op.FREE, step.segment, frees=(deferred,))])))


@pipeline_mutation
def weight_gradient_twice(programs: list[Program], spec: StepSpec) -> Iterator[Mutant]:
    for program, index in each(programs, Op.BACKWARD_WEIGHT):
        step = program.instructions[index]
        yield with_programs(programs, edited(program, (index, [step._replace(frees=()), step])))


@pipeline_mutation
def weight_gradients_of_two_microbatches_exchanged_in_name(programs: list[Program], spec: StepSpec) -> Iterator[Mutant]:
    for program, index in each(programs, Op.BACKWARD_WEIGHT):
        step = program.instructions[index]
        other = ((step.microbatch or 0) + 1) % spec.layout.num_microbatches
        if other != step.microbatch:
            yield with_programs(programs, change(program, index, microbatch=other))


@pipeline_mutation
def full_backward_beside_its_halves(programs: list[Program], spec: StepSpec) -> Iterator[Mutant]:
    for program, index in each(programs, Op.BACKWARD_INPUT):
        full = _unsplit(program.instructions[index], spec)
        weight = _half(program, index, Op.BACKWARD_WEIGHT)
        yield with_programs(programs, edited(program, (index, [full, program.instructions[index]])))
        yield with_programs(programs, edited(program, (index, [full])))
        yield with_programs(programs, edited(program, (index, [full._replace(frees=()), program.instructions[index]])))
        yield with_programs(programs, edited(program, (weight, [program.instructions[weight], full])))


@pipeline_mutation
def reduced_with_a_part_that_nothing_has_written(programs: list[Program], spec: StepSpec) -> Iterator[Mutant]:
    """Behind the part of a backward that allocates a gradient, and before the one that writes the rest of it."""
    for program, index in each(programs, Op.BACKWARD_INPUT, OverlapOp.EXPERTS_BACKWARD):
        for name in program.instructions[index].writes:
            later = (i for i in positions(program, *REDUCTIONS) if i > index and name in program.instructions[i].reads)
            if name.startswith("grad/") and not _is_live(program, index, name) and (reduce := next(later, None)):
                yield with_programs(programs, moved_with_wait(program, reduce, index))


def _is_live(program: Program, index: int, name: str) -> bool:
    """Whether a buffer is there before this instruction."""
    before = [step for step in program.instructions[:index] if name in (*step.writes, *step.frees)]
    return bool(before) and name not in before[-1].frees


def _unsplit(half: Instruction, spec: StepSpec) -> Instruction:
    """The full backward that the input gradient is a half of, as it would be declared."""
    footprint = rank_view(spec).footprint(stage_map(spec).segments[half.segment or ""])
    return half._replace(
        op=Op.BACKWARD,
        writes=tuple(name for name in half.writes if not name.startswith("deferred/")),
        work=footprint.backward,
        workspace_bytes=footprint.backward_workspace_bytes,
    )


# Tied embeddings


@pipeline_mutation
def tied_sum_left_out(programs: list[Program], spec: StepSpec) -> Iterator[Mutant]:
    ends = [(program, index) for program, index in each(programs, Op.REDUCE_TIED)]
    for program, index in ends:
        yield with_programs(programs, drop(program, index, wait_of(program, index)))
    if ends:
        yield with_programs(programs, *(drop(program, index, wait_of(program, index)) for program, index in ends))


@pipeline_mutation
def tied_sum_taken_twice(programs: list[Program], spec: StepSpec) -> Iterator[Mutant]:
    ends = [twice(program, index) for program, index in each(programs, Op.REDUCE_TIED)]
    for program in ends:
        yield with_programs(programs, program)
    if ends:
        yield with_programs(programs, *ends)


@pipeline_mutation
def tied_sum_before_the_data_reduction(programs: list[Program], spec: StepSpec) -> Iterator[Mutant]:
    """On one stage, and on both: before the last Reduce of the unit, joined there, or before its last Backward."""
    early = []
    for program, index in each(programs, Op.REDUCE_TIED):
        unit = program.instructions[index].segment
        reduces = [i for i in positions(program, *REDUCTIONS) if program.instructions[i].segment == unit]
        writers = [i for i, step in enumerate(program.instructions[:index]) if f"grad/{unit}" in step.writes]
        last = max(i for i in writers if i not in reduces)
        at = [last, *reduces[-1:]]
        moved_to = [moved_with_wait(program, index, i, before=True) for i in at]
        early.append(moved_to[-1])
        for mutant in moved_to:
            yield with_programs(programs, mutant)
    if early:
        yield with_programs(programs, *early)


@pipeline_mutation
def tied_sum_over_wrong_axes(programs: list[Program], spec: StepSpec) -> Iterator[Mutant]:
    for axes in ("pp", "dp_shard", "pp+dp_shard"):
        size = spec.layout.group_size(tuple(axes.split("+")))
        other = everywhere(
            programs,
            lambda s, axes=axes, size=size: (  # type: ignore[misc]
                altered(s, collectives=(replace(s.collectives[0], axes=axes, group_size=size),))
                if s.op is Op.REDUCE_TIED
                else s
            ),
        )
        if other != programs:
            yield other


@pipeline_mutation
def another_unit_summed_as_tied(programs: list[Program], spec: StepSpec) -> Iterator[Mutant]:
    for program, index in each(programs, Op.REDUCE_TIED):
        for unit in rank_view(spec, program.pp_rank).flats:
            if unit != program.instructions[index].segment:
                yield with_programs(programs, change(program, index, segment=unit))
