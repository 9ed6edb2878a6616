"""The tables of mutations, and the edits that they are made of: of one rank's program, and of all stages' programs."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from fourfold.program import Instruction, Op, Program, RankView, StepSpec
from tests.support.opcodes import STARTS
from tests.support.programs import altered, edited, positions, wait_of

Mutant = Program | list[Program] | dict[int, Program]
"""The program of the pipeline rank that was given; of all pipeline ranks; or of some ranks alone, the others' unchanged."""
Mutation = Callable[[Program, RankView], Iterator[Mutant]]
MUTATIONS: dict[str, Mutation] = {}
PipelineMutation = Callable[[list[Program], StepSpec], Iterator[Mutant]]
PIPELINE_MUTATIONS: dict[str, PipelineMutation] = {}


def mutation(function: Mutation) -> Mutation:
    MUTATIONS[function.__name__] = function
    return function


def pipeline_mutation(function: PipelineMutation) -> PipelineMutation:
    PIPELINE_MUTATIONS[function.__name__] = function
    return function


def drop(program: Program, *indices: int) -> Program:
    return edited(program, *((index, []) for index in indices))


def double(program: Program, index: int) -> Program:
    return edited(program, (index, [program.instructions[index]] * 2))


def change(program: Program, index: int, **fields: object) -> Program:
    return edited(program, (index, [altered(program.instructions[index], **fields)]))


def starts(program: Program, *ops: Op) -> list[int]:
    return positions(program, *(ops or STARTS))


def others(values: object, view: RankView) -> list[str]:
    return [unit for unit in view.flats if unit != values]


def as_unit(step: Instruction, unit: str) -> Instruction:
    """The instruction on another unit, all its declarations included."""

    def rename(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(f"{name.partition('/')[0]}/{unit}" for name in names)

    return step._replace(segment=unit, reads=rename(step.reads), writes=rename(step.writes), frees=rename(step.frees))


def of_unit(program: Program, index: int, unit: str) -> Program:
    return edited(program, (index, [as_unit(program.instructions[index], unit)]))


def with_wait(program: Program, index: int) -> list[Instruction]:
    """A start and the wait that joins it."""
    return [program.instructions[index], program.instructions[wait_of(program, index)]]


def once_more(program: Program, index: int) -> Program:
    """Started and joined once more behind its own wait."""
    start, join = with_wait(program, index)
    return edited(program, (wait_of(program, index), [join, start, join]))


def moved_with_wait(program: Program, index: int, target: int, before: bool = False) -> Program:
    """A start and its wait, together behind the target, or before it."""
    pair, there = with_wait(program, index), program.instructions[target]
    return edited(
        program, (index, []), (wait_of(program, index), []), (target, [*pair, there] if before else [there, *pair])
    )


def with_collective(program: Program, index: int, which: int, **fields: object) -> Program:
    collectives = list(program.instructions[index].collectives)
    collectives[which] = replace(collectives[which], **fields)  # type: ignore[arg-type]
    return change(program, index, collectives=tuple(collectives))


def with_programs(programs: list[Program], *changed: Program) -> list[Program]:
    """The pipeline with these ranks' programs in place of theirs."""
    by_rank = {program.pp_rank: program for program in changed}
    return [by_rank.get(program.pp_rank, program) for program in programs]


def each(programs: list[Program], *ops: Op) -> Iterator[tuple[Program, int]]:
    """Every instruction of these operations, as (program, index)."""
    for program in programs:
        for index in positions(program, *ops):
            yield program, index


def everywhere(programs: list[Program], edit: Callable[[Instruction], Instruction | None]) -> list[Program]:
    """One edit of every rank's instructions; None drops one, and what waits for it."""
    result = []
    for program in programs:
        steps, gone = [], set()
        for step in program.instructions:
            new = edit(step)
            if new is None:
                gone.add(step.short)
            elif step.op is not Op.WAIT or step.handle not in gone:
                steps.append(new)
        result.append(program.with_instructions(steps))
    return result


def twice(program: Program, index: int) -> Program:
    """Started and joined at once, and then started where it stood, and joined by its own wait."""
    step = program.instructions[index]
    return edited(program, (index, [step, Instruction(Op.WAIT, handle=step.short), step]))
