"""Every way we know to break a program, at every place where it applies: the verifier names rank, index and instruction."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise

import pytest

from fourfold.program import (
    Collective,
    Instruction,
    Lowering,
    Op,
    Program,
    lower_evaluation,
    lower_step,
    memory_peak,
    verify,
)
from fourfold.program.instruction import STARTS
from tests.support.programs import edited, make_facts, moved, on_all_ranks, positions, wait_of

Mutant = Program | dict[int, Program]
Mutation = Callable[[Program, Lowering], Iterator[Mutant]]

CASES = {
    "one_rank": {"accumulation": 2},
    "zero0": {"dp_shard": 2, "zero": 0},
    "zero0_accumulated": {"dp_shard": 2, "zero": 0, "accumulation": 2},
    "zero1_accumulated": {"dp_shard": 2, "zero": 1, "accumulation": 2},
    "zero2": {"dp_shard": 4, "zero": 2},
    "zero2_accumulated": {"dp_shard": 2, "zero": 2, "accumulation": 2, "model": {"tie_embeddings": True}},
    "zero3": {"dp_shard": 4, "zero": 3, "prefetch": 2},
    "zero3_full": {"dp_shard": 2, "zero": 3, "accumulation": 2, "recompute": "full", "prefetch": 0},
    "zero3_tied": {"dp_shard": 2, "zero": 3, "accumulation": 2, "model": {"tie_embeddings": True}},
    "hsdp0": {"dp_replicate": 2, "dp_shard": 2, "zero": 0, "accumulation": 2},
    "hsdp1": {"dp_replicate": 2, "dp_shard": 2, "zero": 1, "accumulation": 2, "transport": "native"},
    "hsdp2": {"dp_replicate": 2, "dp_shard": 2, "zero": 2, "accumulation": 2, "recompute": "full:1"},
    "hsdp3": {"dp_replicate": 2, "dp_shard": 2, "zero": 3, "accumulation": 2, "recompute": "full"},
    "mixed": {"dp_shard": 2, "zero": 2, "precision": {"compute": "bf16"}, "document_mask": True},
}
MUTATIONS: dict[str, Mutation] = {}


@functools.cache
def _facts(case: str) -> Lowering:
    return make_facts(**CASES[case])  # type: ignore[arg-type]


def mutation(function: Mutation) -> Mutation:
    MUTATIONS[function.__name__] = function
    return function


def _drop(program: Program, *indices: int) -> Program:
    return edited(program, *((index, []) for index in indices))


def _double(program: Program, index: int) -> Program:
    return edited(program, (index, [program.instructions[index]] * 2))


def _change(program: Program, index: int, **fields: object) -> Program:
    return edited(program, (index, [replace(program.instructions[index], **fields)]))  # type: ignore[arg-type]


def _starts(program: Program, *ops: Op) -> list[int]:
    return positions(program, *(ops or STARTS))


def _first(program: Program, *ops: Op) -> int:
    return positions(program, *ops)[0]


def _others(values: object, facts: Lowering) -> list[str]:
    return [unit for unit in facts.flats if unit != values]


def _as_unit(step: Instruction, unit: str) -> Instruction:
    """The same instruction on another unit, all its declarations included."""

    def rename(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(f"{name.partition('/')[0]}/{unit}" for name in names)

    return replace(step, segment=unit, reads=rename(step.reads), writes=rename(step.writes), frees=rename(step.frees))


def _with_collective(program: Program, index: int, which: int, **fields: object) -> Program:
    collectives = list(program.instructions[index].collectives)
    collectives[which] = replace(collectives[which], **fields)  # type: ignore[arg-type]
    return _change(program, index, collectives=tuple(collectives))


def _one_rank(program: Program, mutant: Program, facts: Lowering) -> Iterator[Mutant]:
    for rank in range(facts.layout.world_size):
        yield {**on_all_ranks(program, facts), rank: mutant}


# Anything at all


@mutation
def any_instruction_dropped(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index in range(len(program.instructions)):
        yield _drop(program, index)


@mutation
def any_instruction_doubled(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index in range(len(program.instructions)):
        yield _double(program, index)


@mutation
def any_start_dropped_with_its_wait(program: Program, facts: Lowering) -> Iterator[Mutant]:
    """Not a Reduce that another of its unit follows: then the gradients only go on adding up, and the later one sums them all."""
    for index in _starts(program):
        step = program.instructions[index]
        later = [
            i for i in _starts(program, Op.REDUCE) if program.instructions[i].segment == step.segment and i > index
        ]
        if step.op is not Op.REDUCE or not later:
            yield _drop(program, index, wait_of(program, index))


@mutation
def any_read_undeclared(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index, step in enumerate(program.instructions):
        for name in step.reads:
            yield _change(program, index, reads=tuple(n for n in step.reads if n != name))


@mutation
def any_write_undeclared(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index, step in enumerate(program.instructions):
        for name in step.writes:
            yield _change(program, index, writes=tuple(n for n in step.writes if n != name))


@mutation
def any_free_undeclared(program: Program, facts: Lowering) -> Iterator[Mutant]:
    """Not of a landing buffer that is used again: kept in between, it is only memory, and counted as such."""
    for index, step in enumerate(program.instructions):
        for name in step.frees:
            if name.startswith("reduce/") and any(name in s.writes for s in program.instructions[index:]):
                continue
            yield _change(program, index, frees=tuple(n for n in step.frees if n != name))


@mutation
def freed_before_its_last_reader(program: Program, facts: Lowering) -> Iterator[Mutant]:
    last = {name: i for i, step in enumerate(program.instructions) for name in step.reads}
    for index, step in enumerate(program.instructions):
        for name in step.reads:
            if last[name] > index:
                yield _change(program, index, frees=(*step.frees, name))


@mutation
def workspace_understated(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index, step in enumerate(program.instructions):
        if step.workspace_bytes:
            yield _change(program, index, workspace_bytes=step.workspace_bytes // 2)


@mutation
def flops_misstated(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index, step in enumerate(program.instructions):
        if step.flops:
            yield _change(program, index, flops=step.flops + 1)


# Reductions


@mutation
def reduce_twice_in_a_row(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index in _starts(program, Op.REDUCE):
        wait = wait_of(program, index)
        yield edited(
            program, (wait, [program.instructions[wait], program.instructions[index], program.instructions[wait]])
        )


@mutation
def reduce_before_the_last_backward(program: Program, facts: Lowering) -> Iterator[Mutant]:
    """The whole reduction, started and joined after the first microbatch's backward of an accumulation."""
    if facts.zero >= 2 or facts.layout.num_microbatches < 2:
        return
    for index in _starts(program, Op.REDUCE):
        unit, wait = program.instructions[index].segment, wait_of(program, index)
        early = next(i for i, step in enumerate(program.instructions) if f"grad/{unit}" in step.writes)
        pair = [program.instructions[index], program.instructions[wait]]
        yield edited(program, (early, [program.instructions[early], *pair]), (index, []), (wait, []))


