"""Transfers between stages: dropped, doubled, in another order, of something else, too early or too late."""

from collections.abc import Iterator
from itertools import pairwise

from fourfold.program import Op, Program, StepSpec
from tests.support.opcodes import RECEIVES, SENDS
from tests.support.program_mutations.edits import (
    Mutant,
    change,
    drop,
    each,
    moved_with_wait,
    pipeline_mutation,
    twice,
    with_collective,
    with_programs,
)
from tests.support.programs import edited, moved, positions, wait_of

PARTNER = {
    Op.SEND_ACTIVATION: Op.RECV_ACTIVATION,
    Op.RECV_ACTIVATION: Op.SEND_ACTIVATION,
    Op.SEND_GRADIENT: Op.RECV_GRADIENT,
    Op.RECV_GRADIENT: Op.SEND_GRADIENT,
}


def _partner(programs: list[Program], program: Program, index: int) -> tuple[Program, int]:
    """The other end of a transfer."""
    step = program.instructions[index]
    other = programs[step.peer or 0]
    for i in positions(other, PARTNER[step.op]):
        there = other.instructions[i]
        if (there.segment, there.microbatch) == (step.segment, step.microbatch):
            return other, i
    raise LookupError(step.short)


@pipeline_mutation
def transfer_dropped_at_one_end(programs: list[Program], spec: StepSpec) -> Iterator[Mutant]:
    for program, index in each(programs, *SENDS, *RECEIVES):
        yield with_programs(programs, drop(program, index, wait_of(program, index)))


@pipeline_mutation
def transfer_dropped_at_both_ends(programs: list[Program], spec: StepSpec) -> Iterator[Mutant]:
    for program, index in each(programs, *SENDS):
        other, there = _partner(programs, program, index)
        ends = drop(program, index, wait_of(program, index)), drop(other, there, wait_of(other, there))
        yield with_programs(programs, *ends)


@pipeline_mutation
def transfer_doubled_at_one_end(programs: list[Program], spec: StepSpec) -> Iterator[Mutant]:
    for program, index in each(programs, *SENDS, *RECEIVES):
        yield with_programs(programs, twice(program, index))


@pipeline_mutation
def transfer_doubled_at_both_ends(programs: list[Program], spec: StepSpec) -> Iterator[Mutant]:
    for program, index in each(programs, *SENDS):
        yield with_programs(programs, twice(program, index), twice(*_partner(programs, program, index)))


@pipeline_mutation
def transfers_started_in_another_order_at_one_end(programs: list[Program], spec: StepSpec) -> Iterator[Mutant]:
    """Two neighbours among what a rank sends to another, or receives from it, change places."""
    for program in programs:
        for ops in (SENDS, RECEIVES):
            for peer in range(len(programs)):
                ends = [i for i in positions(program, *ops) if program.instructions[i].peer == peer]
                for first, second in pairwise(ends):
                    a, b = program.instructions[first], program.instructions[second]
                    yield with_programs(programs, edited(program, (first, [b]), (second, [a])))


@pipeline_mutation
def receives_started_in_another_order_with_their_waits(programs: list[Program], spec: StepSpec) -> Iterator[Mutant]:
    """Nothing is wrong within the rank's own list; only what arrives first is not what it takes first."""
    for program in programs:
        for peer in range(len(programs)):
            ends = [i for i in positions(program, *RECEIVES) if program.instructions[i].peer == peer]
            for first, second in pairwise(ends):
                yield with_programs(programs, moved(program, second, first))


@pipeline_mutation
def transfer_with_another_peer(programs: list[Program], spec: StepSpec) -> Iterator[Mutant]:
    for program, index in each(programs, *SENDS, *RECEIVES):
        for peer in {*range(spec.layout.pp + 1), -1} - {program.instructions[index].peer}:
            step = program.instructions[index]._replace(peer=peer)
            wait = wait_of(program, index)
            join = program.instructions[wait]._replace(handle=step.short)
            yield with_programs(programs, edited(program, (index, [step]), (wait, [join])))


