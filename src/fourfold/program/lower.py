"""Lowering: from a schedule's compute order to a whole program, one small pass after another."""

from collections.abc import Iterable
from dataclasses import replace

from fourfold.config import DTYPE_BYTES
from fourfold.layout.mesh import DATA_AXES, axes_name
from fourfold.program import buffers as name
from fourfold.program.buffers import Lowering
from fourfold.program.gathers import insert_gathers
from fourfold.program.instruction import BACKWARD_OPS, Collective, Instruction, Op, Program
from fourfold.program.reductions import insert_reductions
from fourfold.program.schedule import Compute, forward_only, one_f_one_b

SCALAR_BYTES = 8


def lower_step(facts: Lowering, pp_rank: int = 0) -> Program:
    """One training step of the ranks at this pipeline coordinate."""
    order = one_f_one_b(pp_rank, facts.layout.pp, facts.layout.num_microbatches)
    steps = expand_segments(order, facts)
    steps = insert_recompute(steps, facts)
    steps = insert_gathers(steps, facts)
    steps = insert_reductions(steps, facts)
    steps = append_update(steps, facts)
    steps = sum_counts(steps, facts)
    return assemble("train", pp_rank, steps, facts)


def lower_evaluation(facts: Lowering, pp_rank: int = 0) -> Program:
    """The loss of the microbatches, forward only."""
    order = forward_only(pp_rank, facts.layout.num_microbatches)
    steps = expand_segments(order, facts, training=False)
    steps = insert_gathers(steps, facts)
    steps = sum_counts(steps, facts)
    return assemble("evaluate", pp_rank, steps, facts)


def assemble(kind: str, pp_rank: int, steps: list[Instruction], facts: Lowering) -> Program:
    """Collects the buffers that the instructions name, with their bytes, and those that outlive the step."""
    resident = ["rope"]
    for unit in facts.flats:
        resident.append(f"shard/{unit}" if facts.zero == 3 else f"params/{unit}")
        if kind == "train":
            resident += [f"master/{unit}"] if facts.mixed else []
            resident.append(f"moments/{unit}")
    names = set(resident)
    for step in steps:
        names.update(step.reads, step.writes, step.frees)
    sizes = {n: facts.buffer_bytes(n) for n in sorted(names)}
    return Program(pp_rank, kind, tuple(steps), sizes, tuple(resident))


def expand_segments(order: Iterable[Compute], facts: Lowering, training: bool = True) -> list[Instruction]:
    """Stage -> its segments; backward in reverse. The head has no forward of its own in training: its backward does both."""
    segments = facts.segments
    steps: list[Instruction] = []
    for compute in order:
        m = compute.microbatch
        if compute.op is Op.FORWARD:
            steps.append(Instruction(Op.LOAD, microbatch=m, writes=(name.batch(m),)))
            steps += [_forward(facts, i, m, training) for i in range(len(segments) - (1 if training else 0))]
        else:
            steps += [_backward(facts, i, m) for i in reversed(range(len(segments)))]
    return steps


def _forward(facts: Lowering, index: int, m: int, training: bool) -> Instruction:
    segment, policy = facts.segments[index], facts.policy(facts.segments[index])
    footprint = facts.footprint(segment)
    reads = [f"params/{unit}" for unit in segment.units]
    writes, frees = [], []
    if segment.kind != "embedding":
        reads.append(name.hidden(segment.name, m))
    reads += [name.batch(m)] if segment.kind != "block" else [name.batch(m), "rope"]
    if segment.kind != "head":
        writes.append(name.hidden(facts.segments[index + 1].name, m))
    if training and segment.kind == "block" and policy != "full":
        writes.append(name.saved(segment.name, m))
    workspace = footprint.forward_workspace_bytes
    if not training:
        frees += [name.hidden(segment.name, m)] if segment.kind != "embedding" else []
        frees += [name.batch(m)] if segment.kind == "head" else []
        if segment.kind == "block":
            workspace = facts.evaluation_workspace(segment)
    return Instruction(
        Op.FORWARD,
        segment.name,
        m,
        reads=tuple(reads),
        writes=tuple(writes),
        frees=tuple(frees),
        flops=footprint.forward_flops,
        workspace_bytes=workspace,
    )


