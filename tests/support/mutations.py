"""Every way we know to break one rank's program, wherever it applies. `pipeline_mutations.py`: those of several ranks."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise

from fourfold.program import Collective, Instruction, Lowering, Op, Program, lower_step, verify
from fourfold.program.instruction import BACKWARD_OPS, STARTS
from tests.support.programs import edited, moved, on_all_ranks, positions, wait_of

Mutant = Program | list[Program] | dict[int, Program]
"""The program of the pipeline rank that was given; of all pipeline ranks; or of some ranks alone, the others' unchanged."""
Mutation = Callable[[Program, Lowering], Iterator[Mutant]]
MUTATIONS: dict[str, Mutation] = {}


def mutation(function: Mutation) -> Mutation:
    MUTATIONS[function.__name__] = function
    return function


def drop(program: Program, *indices: int) -> Program:
    return edited(program, *((index, []) for index in indices))


def double(program: Program, index: int) -> Program:
    return edited(program, (index, [program.instructions[index]] * 2))


def change(program: Program, index: int, **fields: object) -> Program:
    return edited(program, (index, [program.instructions[index]._replace(**fields)]))  # type: ignore[arg-type]


def starts(program: Program, *ops: Op) -> list[int]:
    return positions(program, *(ops or STARTS))


def first(program: Program, *ops: Op) -> int:
    return positions(program, *ops)[0]


def others(values: object, facts: Lowering) -> list[str]:
    return [unit for unit in facts.flats if unit != values]


