"""Ways to break the programs of a pipeline and of split layers, at every place where they apply, on one stage or on several."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise

from fourfold.layout.mesh import AXES
from fourfold.program import Collective, Instruction, Lowering, Op, Program
from fourfold.program.instruction import BACKWARD_OPS, COMPUTE_OPS, RECEIVES, SENDS
from tests.support.mutations import Mutant, change, double, drop, starts, with_collective
from tests.support.programs import edited, moved, positions, wait_of

PipelineMutation = Callable[[list[Program], Lowering], Iterator[Mutant]]
PIPELINE_MUTATIONS: dict[str, PipelineMutation] = {}
PARTNER = {
    Op.SEND_ACTIVATION: Op.RECV_ACTIVATION,
    Op.RECV_ACTIVATION: Op.SEND_ACTIVATION,
    Op.SEND_GRADIENT: Op.RECV_GRADIENT,
    Op.RECV_GRADIENT: Op.SEND_GRADIENT,
}


def mutation(function: PipelineMutation) -> PipelineMutation:
    PIPELINE_MUTATIONS[function.__name__] = function
    return function


def _with(programs: list[Program], *changed: Program) -> list[Program]:
    """The pipeline with these ranks' programs in place of theirs."""
    by_rank = {program.pp_rank: program for program in changed}
    return [by_rank.get(program.pp_rank, program) for program in programs]


def _each(programs: list[Program], *ops: Op) -> Iterator[tuple[Program, int]]:
    """Every instruction of these operations, as (program, index)."""
    for program in programs:
        for index in positions(program, *ops):
            yield program, index


def _everywhere(programs: list[Program], edit: Callable[[Instruction], Instruction | None]) -> list[Program]:
    """The same edit of every rank's instructions; None drops one, and what waits for it."""
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


def _partner(programs: list[Program], program: Program, index: int) -> tuple[Program, int]:
    """The other end of a transfer."""
    step = program.instructions[index]
    other = programs[step.peer or 0]
    for i in positions(other, PARTNER[step.op]):
        there = other.instructions[i]
        if (there.segment, there.microbatch) == (step.segment, step.microbatch):
            return other, i
    raise LookupError(step.short)


# Transfers


@mutation
def transfer_dropped_at_one_end(programs: list[Program], facts: Lowering) -> Iterator[Mutant]:
    for program, index in _each(programs, *SENDS, *RECEIVES):
        yield _with(programs, drop(program, index, wait_of(program, index)))


@mutation
def transfer_dropped_at_both_ends(programs: list[Program], facts: Lowering) -> Iterator[Mutant]:
    for program, index in _each(programs, *SENDS):
        other, there = _partner(programs, program, index)
        ends = drop(program, index, wait_of(program, index)), drop(other, there, wait_of(other, there))
        yield _with(programs, *ends)


@mutation
def transfer_doubled_at_one_end(programs: list[Program], facts: Lowering) -> Iterator[Mutant]:
    for program, index in _each(programs, *SENDS, *RECEIVES):
        yield _with(programs, _twice(program, index))


@mutation
def transfer_doubled_at_both_ends(programs: list[Program], facts: Lowering) -> Iterator[Mutant]:
    for program, index in _each(programs, *SENDS):
        yield _with(programs, _twice(program, index), _twice(*_partner(programs, program, index)))


def _twice(program: Program, index: int) -> Program:
    """Started and joined, then once more."""
    step = program.instructions[index]
    return edited(program, (index, [step, Instruction(Op.WAIT, handle=step.short), step]))


@mutation
def transfers_started_in_another_order_at_one_end(programs: list[Program], facts: Lowering) -> Iterator[Mutant]:
    """Two neighbours among what a rank sends to another, or receives from it, change places."""
    for program in programs:
        for ops in (SENDS, RECEIVES):
            for peer in range(len(programs)):
                ends = [i for i in positions(program, *ops) if program.instructions[i].peer == peer]
                for first, second in pairwise(ends):
                    a, b = program.instructions[first], program.instructions[second]
                    yield _with(programs, edited(program, (first, [b]), (second, [a])))


