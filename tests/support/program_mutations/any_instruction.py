"""Any instruction left out, done twice or declared otherwise; what one rank of a stage does otherwise than the others."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from fourfold.program import Op, Program, RankView, lower_step, rank_view, verify
from tests.support.opcodes import REDUCTIONS
from tests.support.program_mutations.edits import (
    Mutant,
    change,
    double,
    drop,
    mutation,
    starts,
    with_collective,
    with_wait,
)
from tests.support.programs import edited, on_all_ranks, wait_of

# Anything at all


@mutation
def any_instruction_dropped(program: Program, view: RankView) -> Iterator[Mutant]:
    for index in range(len(program.instructions)):
        yield drop(program, index)


@mutation
def any_instruction_doubled(program: Program, view: RankView) -> Iterator[Mutant]:
    for index in range(len(program.instructions)):
        yield double(program, index)


@mutation
def any_start_dropped_with_its_wait(program: Program, view: RankView) -> Iterator[Mutant]:
    """Not a Reduce that another of its unit follows: then the gradients only go on adding up, and the later one sums them all."""
    for index in starts(program):
        step = program.instructions[index]
        later = [
            i for i in starts(program, *REDUCTIONS) if program.instructions[i].segment == step.segment and i > index
        ]
        if not step.op.is_reduction or not later:
            yield drop(program, index, wait_of(program, index))


@mutation
def any_read_undeclared(program: Program, view: RankView) -> Iterator[Mutant]:
    for index, step in enumerate(program.instructions):
        for name in step.reads:
            yield change(program, index, reads=tuple(n for n in step.reads if n != name))


@mutation
def any_write_undeclared(program: Program, view: RankView) -> Iterator[Mutant]:
    for index, step in enumerate(program.instructions):
        for name in step.writes:
            yield change(program, index, writes=tuple(n for n in step.writes if n != name))


@mutation
def any_free_undeclared(program: Program, view: RankView) -> Iterator[Mutant]:
    """Not of a staging buffer that is used again: kept in between, it is only memory, and counted as such."""
    for index, step in enumerate(program.instructions):
        for name in step.frees:
            if name.startswith("reduce/") and any(name in s.writes for s in program.instructions[index:]):
                continue
            yield change(program, index, frees=tuple(n for n in step.frees if n != name))


@mutation
def freed_before_its_last_reader(program: Program, view: RankView) -> Iterator[Mutant]:
    last = {name: i for i, step in enumerate(program.instructions) for name in step.reads}
    for index, step in enumerate(program.instructions):
        for name in step.reads:
            if last[name] > index:
                yield change(program, index, frees=(*step.frees, name))


@mutation
def workspace_understated(program: Program, view: RankView) -> Iterator[Mutant]:
    for index, step in enumerate(program.instructions):
        if step.workspace_bytes:
            yield change(program, index, workspace_bytes=step.workspace_bytes // 2)


@mutation
def flops_misstated(program: Program, view: RankView) -> Iterator[Mutant]:
    for index, step in enumerate(program.instructions):
        if step.flops:
            yield change(program, index, flops=step.flops + 2)


@mutation
def another_stream(program: Program, view: RankView) -> Iterator[Mutant]:
    for index, step in enumerate(program.instructions):
        yield change(program, index, stream="tp" if step.stream == "compute" else "compute")


# Declarations


@mutation
def wrong_collective_bytes(program: Program, view: RankView) -> Iterator[Mutant]:
    for index, step in enumerate(program.instructions):
        for which, collective in enumerate(step.collectives):
            for size in {collective.bytes * 2, collective.bytes - 4, 0} - {collective.bytes}:
                yield with_collective(program, index, which, bytes=size)


@mutation
def wrong_group_size(program: Program, view: RankView) -> Iterator[Mutant]:
    for index, step in enumerate(program.instructions):
        for which, collective in enumerate(step.collectives):
            yield with_collective(program, index, which, group_size=collective.group_size + 1)


@mutation
def axes_that_no_mesh_has(program: Program, view: RankView) -> Iterator[Mutant]:
    for index, step in enumerate(program.instructions):
        for which in range(len(step.collectives)):
            for axes in ("everyone", "", "world_size", "schedule", "zero", "dp_shard+dp_shard"):
                size = {"world_size": view.spec.layout.world_size, "zero": view.spec.layout.zero}.get(axes, 2)
                yield with_collective(program, index, which, axes=axes, group_size=size)


@mutation
def wrong_buffer_size(program: Program, view: RankView) -> Iterator[Mutant]:
    for name, size in program.buffers.items():
        for wrong in (size + 4, size // 2, -size):
            yield replace(program, buffers={**program.buffers, name: wrong})


@mutation
def buffer_of_no_segment(program: Program, view: RankView) -> Iterator[Mutant]:
    for name in (
        "params/b99",
        "saved/b99/m0",
        "hidden/b99/m0",
        "deferred/b99/m0",
        "router/b99",
        "cache/b0",
        "optimizer",
        "grad/",
    ):
        yield replace(program, buffers={**program.buffers, name: 64})


@mutation
def buffer_without_a_size(program: Program, view: RankView) -> Iterator[Mutant]:
    for name in program.buffers:
        yield replace(program, buffers={n: size for n, size in program.buffers.items() if n != name})


@mutation
def write_to_an_unknown_buffer(program: Program, view: RankView) -> Iterator[Mutant]:
    for index, step in enumerate(program.instructions):
        if step.op is not Op.WAIT:
            yield change(program, index, writes=(*step.writes, "scratch/b0"))


@mutation
def resident_forgotten(program: Program, view: RankView) -> Iterator[Mutant]:
    for name in program.resident:
        yield replace(program, resident=tuple(n for n in program.resident if n != name))


@mutation
def resident_that_is_not(program: Program, view: RankView) -> Iterator[Mutant]:
    for name in program.buffers:
        if name not in program.resident:
            yield replace(program, resident=(*program.resident, name))


# One rank that does otherwise


def one_rank(program: Program, mutant: Program, view: RankView) -> Iterator[Mutant]:
    """Each rank of the stage in turn does otherwise than the others of it; none where it is alone."""
    stage = [r for r in range(view.spec.layout.world_size) if view.spec.layout.coordinates(r)["pp"] == view.pp_rank]
    for rank in stage if len(stage) > 1 else ():
        yield {rank: mutant}


@mutation
def one_rank_with_one_collective_fewer(program: Program, view: RankView) -> Iterator[Mutant]:
    for index in starts(program):
        yield from one_rank(program, drop(program, index, wait_of(program, index)), view)


@mutation
def one_rank_with_two_collectives_swapped(program: Program, view: RankView) -> Iterator[Mutant]:
    """Neighbouring starts on one group whose exchange breaks nothing within the rank's own list."""
    for first, second in pairwise(starts(program)):
        a, b = program.instructions[first], program.instructions[second]
        mutant = edited(program, (first, [b]), (second, [a]))
        groups = {c.axes for c in a.collectives} & {c.axes for c in b.collectives}
        if (
            view.spec.layout.pp == 1
            and groups
            and a.short != b.short
            and not verify(on_all_ranks(mutant, view.spec), view.spec)
        ):
            yield from one_rank(program, mutant, view)


@mutation
def one_rank_with_an_extra_collective(program: Program, view: RankView) -> Iterator[Mutant]:
    """A scalar that this rank alone sums; its own list is in order apart from that."""
    for index in starts(program, Op.SUM_LOSS):
        mutant = program.with_instructions([*program.instructions, *with_wait(program, index)])
        yield from one_rank(program, mutant, view)


@mutation
def one_rank_stops_early(program: Program, view: RankView) -> Iterator[Mutant]:
    for length in (0, 1, len(program.instructions) // 2):
        mutant = program.with_instructions(list(program.instructions[:length]))
        yield from one_rank(program, mutant, view)


@mutation
def one_rank_under_another_layout(program: Program, view: RankView) -> Iterator[Mutant]:
    for zero in range(4):
        other = rank_view(replace(view.spec, layout=replace(view.spec.layout, zero=zero)), view.pp_rank)
        if any(other.flats[unit].zero != flat.zero for unit, flat in view.flats.items()):
            yield from one_rank(program, lower_step(other), view)
