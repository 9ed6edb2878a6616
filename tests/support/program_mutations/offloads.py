"""Copies to the host's memory and back: not joined, joined late, begun too early, left out, or of something else."""

from collections.abc import Iterator
from dataclasses import replace

from fourfold.model.work import HostCopy, Work
from fourfold.program import Instruction, Op, Program, RankView
from fourfold.program.offload.steps import OffloadOp
from tests.support.opcodes import HOST_COPIES
from tests.support.program_mutations.edits import Mutant, change, double, drop, mutation, starts
from tests.support.programs import edited, moved, positions, wait_of


def _device_buffers(step: Instruction) -> tuple[str, ...]:
    return step.reads if step.op is OffloadOp.OFFLOAD else step.writes


def _users(program: Program, index: int) -> list[int]:
    """Where instructions stand that use the device's buffers of the copy at `index`, copies and their waits aside."""
    own = set(_device_buffers(program.instructions[index]))
    passed = HOST_COPIES | {Op.WAIT}
    return [
        i for i, step in enumerate(program.instructions) if step.op not in passed and own & {*step.reads, *step.writes}
    ]


@mutation
def copy_not_joined(program: Program, view: RankView) -> Iterator[Mutant]:
    for index in starts(program, *HOST_COPIES):
        yield drop(program, wait_of(program, index))


@mutation
def copy_left_out(program: Program, view: RankView) -> Iterator[Mutant]:
    for index in starts(program, *HOST_COPIES):
        yield drop(program, index, wait_of(program, index))


@mutation
def copy_made_twice(program: Program, view: RankView) -> Iterator[Mutant]:
    for index in starts(program, *HOST_COPIES):
        yield double(program, index)


@mutation
def fetched_after_its_reader(program: Program, view: RankView) -> Iterator[Mutant]:
    for index in starts(program, OffloadOp.FETCH):
        reader = next(place for place in _users(program, index) if place > index)
        yield moved(program, wait_of(program, index), reader + 1)


@mutation
def fetched_before_it_is_offloaded(program: Program, view: RankView) -> Iterator[Mutant]:
    for index in starts(program, OffloadOp.FETCH):
        fetch = program.instructions[index]
        for place in starts(program, OffloadOp.OFFLOAD):
            offload = program.instructions[place]
            if fetch.microbatch is not None and offload.writes == fetch.reads:
                yield moved(program, index, place)


@mutation
def offloaded_before_it_is_made(program: Program, view: RankView) -> Iterator[Mutant]:
    """Activations before their forward, states before their update."""
    for index in starts(program, OffloadOp.OFFLOAD):
        yield moved(program, index, max(place for place in _users(program, index) if place < index))


@mutation
def freed_while_it_is_copied(program: Program, view: RankView) -> Iterator[Mutant]:
    """The device's buffer is freed by the instruction behind the start, not by the wait."""
    for index in starts(program, OffloadOp.OFFLOAD):
        wait, behind = wait_of(program, index), index + 1
        if wait == behind:
            continue
        frees = program.instructions[wait].frees
        later, earlier = program.instructions[wait]._replace(frees=()), program.instructions[behind]
        yield edited(program, (behind, [earlier._replace(frees=(*earlier.frees, *frees))]), (wait, [later]))


@mutation
def left_on_the_host(program: Program, view: RankView) -> Iterator[Mutant]:
    for index in starts(program, *HOST_COPIES):
        wait = wait_of(program, index)
        if program.instructions[wait].frees:
            yield change(program, wait, frees=())


@mutation
def updated_states_dropped(program: Program, view: RankView) -> Iterator[Mutant]:
    """No copy back: the update frees the states, and the next step finds the old ones."""
    for index in starts(program, OffloadOp.OFFLOAD):
        offload, update = program.instructions[index], _users(program, index)[-1]
        if offload.microbatch is None:
            old = program.instructions[update]
            changed = old._replace(frees=(*old.frees, *offload.reads))
            yield edited(program, (update, [changed]), (index, []), (wait_of(program, index), []))


@mutation
def copy_of_other_bytes(program: Program, view: RankView) -> Iterator[Mutant]:
    for index in starts(program, *HOST_COPIES):
        step = program.instructions[index]
        yield edited(
            program,
            (index, [step._replace(work=Work((HostCopy(step.op is OffloadOp.OFFLOAD, step.work.host_bytes // 2),)))]),
        )
        yield change(program, index, stream="compute")


@mutation
def states_on_the_device_between_steps(program: Program, view: RankView) -> Iterator[Mutant]:
    if positions(program, OffloadOp.FETCH) and any(name.startswith("host_optimizer/") for name in program.resident):
        yield replace(program, resident=tuple(name.removeprefix("host_") for name in program.resident))