@mutation
def receives_started_in_another_order_with_their_waits(programs: list[Program], facts: Lowering) -> Iterator[Mutant]:
    """Nothing is wrong within the rank's own list; only what arrives first is not what it takes first."""
    for program in programs:
        for peer in range(len(programs)):
            ends = [i for i in positions(program, *RECEIVES) if program.instructions[i].peer == peer]
            for first, second in pairwise(ends):
                yield _with(programs, moved(program, second, first))


@mutation
def transfer_with_another_peer(programs: list[Program], facts: Lowering) -> Iterator[Mutant]:
    for program, index in _each(programs, *SENDS, *RECEIVES):
        for peer in {*range(facts.layout.pp + 1), -1} - {program.instructions[index].peer}:
            step = program.instructions[index]._replace(peer=peer)
            wait = wait_of(program, index)
            join = program.instructions[wait]._replace(handle=step.short)
            yield _with(programs, edited(program, (index, [step]), (wait, [join])))


@mutation
def transfer_of_the_wrong_bytes(programs: list[Program], facts: Lowering) -> Iterator[Mutant]:
    for program, index in _each(programs, *SENDS, *RECEIVES):
        half = program.instructions[index].collectives[0].bytes // 2
        one = with_collective(program, index, 0, bytes=half)
        yield _with(programs, one)
        other, there = _partner(programs, program, index)
        yield _with(programs, one, with_collective(other, there, 0, bytes=half))


@mutation
def transfer_of_another_microbatch_or_segment(programs: list[Program], facts: Lowering) -> Iterator[Mutant]:
    names = [segment.name for segment in facts.segments]
    for program, index in _each(programs, *SENDS, *RECEIVES):
        step = program.instructions[index]
        yield _with(programs, change(program, index, microbatch=(step.microbatch or 0) + 1))
        yield _with(programs, change(program, index, segment=names[names.index(step.segment or "") - 1]))


@mutation
def gradient_sent_as_an_activation(programs: list[Program], facts: Lowering) -> Iterator[Mutant]:
    other = {Op.SEND_ACTIVATION: Op.SEND_GRADIENT, Op.SEND_GRADIENT: Op.SEND_ACTIVATION}
    for program, index in _each(programs, *SENDS):
        step = program.instructions[index]
        there, at = _partner(programs, program, index)
        ends = change(program, index, op=other[step.op]), change(there, at, op=PARTNER[other[step.op]])
        yield _with(programs, *ends)
        yield _with(programs, ends[0])


@mutation
def sent_before_it_is_made(programs: list[Program], facts: Lowering) -> Iterator[Mutant]:
    for program, index in _each(programs, *SENDS):
        buffer = program.instructions[index].reads[0]
        maker = next(i for i, step in enumerate(program.instructions) if buffer in step.writes)
        yield _with(programs, moved(program, index, maker))


@mutation
def received_after_its_use(programs: list[Program], facts: Lowering) -> Iterator[Mutant]:
    """The Wait alone, or start and Wait, behind the first reader."""
    for program, index in _each(programs, *RECEIVES):
        wait, buffer = wait_of(program, index), program.instructions[index].writes[0]
        use = next(i for i, step in enumerate(program.instructions) if buffer in step.reads)
        join, reader = program.instructions[wait], program.instructions[use]
        yield _with(programs, edited(program, (wait, []), (use, [reader, join])))
        pair = [program.instructions[index], join]
        yield _with(programs, edited(program, (index, []), (wait, []), (use, [reader, *pair])))


@mutation
def sent_buffer_dropped_in_flight(programs: list[Program], facts: Lowering) -> Iterator[Mutant]:
    for program, index in _each(programs, *SENDS):
        buffer, wait = program.instructions[index].reads[0], wait_of(program, index)
        step = program.instructions[index]._replace(frees=(buffer,))
        yield _with(programs, edited(program, (index, [step]), (wait, [program.instructions[wait]._replace(frees=())])))


