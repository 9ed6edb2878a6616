"""Stages that do nothing, another's part, or less than a step."""

from collections.abc import Iterator
from dataclasses import replace

from fourfold.program import Op, Program, StepSpec
from tests.support.program_mutations.edits import Mutant, everywhere, pipeline_mutation, starts, with_programs


@pipeline_mutation
def programs_of_two_stages_exchanged(programs: list[Program], spec: StepSpec) -> Iterator[Mutant]:
    for first in range(len(programs)):
        for second in range(first):
            exchanged = list(programs)
            exchanged[first], exchanged[second] = programs[second], programs[first]
            yield exchanged
            exchanged[first] = replace(programs[second], pp_rank=first)
            exchanged[second] = replace(programs[first], pp_rank=second)
            yield exchanged


@pipeline_mutation
def one_stage_does_nothing(programs: list[Program], spec: StepSpec) -> Iterator[Mutant]:
    for program in programs if len(programs) > 1 else ():
        yield with_programs(programs, program.with_instructions([]))


@pipeline_mutation
def one_stage_evaluates(programs: list[Program], spec: StepSpec) -> Iterator[Mutant]:
    for program in programs:
        yield with_programs(programs, replace(program, kind="evaluate"))


@pipeline_mutation
def a_microbatch_left_out_by_all_stages(programs: list[Program], spec: StepSpec) -> Iterator[Mutant]:
    for m in range(spec.layout.num_microbatches):
        yield everywhere(programs, lambda step, m=m: None if step.microbatch == m else step)  # type: ignore[misc]


@pipeline_mutation
def an_evaluation_where_a_step_should_be(programs: list[Program], spec: StepSpec) -> Iterator[Mutant]:
    """Every rank drops its backward and its update, and calls it training."""
    kept = {Op.LOAD, Op.FORWARD, Op.COUNT, Op.SUM_LOSS, Op.SEND_ACTIVATION, Op.RECV_ACTIVATION, Op.WAIT}
    yield everywhere(programs, lambda step: step if step.op in kept else None)


@pipeline_mutation
def starts_of_one_stage_left_out(programs: list[Program], spec: StepSpec) -> Iterator[Mutant]:
    """Every start of one kind, with its Waits, on one stage alone."""
    for program in programs:
        for op in {program.instructions[i].op for i in starts(program)}:
            (mutant,) = everywhere([program], lambda step, op=op: None if step.op is op else step)  # type: ignore[misc]
            yield with_programs(programs, mutant)