@mutation
def reduce_over_wrong_axes(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index in _starts(program, Op.REDUCE):
        for which, collective in enumerate(program.instructions[index].collectives):
            for axes in ("dp_replicate", "dp_shard", "dp_replicate+dp_shard", "pp", "tp"):
                if axes != collective.axes:
                    size = facts.layout.group_size(tuple(axes.split("+")))
                    yield _with_collective(program, index, which, axes=axes, group_size=size)


@mutation
def reduce_of_the_wrong_kind(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index in _starts(program, Op.REDUCE):
        for which, collective in enumerate(program.instructions[index].collectives):
            for kind in ("all_gather", "reduce_scatter", "all_reduce", "all_to_all"):
                if kind != collective.kind:
                    yield _with_collective(program, index, which, kind=kind)


@mutation
def replicas_not_summed(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index in _starts(program, Op.REDUCE):
        collectives = program.instructions[index].collectives
        if len(collectives) > 1:
            yield _change(program, index, collectives=collectives[:1])
            yield _change(program, index, collectives=collectives[1:])


@mutation
def replicas_summed_twice(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index in _starts(program, Op.REDUCE):
        collectives = program.instructions[index].collectives
        yield _change(program, index, collectives=(*collectives, collectives[-1]))


@mutation
def replicas_summed_in_every_microbatch(program: Program, facts: Lowering) -> Iterator[Mutant]:
    reduces = {step.segment: step for step in program.instructions if step.op is Op.REDUCE}
    for index in _starts(program, Op.REDUCE):
        step = program.instructions[index]
        final = reduces[step.segment]
        if len(final.collectives) > len(step.collectives):
            yield _change(program, index, collectives=final.collectives)


@mutation
def reduce_without_a_collective(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index in _starts(program, Op.REDUCE):
        yield _change(program, index, collectives=())


@mutation
def reduce_of_the_wrong_unit(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index in _starts(program, Op.REDUCE):
        for unit in _others(program.instructions[index].segment, facts):
            yield edited(program, (index, [_as_unit(program.instructions[index], unit)]))


# Gathers and frees


@mutation
def free_before_use(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index in positions(program, Op.FREE):
        buffer = program.instructions[index].frees[0]
        users = [i for i in range(index) if buffer in program.instructions[i].reads]
        yield moved(program, index, users[-1])


@mutation
def free_by_another_name(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index in positions(program, Op.FREE):
        for unit in _others(program.instructions[index].segment, facts):
            yield edited(program, (index, [_as_unit(program.instructions[index], unit)]))


@mutation
def free_of_what_outlives_the_step(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for name in program.resident:
        steps = [*program.instructions, Instruction(Op.FREE, name.partition("/")[2] or None, frees=(name,))]
        yield program.with_instructions(steps)


@mutation
def gather_of_the_wrong_unit(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index in _starts(program, Op.GATHER):
        for unit in _others(program.instructions[index].segment, facts):
            yield edited(program, (index, [_as_unit(program.instructions[index], unit)]))


@mutation
def gather_over_wrong_axes(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index in _starts(program, Op.GATHER, Op.PUBLISH):
        for axes in ("dp_replicate", "dp_replicate+dp_shard", "pp"):
            size = facts.layout.group_size(tuple(axes.split("+")))
            if facts.layout.active(tuple(axes.split("+"))) != ("dp_shard",):
                yield _with_collective(program, index, 0, axes=axes, group_size=size)


@mutation
def gather_of_the_wrong_kind(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index in _starts(program, Op.GATHER, Op.PUBLISH):
        for kind in ("all_reduce", "reduce_scatter", "all_to_all"):
            yield _with_collective(program, index, 0, kind=kind)


@mutation
def gather_without_a_collective(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index in _starts(program, Op.GATHER, Op.PUBLISH):
        yield _change(program, index, collectives=())


@mutation
def gather_after_its_use(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index in _starts(program, Op.GATHER):
        wait, buffer = wait_of(program, index), program.instructions[index].writes[0]
        users = (i for i in range(wait, len(program.instructions)) if buffer in program.instructions[i].reads)
        if (use := next(users, None)) is not None:
            pair = [program.instructions[index], program.instructions[wait]]
            yield edited(program, (index, []), (wait, []), (use, [program.instructions[use], *pair]))


# Waits


@mutation
def wait_too_late(program: Program, facts: Lowering) -> Iterator[Mutant]:
    """After the first instruction that touches what is in flight (for the count of targets: that divides by it)."""
    for wait in positions(program, Op.WAIT):
        handle = program.instructions[wait].handle
        start = max(i for i in range(wait) if program.instructions[i].short == handle)
        touched = {*program.instructions[start].writes, *program.instructions[start].reads}
        for index in range(wait + 1, len(program.instructions)):
            step = program.instructions[index]
            divides = handle == "N" and step.op is Op.BACKWARD and step.segment == "head"
            if divides or touched & {*step.reads, *step.frees, *(step.writes if step.op is not Op.WAIT else ())}:
                yield moved(program, wait, index + 1)
                break


@mutation
def wait_before_its_start(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index in _starts(program):
        yield moved(program, wait_of(program, index), index)


@mutation
def wait_for_something_unknown(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for wait in positions(program, Op.WAIT):
        yield _change(program, wait, handle="R nothing m0")
        yield _change(program, wait, handle=None)


@mutation
def waits_joining_each_other(program: Program, facts: Lowering) -> Iterator[Mutant]:
    """Two neighbouring Waits' handles exchanged, their frees left where they are."""
    waits = positions(program, Op.WAIT)
    for first, second in pairwise(waits):
        a, b = program.instructions[first], program.instructions[second]
        if a.frees and a.frees != b.frees:
            yield edited(program, (first, [replace(a, handle=b.handle)]), (second, [replace(b, handle=a.handle)]))


# The end of the step


@mutation
def update_before_the_norm(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index in positions(program, Op.UPDATE):
        yield moved(program, index, _first(program, Op.CLIP_NORM))


@mutation
def update_of_the_wrong_unit(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index in positions(program, Op.UPDATE):
        for unit in _others(program.instructions[index].segment, facts):
            yield edited(program, (index, [_as_unit(program.instructions[index], unit)]))


@mutation
def computation_after_an_update(program: Program, facts: Lowering) -> Iterator[Mutant]:
    """The norm and one update before the last backward; nothing that they read is missing there, only wrong."""
    last = positions(program, Op.BACKWARD)[-1]
    for index in positions(program, Op.UPDATE):
        norm = _first(program, Op.CLIP_NORM)
        steps = [program.instructions[norm], program.instructions[index], program.instructions[last]]
        yield edited(program, (norm, []), (index, []), (last, steps))


@mutation
def norm_leaves_out_a_gradient(program: Program, facts: Lowering) -> Iterator[Mutant]:
    index = _first(program, Op.CLIP_NORM)
    for name in program.instructions[index].reads:
        yield _change(program, index, reads=tuple(n for n in program.instructions[index].reads if n != name))


@mutation
def norm_counts_a_gradient_twice(program: Program, facts: Lowering) -> Iterator[Mutant]:
    index = _first(program, Op.CLIP_NORM)
    for name in program.instructions[index].reads:
        yield _change(program, index, reads=(*program.instructions[index].reads, name))


@mutation
def norm_of_each_rank_alone(program: Program, facts: Lowering) -> Iterator[Mutant]:
    index = _first(program, Op.CLIP_NORM)
    if program.instructions[index].collectives:
        yield _change(program, index, collectives=())


@mutation
def norm_over_wrong_axes(program: Program, facts: Lowering) -> Iterator[Mutant]:
    index = _first(program, Op.CLIP_NORM)
    for axes in ("dp_replicate", "dp_replicate+dp_shard"):
        size = facts.layout.group_size(tuple(axes.split("+")))
        if size > 1 and facts.layout.active(tuple(axes.split("+"))) != ("dp_shard",):
            yield _change(program, index, collectives=(Collective("all_reduce", axes, 8, size),))


@mutation
def norm_before_the_last_reduction(program: Program, facts: Lowering) -> Iterator[Mutant]:
    if not facts.data_axes:
        return
    norm = _first(program, Op.CLIP_NORM)
    start = positions(program, Op.BACKWARD)[-1]
    last = positions(program, Op.REDUCE)[-1]
    for target in range(start, last + 1):
        yield moved(program, norm, target)


@mutation
def publish_twice_in_a_row(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index in _starts(program, Op.PUBLISH):
        wait = wait_of(program, index)
        yield edited(
            program, (wait, [program.instructions[wait], program.instructions[index], program.instructions[wait]])
        )


@mutation
def publish_before_its_update(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index in _starts(program, Op.PUBLISH):
        unit, wait = program.instructions[index].segment, wait_of(program, index)
        update = next(i for i in positions(program, Op.UPDATE) if program.instructions[i].segment == unit)
        pair = [program.instructions[index], program.instructions[wait]]
        yield edited(program, (update, [*pair, program.instructions[update]]), (index, []), (wait, []))


@mutation
def publish_of_the_wrong_unit(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index in _starts(program, Op.PUBLISH):
        wait = wait_of(program, index)
        for unit in _others(program.instructions[index].segment, facts):
            step = _as_unit(program.instructions[index], unit)
            yield edited(program, (index, [step]), (wait, [Instruction(Op.WAIT, handle=step.short)]))


# Computation


@mutation
def one_microbatch_without_backward(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for m in range(facts.layout.num_microbatches):
        steps = program.instructions
        yield _drop(program, *(i for i in positions(program, Op.BACKWARD) if steps[i].microbatch == m))


@mutation
def one_microbatch_left_out(program: Program, facts: Lowering) -> Iterator[Mutant]:
    """All instructions that carry its number, with the Waits that join them."""
    for m in range(facts.layout.num_microbatches):
        steps = program.instructions
        gone = [i for i, s in enumerate(steps) if s.microbatch == m or (s.handle or "").endswith(f" m{m}")]
        yield _drop(program, *gone)


@mutation
def one_microbatch_too_many(program: Program, facts: Lowering) -> Iterator[Mutant]:
    """A sound chain of instructions for a microbatch that the layout does not have."""
    more = replace(
        facts.layout,
        num_microbatches=facts.layout.num_microbatches + 1,
    )
    yield lower_step(replace(facts, layout=more))


@mutation
def one_microbatch_run_as_another(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index, step in enumerate(program.instructions):
        if step.microbatch is not None and step.op is not Op.REDUCE:
            yield _change(program, index, microbatch=step.microbatch + 1)


@mutation
def backward_before_what_it_follows(program: Program, facts: Lowering) -> Iterator[Mutant]:
    backwards = positions(program, Op.BACKWARD)
    for first, second in pairwise(backwards):
        a, b = program.instructions[first], program.instructions[second]
        if a.microbatch == b.microbatch:
            yield edited(program, (first, [b]), (second, [a]))


@mutation
def another_segment_computed(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index in positions(program, Op.FORWARD, Op.BACKWARD, Op.RECOMPUTE):
        for unit in _others(program.instructions[index].segment, facts):
            yield _change(program, index, segment=unit)


@mutation
def backward_split_in_one_half_only(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index in positions(program, Op.BACKWARD):
        yield _change(program, index, op=Op.BACKWARD_INPUT)
        yield _change(program, index, op=Op.BACKWARD_WEIGHT)


# The loss's divisor and its record


@mutation
def targets_counted_after_the_first_loss(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index in _starts(program, Op.COUNT):
        wait = wait_of(program, index)
        head = next(i for i in positions(program, Op.BACKWARD) if program.instructions[i].segment == "head")
        pair = [program.instructions[index], program.instructions[wait]]
        yield edited(program, (index, []), (wait, []), (head, [program.instructions[head], *pair]))


@mutation
def scalar_over_wrong_axes(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index in _starts(program, Op.COUNT, Op.SUM_LOSS):
        for axes in ("dp_replicate", "dp_shard", "pp"):
            size = facts.layout.group_size(tuple(axes.split("+")))
            if facts.layout.active(tuple(axes.split("+"))) != facts.data_axes:
                yield _with_collective(program, index, 0, axes=axes, group_size=size)


@mutation
def scalar_without_a_collective(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index in _starts(program, Op.COUNT, Op.SUM_LOSS):
        yield _change(program, index, collectives=())


@mutation
def scalar_summed_twice(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index in _starts(program, Op.COUNT, Op.SUM_LOSS):
        wait = wait_of(program, index)
        pair = [program.instructions[index], program.instructions[wait]]
        yield edited(program, (wait, [program.instructions[wait], *pair]))


@mutation
def loss_summed_before_the_last_microbatch(program: Program, facts: Lowering) -> Iterator[Mutant]:
    heads = [i for i in positions(program, Op.BACKWARD) if program.instructions[i].segment == "head"]
    for index in _starts(program, Op.SUM_LOSS):
        for head in heads:
            yield moved(program, index, head)


# Declarations


@mutation
def wrong_collective_bytes(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index, step in enumerate(program.instructions):
        for which, collective in enumerate(step.collectives):
            for size in (collective.bytes * 2, collective.bytes - 4, 0):
                yield _with_collective(program, index, which, bytes=size)


@mutation
def wrong_group_size(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index, step in enumerate(program.instructions):
        for which, collective in enumerate(step.collectives):
            yield _with_collective(program, index, which, group_size=collective.group_size + 1)


@mutation
def axes_that_no_mesh_has(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index, step in enumerate(program.instructions):
        for which in range(len(step.collectives)):
            for axes in ("everyone", "", "world_size", "schedule", "zero", "dp_shard+dp_shard"):
                size = {"world_size": facts.layout.world_size, "zero": facts.layout.zero}.get(axes, 2)
                yield _with_collective(program, index, which, axes=axes, group_size=size)


@mutation
def wrong_buffer_size(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for name, size in program.buffers.items():
        for wrong in (size + 4, size // 2, -size):
            yield replace(program, buffers={**program.buffers, name: wrong})


@mutation
def buffer_of_no_segment(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for name in ("params/b99", "saved/b99/m0", "hidden/b99/m0", "cache/b0", "moments", "grad/"):
        yield replace(program, buffers={**program.buffers, name: 64})


@mutation
def buffer_without_a_size(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for name in program.buffers:
        yield replace(program, buffers={n: size for n, size in program.buffers.items() if n != name})


@mutation
def write_to_an_unknown_buffer(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index, step in enumerate(program.instructions):
        if step.op is not Op.WAIT:
            yield _change(program, index, writes=(*step.writes, "scratch/b0"))


@mutation
def resident_forgotten(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for name in program.resident:
        yield replace(program, resident=tuple(n for n in program.resident if n != name))


@mutation
def resident_that_is_not(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for name in program.buffers:
        if name not in program.resident:
            yield replace(program, resident=(*program.resident, name))


# One rank that does otherwise


@mutation
def one_rank_with_one_collective_fewer(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index in _starts(program):
        yield from _one_rank(program, _drop(program, index, wait_of(program, index)), facts)


@mutation
def one_rank_with_two_collectives_swapped(program: Program, facts: Lowering) -> Iterator[Mutant]:
    """Neighbouring starts on one group whose exchange breaks nothing within the rank's own list."""
    for first, second in pairwise(_starts(program)):
        a, b = program.instructions[first], program.instructions[second]
        mutant = edited(program, (first, [b]), (second, [a]))
        groups = {c.axes for c in a.collectives} & {c.axes for c in b.collectives}
        if groups and a.short != b.short and not verify(on_all_ranks(mutant, facts), facts):
            yield from _one_rank(program, mutant, facts)


@mutation
def one_rank_with_an_extra_collective(program: Program, facts: Lowering) -> Iterator[Mutant]:
    """A scalar that this rank alone sums; its own list is in order apart from that."""
    if facts.data_axes:
        index = _first(program, Op.SUM_LOSS)
        pair = [program.instructions[index], program.instructions[wait_of(program, index)]]
        mutant = program.with_instructions([*program.instructions, *pair])
        yield from _one_rank(program, mutant, facts)


@mutation
def one_rank_stops_early(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for length in (0, 1, len(program.instructions) // 2):
        mutant = program.with_instructions(list(program.instructions[:length]))
        yield from _one_rank(program, mutant, facts)


@mutation
def one_rank_under_another_layout(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for zero in range(4):
        other = replace(facts, layout=replace(facts.layout, zero=zero))
        if other.zero != facts.zero:
            yield from _one_rank(program, lower_step(other), facts)


def _check_caught(mutant: Mutant, facts: Lowering, where: str, limit: int | None = None) -> None:
    programs = mutant if isinstance(mutant, dict) else on_all_ranks(mutant, facts)
    faults = verify(programs, facts, limit)
    assert faults, f"{where}: not caught"
    for fault in faults:
        assert fault.rank in programs
        steps = programs[fault.rank].instructions
        if fault.instruction is None:
            assert "declarations" in str(fault)
        else:
            assert steps[fault.index] is fault.instruction, f"{where}: {fault} names another instruction"
            assert f"rank {fault.rank}, #{fault.index} `{fault.instruction.short}`" in str(fault)
        assert fault.message
        assert fault.fix


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", MUTATIONS)
def test_every_mutation_is_caught(kind: str, case: str) -> None:
    facts = _facts(case)
    program = lower_step(facts)
    for number, mutant in enumerate(MUTATIONS[kind](program, facts)):
        _check_caught(mutant, facts, f"{kind} {number} of {case}")


@pytest.mark.parametrize("kind", MUTATIONS)
def test_every_mutation_applies_somewhere_and_changes_the_program(kind: str) -> None:
    count = 0
    for case in CASES:
        facts = _facts(case)
        program = lower_step(facts)
        for mutant in MUTATIONS[kind](program, facts):
            count += 1
            changed = mutant.values() if isinstance(mutant, dict) else [mutant]
            assert any(m != program for m in changed)
    assert count


@pytest.mark.parametrize("case", CASES)
def test_the_unbroken_program_is_accepted(case: str) -> None:
    facts = _facts(case)
    assert verify(on_all_ranks(lower_step(facts), facts), facts) == []
    assert verify(on_all_ranks(lower_evaluation(facts), facts), facts) == []


EVALUATION = [
    "any_instruction_dropped",
    "any_instruction_doubled",
    "any_start_dropped_with_its_wait",
    "any_read_undeclared",
    "any_write_undeclared",
    "any_free_undeclared",
    "freed_before_its_last_reader",
    "gather_of_the_wrong_unit",
    "gather_over_wrong_axes",
    "one_microbatch_left_out",
    "one_microbatch_run_as_another",
    "scalar_over_wrong_axes",
    "scalar_without_a_collective",
    "scalar_summed_twice",
    "wait_before_its_start",
    "wrong_collective_bytes",
    "wrong_group_size",
    "one_rank_with_one_collective_fewer",
    "one_rank_stops_early",
    "workspace_understated",
]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", EVALUATION)
def test_evaluations_are_guarded_as_well(kind: str, case: str) -> None:
    facts = _facts(case)
    program = lower_evaluation(facts)
    for number, mutant in enumerate(MUTATIONS[kind](program, facts)):
        _check_caught(mutant, facts, f"{kind} {number} of {case}'s evaluation")


@pytest.mark.parametrize("case", CASES)
def test_a_peak_above_the_limit_names_its_instruction(case: str) -> None:
    facts = _facts(case)
    program = lower_step(facts)
    peak = memory_peak(program)
    assert verify(on_all_ranks(program, facts), facts, peak.bytes) == []
    _check_caught(program, facts, case, peak.bytes - 1)
    (fault,) = verify(on_all_ranks(program, facts), facts, peak.bytes - 1)
    assert fault.index == peak.index
    assert str(peak.bytes) in str(fault)
    assert peak.buffers[0][0] in str(fault)