@mutation
def transfer_never_joined(programs: list[Program], facts: Lowering) -> Iterator[Mutant]:
    for program, index in _each(programs, *SENDS, *RECEIVES):
        yield _with(programs, drop(program, wait_of(program, index)))


@mutation
def gradient_awaited_before_the_activation_is_sent(programs: list[Program], facts: Lowering) -> Iterator[Mutant]:
    """Two ranks that wait for each other: the gradient of a microbatch, joined before its activation has left."""
    for program, index in _each(programs, Op.SEND_ACTIVATION):
        step = program.instructions[index]
        for back in positions(program, Op.RECV_GRADIENT):
            if program.instructions[back].short == f"R< {step.segment} m{step.microbatch} r{step.peer}":
                wait = wait_of(program, back)
                pair = [program.instructions[back], program.instructions[wait]]
                yield _with(programs, edited(program, (back, []), (wait, []), (index, [*pair, step])))


@mutation
def programs_of_two_stages_exchanged(programs: list[Program], facts: Lowering) -> Iterator[Mutant]:
    for first in range(len(programs)):
        for second in range(first):
            exchanged = list(programs)
            exchanged[first], exchanged[second] = programs[second], programs[first]
            yield exchanged
            exchanged[first] = replace(programs[second], pp_rank=first)
            exchanged[second] = replace(programs[first], pp_rank=second)
            yield exchanged


@mutation
def one_stage_does_nothing(programs: list[Program], facts: Lowering) -> Iterator[Mutant]:
    for program in programs if len(programs) > 1 else ():
        yield _with(programs, program.with_instructions([]))


@mutation
def one_stage_evaluates(programs: list[Program], facts: Lowering) -> Iterator[Mutant]:
    for program in programs:
        yield _with(programs, replace(program, kind="evaluate"))


@mutation
def a_microbatch_left_out_by_all_stages(programs: list[Program], facts: Lowering) -> Iterator[Mutant]:
    for m in range(facts.layout.num_microbatches):
        yield _everywhere(programs, lambda step, m=m: None if step.microbatch == m else step)  # type: ignore[misc]


# Backward in halves


@mutation
def weight_gradient_before_the_input_gradient(programs: list[Program], facts: Lowering) -> Iterator[Mutant]:
    for program, index in _each(programs, Op.BACKWARD_WEIGHT):
        yield _with(programs, moved(program, index, _half(program, index, Op.BACKWARD_INPUT)))


def _half(program: Program, index: int, op: Op) -> int:
    step = program.instructions[index]
    same = [i for i in positions(program, op) if program.instructions[i].segment == step.segment]
    return next(i for i in same if program.instructions[i].microbatch == step.microbatch)


@mutation
def one_half_dropped(programs: list[Program], facts: Lowering) -> Iterator[Mutant]:
    for program, index in _each(programs, Op.BACKWARD_WEIGHT, Op.BACKWARD_INPUT):
        yield _with(programs, drop(program, index))


@mutation
def weight_gradient_dropped_with_what_was_put_off(programs: list[Program], facts: Lowering) -> Iterator[Mutant]:
    """The operands are dropped properly; what they were kept for never happens."""
    for program, index in _each(programs, Op.BACKWARD_WEIGHT):
        step = program.instructions[index]
        put_off = f"deferred/{step.segment}/m{step.microbatch}"
        yield _with(programs, edited(program, (index, [Instruction(Op.FREE, step.segment, frees=(put_off,))])))


@mutation
def weight_gradient_twice(programs: list[Program], facts: Lowering) -> Iterator[Mutant]:
    for program, index in _each(programs, Op.BACKWARD_WEIGHT):
        step = program.instructions[index]
        yield _with(programs, edited(program, (index, [step._replace(frees=()), step])))


@mutation
def weight_gradients_of_two_microbatches_exchanged_in_name(
    programs: list[Program], facts: Lowering
) -> Iterator[Mutant]:
    for program, index in _each(programs, Op.BACKWARD_WEIGHT):
        step = program.instructions[index]
        other = ((step.microbatch or 0) + 1) % facts.layout.num_microbatches
        if other != step.microbatch:
            yield _with(programs, change(program, index, microbatch=other))


