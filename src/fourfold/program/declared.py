"""What each instruction must declare, from the model and the layout alone.

Written beside lowering, not through it, so that the two check each other.
"""

from dataclasses import dataclass

from fourfold.config import DTYPE_BYTES
from fourfold.layout.mesh import axes_name
from fourfold.model.spec import Segment
from fourfold.model.traffic import CollectiveKind, Traffic
from fourfold.program import buffers as name
from fourfold.program.facts import SCALAR_BYTES, Lowering
from fourfold.program.instruction import COMPUTE_OPS, RECEIVES, SENDS, Collective, Instruction, Op


@dataclass(frozen=True)
class Declared:
    """Names read and written, collectives in order, arithmetic, workspace."""

    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    collectives: tuple[Collective, ...] = ()
    flops: int = 0
    workspace_bytes: int = 0


def declared(step: Instruction, kind: str, facts: Lowering) -> list[Declared]:
    """The declarations that this operation may have; none: it has no place in this step."""
    training = kind == "train"
    unit, m = step.segment, step.microbatch
    if step.op is Op.COUNT:
        size = SCALAR_BYTES * (1 + facts.model.mtp_layers)
        return [Declared(collectives=_over(facts, "all_reduce", facts.data_axes, size))]
    if step.op is Op.SUM_LOSS:
        return [Declared(collectives=_over(facts, "all_reduce", facts.loss_axes, facts.loss_bytes))]
    if step.op is Op.LOAD and m is not None:
        return [Declared(writes=(name.batch(m),))]
    if step.op is Op.CLIP_NORM and training:
        norm = _over(facts, "all_reduce", facts.norm_axes, SCALAR_BYTES)
        return [Declared(reads=tuple(sorted(map(facts.gradient_buffer, facts.flats))), collectives=norm)]
    if step.op is Op.BALANCE and training:
        return _balance(facts)
    if unit is None:
        return []
    if step.op in SENDS | RECEIVES:
        return _transfer(step, facts, training)
    if step.op in COMPUTE_OPS:
        return _compute(step.op, facts.by_name[unit], m, facts, training) if m is not None else []
    return _of_unit(step, unit, facts, training)


def _of_unit(step: Instruction, unit: str, facts: Lowering, training: bool) -> list[Declared]:
    """Operations on a unit's parameters, gradients and state."""
    zero, params = facts.zero_of(unit), f"params/{unit}"
    if step.op is Op.GATHER and zero == 3:
        gather = _over(facts, "all_gather", facts.shard_axes(unit), facts.buffer_bytes(params))
        return [Declared((f"shard/{unit}",), (params,), gather)]
    if not training:
        return []
    if step.op is Op.PUBLISH and zero in (1, 2):
        gather = _over(facts, "all_gather", facts.shard_axes(unit), facts.buffer_bytes(params))
        return [Declared((params,), (params,), gather)]
    if step.op is Op.UPDATE:
        return [_update(unit, facts)]
    if step.op is Op.REDUCE_TIED and unit == facts.tied_unit:
        gradient = facts.gradient_buffer(unit)
        size = facts.flats[unit].shard_numel * DTYPE_BYTES[facts.gradients]
        return [Declared((gradient,), (gradient,), _over(facts, "all_reduce", ("tied",), size))]
    if step.op is Op.REDUCE and step.microbatch is not None:
        return _reductions(unit, facts)
    return []


def _over(facts: Lowering, kind: CollectiveKind, axes: tuple[str, ...], size: int) -> tuple[Collective, ...]:
    """One collective over those of the axes that are active; none where nobody else is there."""
    active = facts.layout.active(axes)
    if not active:
        return ()
    return (Collective(kind, axes_name(active), size, facts.layout.group_size(active)),)


def _inside(traffic: tuple[Traffic, ...], facts: Lowering) -> tuple[Collective, ...]:
    return tuple(c for t in traffic for c in _over(facts, t.kind, tuple(t.axes.split("+")), t.bytes))


def _balance(facts: Lowering) -> list[Declared]:
    if not facts.model.num_experts:
        return []
    routers = tuple(sorted(f"router/{segment.name}" for segment in facts.moe_segments))
    layers = range(facts.model.num_layers + facts.model.mtp_layers)
    size = SCALAR_BYTES * facts.model.num_experts * sum(map(facts.model.is_moe, layers))
    return [Declared(routers, routers, _over(facts, "all_reduce", facts.router_axes, size), workspace_bytes=size)]


def _transfer(step: Instruction, facts: Lowering, training: bool) -> list[Declared]:
    """An activation goes to the rank that has the segment, its gradient the other way."""
    segment, m = step.segment or "", step.microbatch
    source, target = facts.boundary(segment), facts.layout.stage_ranks[facts.stage_of[segment]]
    gradient = step.op in (Op.SEND_GRADIENT, Op.RECV_GRADIENT)
    if source is None or m is None or (gradient and not training):
        return []
    sends = step.op in SENDS
    ends = (target, source) if gradient else (source, target)
    me, peer = ends if sends else ends[::-1]
    if me != facts.pp_rank or step.peer != peer:
        return []
    buffer = (name.dhidden if gradient else name.hidden)(segment, m)
    collective = (Collective("send" if sends else "recv", "pp", facts.buffer_bytes(buffer), 2),)
    return [Declared((buffer,), (), collective) if sends else Declared((), (buffer,), collective)]