@pipeline_mutation
def transfer_of_the_wrong_bytes(programs: list[Program], spec: StepSpec) -> Iterator[Mutant]:
    for program, index in each(programs, *SENDS, *RECEIVES):
        half = program.instructions[index].collectives[0].bytes // 2
        one = with_collective(program, index, 0, bytes=half)
        yield with_programs(programs, one)
        other, there = _partner(programs, program, index)
        yield with_programs(programs, one, with_collective(other, there, 0, bytes=half))


@pipeline_mutation
def transfer_of_another_microbatch_or_segment(programs: list[Program], spec: StepSpec) -> Iterator[Mutant]:
    names = [segment.name for segment in spec.segments]
    for program, index in each(programs, *SENDS, *RECEIVES):
        step = program.instructions[index]
        yield with_programs(programs, change(program, index, microbatch=(step.microbatch or 0) + 1))
        yield with_programs(programs, change(program, index, segment=names[names.index(step.segment or "") - 1]))


@pipeline_mutation
def gradient_sent_as_an_activation(programs: list[Program], spec: StepSpec) -> Iterator[Mutant]:
    other = {Op.SEND_ACTIVATION: Op.SEND_GRADIENT, Op.SEND_GRADIENT: Op.SEND_ACTIVATION}
    for program, index in each(programs, *SENDS):
        step = program.instructions[index]
        there, at = _partner(programs, program, index)
        ends = change(program, index, op=other[step.op]), change(there, at, op=PARTNER[other[step.op]])
        yield with_programs(programs, *ends)
        yield with_programs(programs, ends[0])


@pipeline_mutation
def sent_before_it_is_made(programs: list[Program], spec: StepSpec) -> Iterator[Mutant]:
    for program, index in each(programs, *SENDS):
        buffer = program.instructions[index].reads[0]
        maker = next(i for i, step in enumerate(program.instructions) if buffer in step.writes)
        yield with_programs(programs, moved(program, index, maker))


@pipeline_mutation
def received_after_its_use(programs: list[Program], spec: StepSpec) -> Iterator[Mutant]:
    """The Wait alone, or start and Wait, behind the first reader."""
    for program, index in each(programs, *RECEIVES):
        wait, buffer = wait_of(program, index), program.instructions[index].writes[0]
        use = next(i for i, step in enumerate(program.instructions) if buffer in step.reads)
        join, reader = program.instructions[wait], program.instructions[use]
        yield with_programs(programs, edited(program, (wait, []), (use, [reader, join])))
        yield with_programs(programs, moved_with_wait(program, index, use))


@pipeline_mutation
def sent_buffer_dropped_in_flight(programs: list[Program], spec: StepSpec) -> Iterator[Mutant]:
    for program, index in each(programs, *SENDS):
        buffer, wait = program.instructions[index].reads[0], wait_of(program, index)
        step = program.instructions[index]._replace(frees=(buffer,))
        yield with_programs(
            programs, edited(program, (index, [step]), (wait, [program.instructions[wait]._replace(frees=())]))
        )


@pipeline_mutation
def transfer_never_joined(programs: list[Program], spec: StepSpec) -> Iterator[Mutant]:
    for program, index in each(programs, *SENDS, *RECEIVES):
        yield with_programs(programs, drop(program, wait_of(program, index)))


@pipeline_mutation
def gradient_awaited_before_the_activation_is_sent(programs: list[Program], spec: StepSpec) -> Iterator[Mutant]:
    """Two ranks that wait for each other: the gradient of a microbatch, joined before its activation has left."""
    for program, index in each(programs, Op.SEND_ACTIVATION):
        step = program.instructions[index]
        for back in positions(program, Op.RECV_GRADIENT):
            if program.instructions[back].short == f"R< {step.segment} m{step.microbatch} r{step.peer}":
                yield with_programs(programs, moved_with_wait(program, back, index, before=True))