@mutation
def whole_backward_beside_its_halves(programs: list[Program], facts: Lowering) -> Iterator[Mutant]:
    for program, index in _each(programs, Op.BACKWARD_INPUT):
        whole = _whole(program.instructions[index], facts)
        weight = _half(program, index, Op.BACKWARD_WEIGHT)
        yield _with(programs, edited(program, (index, [whole, program.instructions[index]])))
        yield _with(programs, edited(program, (index, [whole])))
        yield _with(programs, edited(program, (index, [whole._replace(frees=()), program.instructions[index]])))
        yield _with(programs, edited(program, (weight, [program.instructions[weight], whole])))


def _whole(half: Instruction, facts: Lowering) -> Instruction:
    """The whole backward that the input gradient is a half of, as it would be declared."""
    footprint = facts.footprint(facts.by_name[half.segment or ""])
    collectives = tuple(
        Collective(t.kind, t.axes, t.bytes, facts.layout.group_size(tuple(t.axes.split("+"))))
        for t in footprint.backward.collectives
    )
    return half._replace(
        op=Op.BACKWARD,
        writes=tuple(name for name in half.writes if not name.startswith("deferred/")),
        collectives=collectives,
        flops=footprint.backward.flops,
        workspace_bytes=footprint.backward_workspace_bytes,
    )


# Tied embeddings


@mutation
def tied_sum_left_out(programs: list[Program], facts: Lowering) -> Iterator[Mutant]:
    ends = [(program, index) for program, index in _each(programs, Op.REDUCE_TIED)]
    for program, index in ends:
        yield _with(programs, drop(program, index, wait_of(program, index)))
    if ends:
        yield _with(programs, *(drop(program, index, wait_of(program, index)) for program, index in ends))


@mutation
def tied_sum_taken_twice(programs: list[Program], facts: Lowering) -> Iterator[Mutant]:
    ends = [_twice(program, index) for program, index in _each(programs, Op.REDUCE_TIED)]
    for program in ends:
        yield _with(programs, program)
    if ends:
        yield _with(programs, *ends)


@mutation
def tied_sum_before_the_data_reduction(programs: list[Program], facts: Lowering) -> Iterator[Mutant]:
    """On one stage, and on both: before the last Reduce of the unit, joined there, or before its last Backward."""
    early = []
    for program, index in _each(programs, Op.REDUCE_TIED):
        unit, wait = program.instructions[index].segment, wait_of(program, index)
        pair = [program.instructions[index], program.instructions[wait]]
        reduces = [i for i in positions(program, Op.REDUCE) if program.instructions[i].segment == unit]
        writers = [i for i, step in enumerate(program.instructions[:index]) if f"grad/{unit}" in step.writes]
        last = max(i for i in writers if i not in reduces)
        at = [last, *reduces[-1:]]
        moved_to = [edited(program, (index, []), (wait, []), (i, [*pair, program.instructions[i]])) for i in at]
        early.append(moved_to[-1])
        for mutant in moved_to:
            yield _with(programs, mutant)
    if early:
        yield _with(programs, *early)


@mutation
def tied_sum_over_wrong_axes(programs: list[Program], facts: Lowering) -> Iterator[Mutant]:
    for axes in ("pp", "dp_shard", "pp+dp_shard"):
        size = facts.layout.group_size(tuple(axes.split("+")))
        other = _everywhere(
            programs,
            lambda s, axes=axes, size=size: (  # type: ignore[misc]
                s._replace(collectives=(replace(s.collectives[0], axes=axes, group_size=size),))
                if s.op is Op.REDUCE_TIED
                else s
            ),
        )
        if other != programs:
            yield other


