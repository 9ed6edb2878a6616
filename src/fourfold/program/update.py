"""The end of a step: tied gradients, loads of experts, norm, optimizer, publishing; and the sums that the loss needs."""

from fourfold.config import DTYPE_BYTES
from fourfold.layout.mesh import axes_name
from fourfold.program.facts import SCALAR_BYTES, Lowering
from fourfold.program.instruction import BACKWARD_OPS, Collective, CollectiveKind, Instruction, Op

_COMPUTES = BACKWARD_OPS | {Op.FORWARD}


def over(facts: Lowering, kind: CollectiveKind, axes: tuple[str, ...], size: int) -> Collective:
    """A collective over these axes, all active."""
    return Collective(kind, axes_name(axes), size, facts.layout.group_size(axes))


def append_update(steps: list[Instruction], facts: Lowering) -> list[Instruction]:
    """Norm, optimizer unit by unit, and for ZeRO-1 and 2 the publishing of what was updated, behind the next update."""
    grads = tuple(facts.gradient_buffer(unit) for unit in facts.flats)
    norm = (over(facts, "all_reduce", facts.norm_axes, SCALAR_BYTES),) if facts.norm_axes else ()
    result = [*steps, *_reduce_tied(facts), *_balance(facts), Instruction(Op.CLIP_NORM, reads=grads, collectives=norm)]
    waits = []
    for unit, flat in facts.flats.items():
        values, gradient = facts.values_buffer(unit), facts.gradient_buffer(unit)
        state = (values, f"optimizer/{unit}", *((f"master/{unit}",) if facts.mixed else ()))
        converted = flat.shard_numel * DTYPE_BYTES[facts.master] if facts.gradients != facts.master else 0
        update = Instruction(
            Op.UPDATE,
            unit,
            reads=(gradient, *state),
            writes=state,
            frees=(gradient,),
            workspace_bytes=converted,
        )
        result.append(update)
        if facts.zero_of(unit) in (1, 2):
            axes = facts.shard_axes(unit)
            gather = over(facts, "all_gather", axes, facts.buffer_bytes(f"params/{unit}"))
            publish = Instruction(
                Op.PUBLISH, unit, reads=(values,), writes=(values,), collectives=(gather,), stream=axes_name(axes)
            )
            result.append(publish)
            waits.append(Instruction(Op.WAIT, handle=publish.short))
    return result + waits


def _reduce_tied(facts: Lowering) -> list[Instruction]:
    """Both stages that hold the tied embedding add their gradients of it, once a step, after their own reductions."""
    unit = facts.tied_unit
    if unit is None:
        return []
    gradient = facts.gradient_buffer(unit)
    kept = facts.flats[unit].shard_numel * DTYPE_BYTES[facts.gradients]
    tied = Instruction(
        Op.REDUCE_TIED,
        unit,
        reads=(gradient,),
        writes=(gradient,),
        collectives=(over(facts, "all_reduce", ("tied",), kept),),
        stream="tied",
    )
    return [tied, Instruction(Op.WAIT, handle=tied.short)]


def _balance(facts: Lowering) -> list[Instruction]:
    """The experts' loads, of all routers of the model, summed over all ranks; the balancing biases moved by them."""
    if not facts.model.num_experts:
        return []
    routers = tuple(f"router/{segment.name}" for segment in facts.moe_segments)
    size = facts.router_loads_bytes
    loads = (over(facts, "all_reduce", facts.router_axes, size),) if facts.router_axes else ()
    return [Instruction(Op.BALANCE, reads=routers, writes=routers, collectives=loads, workspace_bytes=size)]


def sum_counts(steps: list[Instruction], facts: Lowering) -> list[Instruction]:
    """The number of valid targets before the first loss is divided by it, and the loss for the record after the last."""
    computed = [i for i, step in enumerate(steps) if step.op in _COMPUTES]
    heads = [i for i in computed if steps[i].segment == "head"]
    has_all_losses = facts.layout.pp == 1 and not facts.model.num_experts
    last = (heads if has_all_losses else computed or [len(steps) - 1])[-1]
    if facts.loss_axes:
        axes = facts.loss_axes
        total = over(facts, "all_reduce", axes, facts.loss_bytes)
        loss = Instruction(Op.SUM_LOSS, collectives=(total,), stream=axes_name(axes))
        steps = [*steps[: last + 1], loss, *steps[last + 1 :], Instruction(Op.WAIT, handle=loss.short)]
    if facts.data_axes:
        axes = facts.data_axes
        first = heads[0] if heads else len(steps)
        total = over(facts, "all_reduce", axes, facts.count_bytes)
        count = Instruction(Op.COUNT, collectives=(total,), stream=axes_name(axes))
        steps = [count, *steps[:first], Instruction(Op.WAIT, handle=count.short), *steps[first:]]
    return steps