def _backward(facts: Lowering, index: int, m: int) -> Instruction:
    segment = facts.segments[index]
    footprint = facts.footprint(segment)
    reads = [name.batch(m)] if segment.kind != "block" else []
    writes = [f"grad/{unit}" for unit in segment.units]
    frees: list[str] = []
    if segment.kind != "embedding":
        reads += [f"params/{unit}" for unit in segment.units]
        reads.append(name.hidden(segment.name, m))
        writes.append(name.dhidden(segment.name, m))
        frees.append(name.hidden(segment.name, m))
    else:
        frees.append(name.batch(m))
    if segment.kind != "head":
        upstream = name.dhidden(facts.segments[index + 1].name, m)
        reads.append(upstream)
        frees.append(upstream)
    if segment.kind == "block":
        reads.append(name.saved(segment.name, m))
        frees.append(name.saved(segment.name, m))
    return Instruction(
        Op.BACKWARD,
        segment.name,
        m,
        reads=tuple(reads),
        writes=tuple(writes),
        frees=tuple(frees),
        flops=footprint.backward_flops,
        workspace_bytes=footprint.backward_workspace_bytes,
    )


def insert_recompute(steps: list[Instruction], facts: Lowering) -> list[Instruction]:
    """Before the backward of a segment whose forward kept nothing: its forward again (Chen et al. 2016)."""
    full = {s.name: s for s in facts.segments if facts.policy(s) == "full"}
    result = []
    for step in steps:
        segment = full.get(step.segment or "")
        if segment is not None and step.op is Op.BACKWARD:
            m = step.microbatch
            assert m is not None
            footprint = facts.footprint(segment)
            result.append(
                Instruction(
                    Op.RECOMPUTE,
                    segment.name,
                    m,
                    reads=(f"params/{segment.name}", name.hidden(segment.name, m), name.batch(m), "rope"),
                    writes=(name.saved(segment.name, m),),
                    flops=footprint.forward_flops,
                    workspace_bytes=footprint.recompute_workspace_bytes,
                )
            )
        result.append(step)
    return result


def append_update(steps: list[Instruction], facts: Lowering) -> list[Instruction]:
    """Norm, optimizer unit by unit, and for ZeRO-1 and 2 the publishing of what was updated, behind the next update."""
    shard_axes = axes_name(facts.layout.active(("dp_shard",)))
    gradient = "grad_shard" if facts.zero >= 2 else "grad"
    grads = tuple(f"{gradient}/{unit}" for unit in facts.flats)
    collectives = (_scalar(facts, ("dp_shard",)),) if facts.zero > 0 else ()
    result = [*steps, Instruction(Op.CLIP_NORM, reads=grads, collectives=collectives)]
    waits = []
    for unit, flat in facts.flats.items():
        values = f"shard/{unit}" if facts.zero == 3 else f"params/{unit}"
        state = (values, f"moments/{unit}", *((f"master/{unit}",) if facts.mixed else ()))
        converted = flat.shard_numel * DTYPE_BYTES[facts.master] if facts.gradients != facts.master else 0
        update = Instruction(
            Op.UPDATE,
            unit,
            reads=(f"{gradient}/{unit}", *state),
            writes=state,
            frees=(f"{gradient}/{unit}",),
            workspace_bytes=converted,
        )
        result.append(update)
        if facts.zero in (1, 2):
            whole = facts.buffer_bytes(f"params/{unit}")
            gather = Collective("all_gather", shard_axes, whole, facts.layout.dp_shard)
            publish = Instruction(
                Op.PUBLISH, unit, reads=(values,), writes=(values,), collectives=(gather,), stream=shard_axes
            )
            result.append(publish)
            waits.append(Instruction(Op.WAIT, handle=publish.short))
    return result + waits


def sum_counts(steps: list[Instruction], facts: Lowering) -> list[Instruction]:
    """The number of valid targets before the first loss is divided by it, and the loss for the record after the last."""
    heads = [i for i, step in enumerate(steps) if step.segment == "head" and step.op in BACKWARD_OPS | {Op.FORWARD}]
    if not heads or not facts.data_axes:
        return steps
    stream = axes_name(facts.data_axes)
    count = Instruction(Op.COUNT, collectives=(_scalar(facts, DATA_AXES),), stream=stream)
    loss = replace(count, op=Op.SUM_LOSS)
    first, last = heads[0], heads[-1]
    result = [count, *steps[:first], Instruction(Op.WAIT, handle=count.short), *steps[first : last + 1], loss]
    return [*result, *steps[last + 1 :], Instruction(Op.WAIT, handle=loss.short)]


def _scalar(facts: Lowering, axes: tuple[str, ...]) -> Collective:
    active = facts.layout.active(axes)
    return Collective("all_reduce", axes_name(active), SCALAR_BYTES, facts.layout.group_size(active))