@mutation
def another_unit_summed_as_tied(programs: list[Program], facts: Lowering) -> Iterator[Mutant]:
    for program, index in _each(programs, Op.REDUCE_TIED):
        for unit in facts.at(program.pp_rank).flats:
            if unit != program.instructions[index].segment:
                yield _with(programs, change(program, index, segment=unit))


# Sums over tensor-parallel ranks


def _partial(facts: Lowering, program: Program, index: int) -> int:
    """How many of a Reduce's collectives are partial sums."""
    return len(facts.at(program.pp_rank).flats[program.instructions[index].segment or ""].sums)


def _partials(programs: list[Program], facts: Lowering) -> Iterator[tuple[Program, int, int]]:
    for program, index in _each(programs, Op.REDUCE):
        for which in range(_partial(facts, program, index)):
            yield program, index, which


@mutation
def partial_sum_left_out(programs: list[Program], facts: Lowering) -> Iterator[Mutant]:
    for program, index, which in _partials(programs, facts):
        collectives = list(program.instructions[index].collectives)
        del collectives[which]
        yield _with(programs, change(program, index, collectives=tuple(collectives)))


@mutation
def partial_sum_taken_twice(programs: list[Program], facts: Lowering) -> Iterator[Mutant]:
    for program, index, which in _partials(programs, facts):
        collectives = list(program.instructions[index].collectives)
        collectives.insert(which, collectives[which])
        yield _with(programs, change(program, index, collectives=tuple(collectives)))


@mutation
def partial_sum_of_another_range_or_axis(programs: list[Program], facts: Lowering) -> Iterator[Mutant]:
    for program, index, which in _partials(programs, facts):
        size = program.instructions[index].collectives[which].bytes
        for other in (size + 4, size - 4):
            yield _with(programs, with_collective(program, index, which, bytes=other))
        for axes in {"tp", "tp_copy", "tp_head", "dp_shard"} - {program.instructions[index].collectives[which].axes}:
            degree = facts.layout.degree(axes)
            yield _with(programs, with_collective(program, index, which, axes=axes, group_size=degree))


@mutation
def partial_sum_after_the_shards_are_scattered(programs: list[Program], facts: Lowering) -> Iterator[Mutant]:
    for program, index in _each(programs, Op.REDUCE):
        collectives = program.instructions[index].collectives
        if _partial(facts, program, index) and len(collectives) > 1 and collectives[::-1] != collectives:
            yield _with(programs, change(program, index, collectives=collectives[::-1]))


# Collectives inside a segment


def _inside(programs: list[Program]) -> Iterator[tuple[Program, int, int]]:
    for program, index in _each(programs, *COMPUTE_OPS):
        for which in range(len(program.instructions[index].collectives)):
            yield program, index, which


@mutation
def inner_collective_left_out_or_doubled(programs: list[Program], facts: Lowering) -> Iterator[Mutant]:
    for program, index, which in _inside(programs):
        collectives = program.instructions[index].collectives
        for times in (0, 2):
            changed = collectives[:which] + collectives[which : which + 1] * times + collectives[which + 1 :]
            yield _with(programs, change(program, index, collectives=changed))


@mutation
def inner_collective_left_out_by_one_rank(programs: list[Program], facts: Lowering) -> Iterator[Mutant]:
    for program, index, which in _inside(programs):
        collectives = program.instructions[index].collectives
        mutant = change(program, index, collectives=collectives[:which] + collectives[which + 1 :])
        stage = [r for r in range(facts.layout.world_size) if facts.layout.coordinates(r)["pp"] == program.pp_rank]
        yield {stage[-1]: mutant}


@mutation
def inner_collective_over_another_axis(programs: list[Program], facts: Lowering) -> Iterator[Mutant]:
    for program, index, which in _inside(programs):
        for axis in {"tp", "cp", "cp_ring", "ep", "dp_shard"} - {program.instructions[index].collectives[which].axes}:
            degree = facts.layout.degree(axis)
            yield _with(programs, with_collective(program, index, which, axes=axis, group_size=degree))


