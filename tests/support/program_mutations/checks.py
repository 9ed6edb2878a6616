"""Checks of silent corruption left out, made too early or too late, or of something else than they say."""

from collections.abc import Iterator

from fourfold.program import Op, Program, RankView
from tests.support.program_mutations.edits import Mutant, change, double, drop, mutation
from tests.support.programs import edited, moved, positions


@mutation
def a_check_dropped(program: Program, view: RankView) -> Iterator[Mutant]:
    for index in positions(program, Op.REPLAY, Op.CHECKSUM):
        yield drop(program, index)


@mutation
def a_check_doubled(program: Program, view: RankView) -> Iterator[Mutant]:
    for index in positions(program, Op.REPLAY, Op.CHECKSUM):
        yield double(program, index)


@mutation
def a_replay_before_its_backward(program: Program, view: RankView) -> Iterator[Mutant]:
    steps = program.instructions
    for index in positions(program, Op.REPLAY):
        own = [i for i in positions(program, Op.BACKWARD) if steps[i].segment == steps[index].segment and i < index]
        yield moved(program, index, own[-1])


@mutation
def a_replay_of_another_microbatch(program: Program, view: RankView) -> Iterator[Mutant]:
    for index in positions(program, Op.REPLAY):
        for m in range(1, view.spec.layout.num_microbatches):
            yield change(program, index, microbatch=m)


@mutation
def a_replay_after_a_second_microbatch(program: Program, view: RankView) -> Iterator[Mutant]:
    """The replay's gradient is then no longer alone."""
    steps = program.instructions
    for index in positions(program, Op.REPLAY):
        later = [i for i in positions(program, Op.BACKWARD) if i > index and steps[i].segment == steps[index].segment]
        if later:
            yield moved(program, index, later[0] + 1)


@mutation
def a_replay_of_an_embedding(program: Program, view: RankView) -> Iterator[Mutant]:
    for index in positions(program, Op.BACKWARD):
        step = program.instructions[index]
        if step.segment == "embed" and view.spec.replay:
            yield edited(program, (index, [step, step._replace(op=Op.REPLAY)]))


@mutation
def a_checksum_after_an_update(program: Program, view: RankView) -> Iterator[Mutant]:
    for index in positions(program, Op.CHECKSUM):
        for update in positions(program, Op.UPDATE):
            yield moved(program, index, update + 1)


@mutation
def a_checksum_of_less(program: Program, view: RankView) -> Iterator[Mutant]:
    for index in positions(program, Op.CHECKSUM):
        step = program.instructions[index]
        yield change(program, index, reads=step.reads[1:])
        yield change(program, index, collectives=step.collectives[:-1])


@mutation
def a_check_in_a_step_without(program: Program, view: RankView) -> Iterator[Mutant]:
    norm = positions(program, Op.CLIP_NORM)[0]
    step = program.instructions[norm]
    if not view.spec.checksum:
        yield edited(program, (norm, [step._replace(op=Op.CHECKSUM), step]))