def as_unit(step: Instruction, unit: str) -> Instruction:
    """The same instruction on another unit, all its declarations included."""

    def rename(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(f"{name.partition('/')[0]}/{unit}" for name in names)

    return step._replace(segment=unit, reads=rename(step.reads), writes=rename(step.writes), frees=rename(step.frees))


def with_collective(program: Program, index: int, which: int, **fields: object) -> Program:
    collectives = list(program.instructions[index].collectives)
    collectives[which] = replace(collectives[which], **fields)  # type: ignore[arg-type]
    return change(program, index, collectives=tuple(collectives))


def one_rank(program: Program, mutant: Program, facts: Lowering) -> Iterator[Mutant]:
    """Each rank of the stage in turn does otherwise than the others of it; none where it is alone."""
    stage = [r for r in range(facts.layout.world_size) if facts.layout.coordinates(r)["pp"] == facts.pp_rank]
    for rank in stage if len(stage) > 1 else ():
        yield {rank: mutant}


# Anything at all


@mutation
def any_instruction_dropped(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index in range(len(program.instructions)):
        yield drop(program, index)


@mutation
def any_instruction_doubled(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index in range(len(program.instructions)):
        yield double(program, index)


@mutation
def any_start_dropped_with_its_wait(program: Program, facts: Lowering) -> Iterator[Mutant]:
    """Not a Reduce that another of its unit follows: then the gradients only go on adding up, and the later one sums them all."""
    for index in starts(program):
        step = program.instructions[index]
        later = [i for i in starts(program, Op.REDUCE) if program.instructions[i].segment == step.segment and i > index]
        if step.op is not Op.REDUCE or not later:
            yield drop(program, index, wait_of(program, index))


@mutation
def any_read_undeclared(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index, step in enumerate(program.instructions):
        for name in step.reads:
            yield change(program, index, reads=tuple(n for n in step.reads if n != name))


@mutation
def any_write_undeclared(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index, step in enumerate(program.instructions):
        for name in step.writes:
            yield change(program, index, writes=tuple(n for n in step.writes if n != name))


@mutation
def any_free_undeclared(program: Program, facts: Lowering) -> Iterator[Mutant]:
    """Not of a landing buffer that is used again: kept in between, it is only memory, and counted as such."""
    for index, step in enumerate(program.instructions):
        for name in step.frees:
            if name.startswith("reduce/") and any(name in s.writes for s in program.instructions[index:]):
                continue
            yield change(program, index, frees=tuple(n for n in step.frees if n != name))


@mutation
def freed_before_its_last_reader(program: Program, facts: Lowering) -> Iterator[Mutant]:
    last = {name: i for i, step in enumerate(program.instructions) for name in step.reads}
    for index, step in enumerate(program.instructions):
        for name in step.reads:
            if last[name] > index:
                yield change(program, index, frees=(*step.frees, name))


@mutation
def workspace_understated(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index, step in enumerate(program.instructions):
        if step.workspace_bytes:
            yield change(program, index, workspace_bytes=step.workspace_bytes // 2)


@mutation
def flops_misstated(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index, step in enumerate(program.instructions):
        if step.flops:
            yield change(program, index, flops=step.flops + 1)


@mutation
def another_stream(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index, step in enumerate(program.instructions):
        yield change(program, index, stream="tp" if step.stream == "compute" else "compute")


# Reductions


@mutation
def gradients_dropped_before_the_last_microbatch(program: Program, facts: Lowering) -> Iterator[Mutant]:
    """The buffer is freed behind a backward or a reduction that a later one of the same unit follows, and made anew there."""
    for index, step in enumerate(program.instructions):
        started = [s for s in program.instructions[:index] if s.short == step.handle]
        for name in (started[-1] if started else step).writes:
            kept = name.startswith(("grad/", "grad_shard/")) and name not in step.frees
            again = any(name in later.writes for later in program.instructions[index + 1 :])
            if kept and again and (step.op is Op.WAIT or step.op in BACKWARD_OPS):
                yield change(program, index, frees=(*step.frees, name))


@mutation
def reduce_twice_in_a_row(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index in starts(program, Op.REDUCE):
        wait = wait_of(program, index)
        yield edited(
            program, (wait, [program.instructions[wait], program.instructions[index], program.instructions[wait]])
        )


@mutation
def reduce_before_the_last_backward(program: Program, facts: Lowering) -> Iterator[Mutant]:
    """The whole reduction, started and joined after the first microbatch's backward of an accumulation."""
    for index in starts(program, Op.REDUCE):
        unit, wait = program.instructions[index].segment, wait_of(program, index)
        if facts.zero_of(unit or "") >= 2 or facts.layout.num_microbatches < 2:
            continue
        early = next(i for i, step in enumerate(program.instructions) if f"grad/{unit}" in step.writes)
        pair = [program.instructions[index], program.instructions[wait]]
        yield edited(program, (early, [program.instructions[early], *pair]), (index, []), (wait, []))


@mutation
def reduce_over_wrong_axes(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index in starts(program, Op.REDUCE):
        for which, collective in enumerate(program.instructions[index].collectives):
            for axes in ("dp_replicate", "dp_shard", "dp_replicate+dp_shard", "pp", "tp"):
                if axes != collective.axes:
                    size = facts.layout.group_size(tuple(axes.split("+")))
                    yield with_collective(program, index, which, axes=axes, group_size=size)


@mutation
def reduce_of_the_wrong_kind(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index in starts(program, Op.REDUCE):
        for which, collective in enumerate(program.instructions[index].collectives):
            for kind in ("all_gather", "reduce_scatter", "all_reduce", "all_to_all"):
                if kind != collective.kind:
                    yield with_collective(program, index, which, kind=kind)


@mutation
def replicas_not_summed(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index in starts(program, Op.REDUCE):
        collectives = program.instructions[index].collectives
        if len(collectives) > 1:
            yield change(program, index, collectives=collectives[:1])
            yield change(program, index, collectives=collectives[1:])


@mutation
def replicas_summed_twice(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index in starts(program, Op.REDUCE):
        collectives = program.instructions[index].collectives
        yield change(program, index, collectives=(*collectives, collectives[-1]))


@mutation
def replicas_summed_in_every_microbatch(program: Program, facts: Lowering) -> Iterator[Mutant]:
    reduces = {step.segment: step for step in program.instructions if step.op is Op.REDUCE}
    for index in starts(program, Op.REDUCE):
        step = program.instructions[index]
        final = reduces[step.segment]
        if len(final.collectives) > len(step.collectives):
            yield change(program, index, collectives=final.collectives)


@mutation
def reduce_without_a_collective(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index in starts(program, Op.REDUCE):
        yield change(program, index, collectives=())


@mutation
def reduce_of_the_wrong_unit(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index in starts(program, Op.REDUCE):
        for unit in others(program.instructions[index].segment, facts):
            yield edited(program, (index, [as_unit(program.instructions[index], unit)]))


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
        for unit in others(program.instructions[index].segment, facts):
            yield edited(program, (index, [as_unit(program.instructions[index], unit)]))


@mutation
def free_of_what_outlives_the_step(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for name in program.resident:
        steps = [*program.instructions, Instruction(Op.FREE, name.partition("/")[2] or None, frees=(name,))]
        yield program.with_instructions(steps)


@mutation
def gather_of_the_wrong_unit(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index in starts(program, Op.GATHER):
        for unit in others(program.instructions[index].segment, facts):
            yield edited(program, (index, [as_unit(program.instructions[index], unit)]))


@mutation
def gather_over_wrong_axes(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index in starts(program, Op.GATHER, Op.PUBLISH):
        for axes in ("dp_replicate", "dp_replicate+dp_shard", "pp"):
            size = facts.layout.group_size(tuple(axes.split("+")))
            if axes != program.instructions[index].collectives[0].axes:
                yield with_collective(program, index, 0, axes=axes, group_size=size)


@mutation
def gather_of_the_wrong_kind(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index in starts(program, Op.GATHER, Op.PUBLISH):
        for kind in ("all_reduce", "reduce_scatter", "all_to_all"):
            yield with_collective(program, index, 0, kind=kind)


@mutation
def gather_without_a_collective(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index in starts(program, Op.GATHER, Op.PUBLISH):
        yield change(program, index, collectives=())


@mutation
def gather_after_its_use(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index in starts(program, Op.GATHER):
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
    for index in starts(program):
        yield moved(program, wait_of(program, index), index)


@mutation
def wait_for_something_unknown(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for wait in positions(program, Op.WAIT):
        yield change(program, wait, handle="R nothing m0")
        yield change(program, wait, handle=None)


@mutation
def waits_joining_each_other(program: Program, facts: Lowering) -> Iterator[Mutant]:
    """Two neighbouring Waits' handles exchanged, their frees left where they are."""
    waits = positions(program, Op.WAIT)
    for first, second in pairwise(waits):
        a, b = program.instructions[first], program.instructions[second]
        if a.frees and a.frees != b.frees:
            yield edited(program, (first, [a._replace(handle=b.handle)]), (second, [b._replace(handle=a.handle)]))


# The end of the step


@mutation
def update_before_the_norm(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index in positions(program, Op.UPDATE):
        yield moved(program, index, first(program, Op.CLIP_NORM))


@mutation
def update_of_the_wrong_unit(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index in positions(program, Op.UPDATE):
        for unit in others(program.instructions[index].segment, facts):
            yield edited(program, (index, [as_unit(program.instructions[index], unit)]))


@mutation
def computation_after_an_update(program: Program, facts: Lowering) -> Iterator[Mutant]:
    """The norm and one update before the last backward; nothing that they read is missing there, only wrong."""
    last = positions(program, *BACKWARD_OPS)[-1]
    for index in positions(program, Op.UPDATE):
        norm = first(program, Op.CLIP_NORM)
        steps = [program.instructions[norm], program.instructions[index], program.instructions[last]]
        yield edited(program, (norm, []), (index, []), (last, steps))


@mutation
def norm_leaves_out_a_gradient(program: Program, facts: Lowering) -> Iterator[Mutant]:
    index = first(program, Op.CLIP_NORM)
    for name in program.instructions[index].reads:
        yield change(program, index, reads=tuple(n for n in program.instructions[index].reads if n != name))


@mutation
def norm_counts_a_gradient_twice(program: Program, facts: Lowering) -> Iterator[Mutant]:
    index = first(program, Op.CLIP_NORM)
    for name in program.instructions[index].reads:
        yield change(program, index, reads=(*program.instructions[index].reads, name))


@mutation
def norm_of_each_rank_alone(program: Program, facts: Lowering) -> Iterator[Mutant]:
    index = first(program, Op.CLIP_NORM)
    if program.instructions[index].collectives:
        yield change(program, index, collectives=())


@mutation
def norm_over_wrong_axes(program: Program, facts: Lowering) -> Iterator[Mutant]:
    index = first(program, Op.CLIP_NORM)
    for axes in ("dp_replicate", "dp_replicate+dp_shard"):
        size = facts.layout.group_size(tuple(axes.split("+")))
        if size > 1 and axes not in {c.axes for c in program.instructions[index].collectives}:
            yield change(program, index, collectives=(Collective("all_reduce", axes, 8, size),))


@mutation
def norm_before_the_last_reduction(program: Program, facts: Lowering) -> Iterator[Mutant]:
    norm = first(program, Op.CLIP_NORM)
    start = positions(program, *BACKWARD_OPS)[-1]
    last = positions(program, Op.REDUCE)[-1:]
    for target in range(start, last[0] + 1) if last else ():
        yield moved(program, norm, target)


@mutation
def publish_twice_in_a_row(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index in starts(program, Op.PUBLISH):
        wait = wait_of(program, index)
        yield edited(
            program, (wait, [program.instructions[wait], program.instructions[index], program.instructions[wait]])
        )


@mutation
def publish_before_its_update(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index in starts(program, Op.PUBLISH):
        unit, wait = program.instructions[index].segment, wait_of(program, index)
        update = next(i for i in positions(program, Op.UPDATE) if program.instructions[i].segment == unit)
        pair = [program.instructions[index], program.instructions[wait]]
        yield edited(program, (update, [*pair, program.instructions[update]]), (index, []), (wait, []))


@mutation
def publish_of_the_wrong_unit(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index in starts(program, Op.PUBLISH):
        wait = wait_of(program, index)
        for unit in others(program.instructions[index].segment, facts):
            step = as_unit(program.instructions[index], unit)
            yield edited(program, (index, [step]), (wait, [Instruction(Op.WAIT, handle=step.short)]))


# Computation


@mutation
def one_microbatch_without_backward(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for m in range(facts.layout.num_microbatches):
        steps = program.instructions
        yield drop(program, *(i for i in positions(program, *BACKWARD_OPS) if steps[i].microbatch == m))


@mutation
def one_microbatch_left_out(program: Program, facts: Lowering) -> Iterator[Mutant]:
    """All instructions that carry its number, with the Waits that join them."""
    for m in range(facts.layout.num_microbatches):
        steps = program.instructions
        gone = [i for i, s in enumerate(steps) if s.microbatch == m or f"m{m}" in (s.handle or "").split()]
        yield drop(program, *gone)


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
            yield change(program, index, microbatch=step.microbatch + 1)


@mutation
def backward_before_what_it_follows(program: Program, facts: Lowering) -> Iterator[Mutant]:
    backwards = positions(program, Op.BACKWARD, Op.BACKWARD_INPUT)
    for first, second in pairwise(backwards):
        a, b = program.instructions[first], program.instructions[second]
        if a.microbatch == b.microbatch and facts.following[b.segment or ""] == a.segment:
            yield edited(program, (first, [b]), (second, [a]))


@mutation
def another_segment_computed(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index in positions(program, Op.FORWARD, Op.BACKWARD, Op.BACKWARD_INPUT, Op.BACKWARD_WEIGHT, Op.RECOMPUTE):
        for unit in others(program.instructions[index].segment, facts):
            yield change(program, index, segment=unit)


@mutation
def backward_split_in_one_half_only(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index in positions(program, Op.BACKWARD):
        yield change(program, index, op=Op.BACKWARD_INPUT)
        yield change(program, index, op=Op.BACKWARD_WEIGHT)


# The loss's divisor and its record


@mutation
def targets_counted_after_the_first_loss(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index in starts(program, Op.COUNT):
        wait = wait_of(program, index)
        heads = [i for i in positions(program, Op.BACKWARD) if program.instructions[i].segment == "head"]
        if not heads:
            return
        head = heads[0]
        pair = [program.instructions[index], program.instructions[wait]]
        yield edited(program, (index, []), (wait, []), (head, [program.instructions[head], *pair]))


@mutation
def scalar_over_wrong_axes(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index in starts(program, Op.COUNT, Op.SUM_LOSS):
        for axes in ("dp_replicate", "dp_shard", "pp"):
            size = facts.layout.group_size(tuple(axes.split("+")))
            if axes != program.instructions[index].collectives[0].axes:
                yield with_collective(program, index, 0, axes=axes, group_size=size)


@mutation
def scalar_without_a_collective(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index in starts(program, Op.COUNT, Op.SUM_LOSS):
        yield change(program, index, collectives=())


@mutation
def scalar_summed_twice(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index in starts(program, Op.COUNT, Op.SUM_LOSS):
        wait = wait_of(program, index)
        pair = [program.instructions[index], program.instructions[wait]]
        yield edited(program, (wait, [program.instructions[wait], *pair]))


@mutation
def loss_summed_before_the_last_microbatch(program: Program, facts: Lowering) -> Iterator[Mutant]:
    heads = [i for i in positions(program, Op.BACKWARD) if program.instructions[i].segment == "head"]
    for index in starts(program, Op.SUM_LOSS):
        for head in heads:
            yield moved(program, index, head)


# Declarations


@mutation
def wrong_collective_bytes(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index, step in enumerate(program.instructions):
        for which, collective in enumerate(step.collectives):
            for size in {collective.bytes * 2, collective.bytes - 4, 0} - {collective.bytes}:
                yield with_collective(program, index, which, bytes=size)


@mutation
def wrong_group_size(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index, step in enumerate(program.instructions):
        for which, collective in enumerate(step.collectives):
            yield with_collective(program, index, which, group_size=collective.group_size + 1)


@mutation
def axes_that_no_mesh_has(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index, step in enumerate(program.instructions):
        for which in range(len(step.collectives)):
            for axes in ("everyone", "", "world_size", "schedule", "zero", "dp_shard+dp_shard"):
                size = {"world_size": facts.layout.world_size, "zero": facts.layout.zero}.get(axes, 2)
                yield with_collective(program, index, which, axes=axes, group_size=size)


@mutation
def wrong_buffer_size(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for name, size in program.buffers.items():
        for wrong in (size + 4, size // 2, -size):
            yield replace(program, buffers={**program.buffers, name: wrong})


@mutation
def buffer_of_no_segment(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for name in (
        "params/b99",
        "saved/b99/m0",
        "hidden/b99/m0",
        "deferred/b99/m0",
        "router/b99",
        "cache/b0",
        "moments",
        "grad/",
    ):
        yield replace(program, buffers={**program.buffers, name: 64})


@mutation
def buffer_without_a_size(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for name in program.buffers:
        yield replace(program, buffers={n: size for n, size in program.buffers.items() if n != name})


@mutation
def write_to_an_unknown_buffer(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for index, step in enumerate(program.instructions):
        if step.op is not Op.WAIT:
            yield change(program, index, writes=(*step.writes, "scratch/b0"))


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
    for index in starts(program):
        yield from one_rank(program, drop(program, index, wait_of(program, index)), facts)


@mutation
def one_rank_with_two_collectives_swapped(program: Program, facts: Lowering) -> Iterator[Mutant]:
    """Neighbouring starts on one group whose exchange breaks nothing within the rank's own list."""
    for first, second in pairwise(starts(program)):
        a, b = program.instructions[first], program.instructions[second]
        mutant = edited(program, (first, [b]), (second, [a]))
        groups = {c.axes for c in a.collectives} & {c.axes for c in b.collectives}
        if facts.layout.pp == 1 and groups and a.short != b.short and not verify(on_all_ranks(mutant, facts), facts):
            yield from one_rank(program, mutant, facts)


@mutation
def one_rank_with_an_extra_collective(program: Program, facts: Lowering) -> Iterator[Mutant]:
    """A scalar that this rank alone sums; its own list is in order apart from that."""
    for index in starts(program, Op.SUM_LOSS):
        pair = [program.instructions[index], program.instructions[wait_of(program, index)]]
        mutant = program.with_instructions([*program.instructions, *pair])
        yield from one_rank(program, mutant, facts)


@mutation
def one_rank_stops_early(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for length in (0, 1, len(program.instructions) // 2):
        mutant = program.with_instructions(list(program.instructions[:length]))
        yield from one_rank(program, mutant, facts)


@mutation
def one_rank_under_another_layout(program: Program, facts: Lowering) -> Iterator[Mutant]:
    for zero in range(4):
        other = replace(facts, layout=replace(facts.layout, zero=zero))
        if any(other.zero_of(unit) != facts.zero_of(unit) for unit in facts.flats):
            yield from one_rank(program, lower_step(other), facts)