@mutation
def inner_collective_of_other_bytes_or_kind(programs: list[Program], facts: Lowering) -> Iterator[Mutant]:
    for program, index, which in _inside(programs):
        collective = program.instructions[index].collectives[which]
        yield _with(programs, with_collective(program, index, which, bytes=collective.bytes + 2))
        for kind in {"all_gather", "reduce_scatter", "all_reduce", "all_to_all", "shift"} - {collective.kind}:
            yield _with(programs, with_collective(program, index, which, kind=kind))


@mutation
def inner_collectives_in_another_order(programs: list[Program], facts: Lowering) -> Iterator[Mutant]:
    for program, index, which in _inside(programs):
        collectives = list(program.instructions[index].collectives)
        if which and collectives[which] != collectives[which - 1]:
            collectives[which], collectives[which - 1] = collectives[which - 1], collectives[which]
            yield _with(programs, change(program, index, collectives=tuple(collectives)))


# The axes of shards and of experts


@mutation
def shards_without_the_context_ranks(programs: list[Program], facts: Lowering) -> Iterator[Mutant]:
    """`cp` or `dp_shard` left out of what a unit's gradients are reduced over, or its parameters gathered over, on all ranks."""
    for op in (Op.REDUCE, Op.GATHER, Op.PUBLISH):
        for unit in facts.by_name:
            for axis in ("cp", "dp_shard"):
                yield from _reaxed(programs, facts, op, unit, lambda axes, axis=axis: [a for a in axes if a != axis])  # type: ignore[misc]


def _reaxed(
    programs: list[Program], facts: Lowering, op: Op, unit: str, axes_of: Callable[[list[str]], list[str]]
) -> Iterator[Mutant]:
    """The unit's collectives over other axes, on all ranks."""

    def edit(step: Instruction) -> Instruction:
        if step.op is not op or step.segment != unit:
            return step
        changed = []
        for c in step.collectives:
            axes = axes_of(c.axes.split("+"))
            size = facts.layout.group_size(tuple(axes))
            changed.append(replace(c, axes="+".join(axes), group_size=size) if axes else c)
        return step._replace(collectives=tuple(changed))

    mutant = _everywhere(programs, edit)
    if mutant != programs:
        yield mutant


@mutation
def experts_reduced_as_if_dense(programs: list[Program], facts: Lowering) -> Iterator[Mutant]:
    """Over `dp_shard` and `cp`, whose ranks hold other experts, or over `ep` too; and dense units over the experts' axes."""
    dense = list(facts.layout.active(("dp_shard", "cp"))) or ["tp"]
    for op in (Op.REDUCE, Op.GATHER, Op.PUBLISH):
        for segment in facts.segments:
            for unit in segment.own if segment.moe else ():
                other = dense if unit.domain == "expert" else ["edp"]
                old = ("edp",) if unit.domain == "expert" else ("dp_shard", "cp")
                for names in (other, [*other, "ep"] if other == ["edp"] else other):
                    yield from _reaxed(
                        programs, facts, op, unit.name,
                        lambda axes, names=names, old=old: names if set(axes) & set(old) else axes,  # type: ignore[misc]
                    )  # fmt: skip


# Loads of experts, loss and norm


@mutation
def balance_left_out_or_doubled(programs: list[Program], facts: Lowering) -> Iterator[Mutant]:
    for program, index in _each(programs, Op.BALANCE):
        yield _with(programs, drop(program, index))
        yield _with(programs, double(program, index))
    for times in (0, 2):
        everywhere = [
            edited(program, *((i, [program.instructions[i]] * times) for i in positions(program, Op.BALANCE)))
            for program in programs
        ]
        if everywhere != programs:
            yield everywhere


@mutation
def balance_before_the_last_tokens_are_routed(programs: list[Program], facts: Lowering) -> Iterator[Mutant]:
    for program, index in _each(programs, Op.BALANCE):
        routed = [i for i in positions(program, *BACKWARD_OPS - {Op.BACKWARD_WEIGHT})
                  if facts.by_name[program.instructions[i].segment or ""].moe]  # fmt: skip
        for target in routed:
            yield _with(programs, moved(program, index, target))