def _update(unit: str, facts: Lowering) -> Declared:
    state = (facts.values_buffer(unit), f"optimizer/{unit}", *((f"master/{unit}",) if facts.mixed else ()))
    converts = facts.gradients != facts.master
    converted = facts.flats[unit].shard_numel * DTYPE_BYTES[facts.master] if converts else 0
    reads = tuple(sorted((*state, facts.gradient_buffer(unit))))
    return Declared(reads, tuple(sorted(state)), workspace_bytes=converted)


def _reductions(unit: str, facts: Lowering) -> list[Declared]:
    """Over the shard axes alone, or over the replicas too: which of them when, is for the gradients' walk to say."""
    whole, landing, zero = f"grad/{unit}", f"reduce/{unit}", facts.zero_of(unit)
    into = f"grad_shard/{unit}" if zero >= 2 else whole
    writes = tuple(sorted((into, landing) if facts.buffer_bytes(landing) else (into,)))
    size = facts.buffer_bytes(whole)
    element = DTYPE_BYTES[facts.gradients]
    partial = tuple(
        c
        for axis, start, end in facts.flats[unit].sums
        for c in _over(facts, "all_reduce", (axis,), (end - start) * element)
    )
    if zero == 0:
        everywhere = partial + _over(facts, "all_reduce", facts.gradient_axes(unit), size)
        return [Declared((whole,), writes, everywhere)] if everywhere else []
    scatter = partial + _over(facts, "reduce_scatter", facts.shard_axes(unit), size)
    allowed = [Declared((whole,), writes, scatter)]
    if facts.layout.dp_replicate > 1:
        replicas = _over(facts, "all_reduce", ("dp_replicate",), facts.flats[unit].shard_numel * element)
        allowed.append(Declared((whole,), writes, scatter + replicas))
    return allowed


def _compute(op: Op, me: Segment, m: int, facts: Lowering, training: bool) -> list[Declared]:
    if op is Op.FORWARD:
        return _forward(me, m, facts, training)
    if not training or (op is not Op.BACKWARD and me.kind != "block"):
        return []
    if op is Op.RECOMPUTE:
        return _recompute(me, m, facts)
    return [_backward(op, me, m, facts)]


def _forward(me: Segment, m: int, facts: Lowering, training: bool) -> list[Declared]:
    footprint = facts.footprint(me)
    inside = _inside(footprint.forward.collectives, facts)
    reads = [f"params/{unit}" for unit in me.units] + [name.batch(m)]
    reads += [name.hidden(me.name, m)] if me.kind != "embedding" else []
    reads += ["rope"] if me.kind == "block" else []
    reads += [f"router/{me.name}"] if me.moe else []
    if me.kind == "head":
        if training:
            return []  # its backward does both
        return [Declared(tuple(sorted(reads)), (), inside, footprint.forward.flops, footprint.forward_workspace_bytes)]
    writes = [name.hidden(facts.following[me.name], m)]
    workspace = footprint.forward_workspace_bytes
    if me.kind == "block" and not training:
        workspace = facts.evaluation_workspace(me)
    elif me.kind == "block" and facts.policy(me) != "full":
        writes.append(name.saved(me.name, m))
    return [Declared(tuple(sorted(reads)), tuple(sorted(writes)), inside, footprint.forward.flops, workspace)]


def _recompute(me: Segment, m: int, facts: Lowering) -> list[Declared]:
    if facts.policy(me) != "full":
        return []
    footprint = facts.footprint(me)
    reads = [f"params/{unit}" for unit in me.units] + [name.hidden(me.name, m), name.batch(m), "rope"]
    reads += [f"router/{me.name}"] if me.moe else []
    inside = _inside(footprint.forward.collectives, facts)
    return [
        Declared(
            tuple(sorted(reads)),
            (name.saved(me.name, m),),
            inside,
            footprint.forward.flops,
            footprint.recompute_workspace_bytes,
        )
    ]


def _backward(op: Op, me: Segment, m: int, facts: Lowering) -> Declared:
    footprint = facts.footprint(me)
    writes = [f"grad/{unit}" for unit in me.units]
    if op is Op.BACKWARD_WEIGHT:
        inside = _inside(footprint.weight_gradient.collectives, facts)
        put_off = (name.deferred(me.name, m),)
        return Declared(
            put_off, tuple(sorted(writes)), inside, footprint.weight_gradient.flops, footprint.weight_workspace_bytes
        )
    reads = [name.batch(m)]
    if me.kind != "embedding":
        reads += [f"params/{unit}" for unit in me.units] + [name.hidden(me.name, m)]
        writes.append(name.dhidden(me.name, m))
    if me.kind == "block":
        reads.append(name.saved(me.name, m))
    if me.moe:
        reads.append(f"router/{me.name}")
        writes.append(f"router/{me.name}")
    if me.kind != "head":
        reads.append(name.dhidden(facts.following[me.name], m))
    if op is Op.BACKWARD:
        inside = _inside(footprint.backward.collectives, facts)
        sizes = (footprint.backward.flops, footprint.backward_workspace_bytes)
    else:
        writes.append(name.deferred(me.name, m))
        inside = _inside(footprint.input_gradient.collectives, facts)
        sizes = (footprint.input_gradient.flops, footprint.input_workspace_bytes)
    return Declared(tuple(sorted(reads)), tuple(sorted(writes)), inside, *sizes)