@mutation
def balance_without_a_router(programs: list[Program], facts: Lowering) -> Iterator[Mutant]:
    for program, index in _each(programs, Op.BALANCE):
        step = program.instructions[index]
        for name in step.reads:
            rest = tuple(n for n in step.reads if n != name)
            yield _with(programs, change(program, index, reads=rest, writes=rest))


@mutation
def sum_over_ranks_without_one_axis(programs: list[Program], facts: Lowering) -> Iterator[Mutant]:
    """Of the count, the loss, the norm and the experts' loads, on all ranks: `pp`, `tp`, `cp`, or any other left out."""
    for op in (Op.COUNT, Op.SUM_LOSS, Op.CLIP_NORM, Op.BALANCE):
        for axis in AXES:
            yield from _rescaled(programs, facts, op, lambda axes, axis=axis: tuple(a for a in axes if a != axis))  # type: ignore[misc]


@mutation
def sum_over_ranks_with_one_axis_more(programs: list[Program], facts: Lowering) -> Iterator[Mutant]:
    for op in (Op.COUNT, Op.SUM_LOSS, Op.CLIP_NORM, Op.BALANCE):
        for axis in facts.layout.active(AXES):
            yield from _rescaled(
                programs,
                facts,
                op,
                lambda axes, axis=axis: tuple(a for a in AXES if a in {*axes, axis}),  # type: ignore[misc]
            )


def _rescaled(
    programs: list[Program], facts: Lowering, op: Op, axes_of: Callable[[tuple[str, ...]], tuple[str, ...]]
) -> Iterator[Mutant]:
    def edit(step: Instruction) -> Instruction:
        if step.op is not op or not step.collectives:
            return step
        (c,) = step.collectives
        axes = axes_of(tuple(c.axes.split("+")))
        other = replace(c, axes="+".join(axes), group_size=facts.layout.group_size(axes))
        return step._replace(collectives=(other,) if axes else ())

    mutant = _everywhere(programs, edit)
    if mutant != programs:
        yield mutant


@mutation
def scalar_collectives_of_one_stage_in_another_order(programs: list[Program], facts: Lowering) -> Iterator[Mutant]:
    """One stage takes the norm before its loss is summed: on a group of the same ranks the other stages are one ahead."""
    for program, index in _each(programs, Op.SUM_LOSS):
        norm = positions(program, Op.CLIP_NORM)[0]
        if _same_group(program, index, norm, facts) and len(programs) > 1:
            pair = [program.instructions[norm], program.instructions[index]]
            yield _with(programs, edited(program, (index, []), (norm, pair)))


def _same_group(program: Program, first: int, second: int, facts: Lowering) -> bool:
    rank = next(r for r in range(facts.layout.world_size) if facts.layout.coordinates(r)["pp"] == program.pp_rank)
    groups = [
        facts.layout.group_of(rank, tuple(program.instructions[i].collectives[0].axes.split("+")))
        for i in (first, second)
        if program.instructions[i].collectives
    ]
    return len(groups) == 2 and groups[0] == groups[1]


@mutation
def an_evaluation_where_a_step_should_be(programs: list[Program], facts: Lowering) -> Iterator[Mutant]:
    """Every rank drops its backward and its update, and calls it training."""
    kept = {Op.LOAD, Op.FORWARD, Op.COUNT, Op.SUM_LOSS, Op.SEND_ACTIVATION, Op.RECV_ACTIVATION, Op.WAIT}
    yield _everywhere(programs, lambda step: step if step.op in kept else None)


@mutation
def starts_of_one_stage_left_out(programs: list[Program], facts: Lowering) -> Iterator[Mutant]:
    """Every start of one kind, with its Waits, on one stage alone."""
    for program in programs:
        for op in {program.instructions[i].op for i in starts(program)}:
            (mutant,) = _everywhere([program], lambda step, op=op: None if step.op is op else step)  # type: ignore[misc]
            yield _with(programs, mutant)
