"""The declaration that each instruction must make, from the model and the layout alone.

Written beside lowering, not through it, so that the two check each other.
"""

from dataclasses import dataclass, replace

from fourfold.config import DTYPE_BYTES
from fourfold.layout.mesh import axes_name
from fourfold.model.spec import Segment
from fourfold.model.work import NOTHING, Collective, CollectiveKind, Elementwise, Work, sends
from fourfold.program import buffers as name
from fourfold.program.instruction import Instruction
from fourfold.program.ops import Op
from fourfold.program.sizes import core_buffer_bytes
from fourfold.program.totals import SCALAR_BYTES, data_axes, loss_axes, loss_bytes, norm_axes, router_axes
from fourfold.program.view import RankView


@dataclass(frozen=True)
class Declared:
    """Names read and written, kernels and collectives in order, workspace."""

    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    work: Work = NOTHING
    workspace_bytes: int = 0


def declared(step: Instruction, kind: str, view: RankView) -> list[Declared]:
    """The declarations that an operation of the core may have; none: it has no place in this step."""
    training = kind == "train"
    if not isinstance(step.op, Op) or (not training and not step.op.info.evaluates):
        return []
    unit, m = step.segment, step.microbatch
    if step.op is Op.COUNT:
        size = SCALAR_BYTES * (1 + view.spec.model.mtp_layers)
        return [Declared(work=sends(*_over(view, "all_reduce", data_axes(view.spec.layout), size)))]
    if step.op is Op.SUM_LOSS:
        return [Declared(work=sends(*_over(view, "all_reduce", loss_axes(view.spec), loss_bytes(view.spec.model))))]
    if step.op is Op.LOAD and m is not None:
        return [Declared(writes=(name.batch(m),))]
    if step.op is Op.CLIP_NORM:
        norm = _over(view, "all_reduce", norm_axes(view.spec.layout), SCALAR_BYTES)
        gradients = tuple(sorted(map(name.gradient, view.flats.values())))
        return [Declared(gradients, work=_then(sum(core_buffer_bytes(view, each) for each in gradients), norm))]
    if step.op is Op.CHECKSUM:
        return _checksum(view)
    if step.op is Op.BALANCE:
        return _balance(view)
    if unit is None:
        return []
    if step.op.is_transfer:
        return _transfer(step, view)
    if step.op.is_compute:
        if m is None:
            return []
        return _compute(step.op, view.stages.segments[unit], m, view, training)
    return _of_unit(step, unit, view)


def _of_unit(step: Instruction, unit: str, view: RankView) -> list[Declared]:
    """Operations on a unit's parameters, gradients and state."""
    flat, params = view.flats[unit], f"params/{unit}"
    if step.op is Op.GATHER and flat.zero == 3:
        gather = _over(view, "all_gather", flat.shard_axes, core_buffer_bytes(view, params))
        return [Declared((f"shard/{unit}",), (params,), sends(*gather))]
    if step.op is Op.PARAMETER_ALL_GATHER and flat.zero in (1, 2):
        gather = _over(view, "all_gather", flat.shard_axes, core_buffer_bytes(view, params))
        return [Declared((params,), (params,), sends(*gather))]
    if step.op is Op.UPDATE:
        return [_update(unit, view)]
    if step.op is Op.REDUCE_TIED and unit == view.tied_unit:
        gradient = name.gradient(flat)
        size = flat.shard_numel * DTYPE_BYTES[view.spec.gradients]
        return [Declared((gradient,), (gradient,), sends(*_over(view, "all_reduce", ("tied",), size)))]
    if step.op is Op.REDUCE and step.microbatch is not None:
        return _reductions(unit, view)
    return []


def _over(view: RankView, kind: CollectiveKind, axes: tuple[str, ...], size: int) -> tuple[Collective, ...]:
    """One collective over those of the axes that are active; none where nobody else is there."""
    active = view.spec.layout.active(axes)
    if not active:
        return ()
    return (Collective(kind, axes_name(active), size, view.spec.layout.group_size(active)),)


def _then(size: int, collectives: tuple[Collective, ...] = ()) -> Work:
    """An elementwise kernel over this many bytes, then collectives."""
    return Work((Elementwise(size, size), *sends(*collectives).items))


def compared_buffers(view: RankView) -> list[tuple[str, str, int]]:
    """(group of ranks, buffer, bytes) of what a checksum compares in this step; nothing in a step without."""
    found = []
    for unit, flat in view.flats.items() if view.spec.checksum else ():
        sharded = set(flat.shard_axes) if flat.zero else set()
        replicas = axes_name(tuple(axis for axis in flat.gradient_axes if axis not in sharded))
        own, size = name.values(flat), core_buffer_bytes(view, name.values(flat))
        found.append((axes_name(flat.shard_axes) if flat.zero in (1, 2) else replicas, own, size))
        states = [*([f"master/{unit}"] if view.spec.mixed else []), f"optimizer/{unit}"]
        states = [] if view.spec.layout.offload_optimizer else states
        found += [(replicas, state, core_buffer_bytes(view, state)) for state in states]
        for axis in ("tp", "tp_copy") if flat.domain == "dense" and view.spec.layout.degree("tp") > 1 else ():
            numel = sum(end - start for along, start, end in flat.copied_ranges() if along == axis)
            if numel and view.spec.layout.degree(axis) > 1:
                found.append((axis, own, size * numel // flat.padded_numel))
        if unit == view.tied_unit:
            found.append(("tied", own, size))
    return [each for each in found if each[0]]


def _checksum(view: RankView) -> list[Declared]:
    found = compared_buffers(view)
    if not found:
        return []
    groups = [tuple(group.split("+")) for group in dict.fromkeys(group for group, _, _ in found)]
    size = SCALAR_BYTES * view.spec.layout.world_size
    gathers = [c for axes in groups for c in _over(view, "all_gather", axes, size)]
    shares = tuple(replace(c, bytes=SCALAR_BYTES * c.group_size) for c in gathers)
    reads = tuple(sorted({buffer for _, buffer, _ in found}))
    return [Declared(reads, work=_then(sum(size for _, _, size in found), shares))]


def _replay(me: Segment, m: int, view: RankView) -> list[Declared]:
    """Declares a replay, which reads the inputs of its backward, its results and a block's output, and writes nothing new."""
    if not view.spec.replay or me.kind == "embedding":
        return []
    grads, policy = [f"grad/{unit}" for unit in me.units], view.stages.policies[me.name]
    made = [*grads, name.dhidden(me.name, m)]
    reads = [*(f"params/{unit}" for unit in me.units), name.batch(m), name.hidden(me.name, m)]
    footprint = view.footprint(me)
    workspace = core_buffer_bytes(view, name.dhidden(me.name, m)) + footprint.backward_workspace_bytes
    items = footprint.backward.items
    if me.kind == "block":
        reads += ["rope", name.dhidden(view.stages.following[me.name], m), *([f"router/{me.name}"] if me.moe else [])]
        made.append(name.hidden(view.stages.following[me.name], m))
        items = (*footprint.forward.items, *items)
        forward = footprint.forward_workspace_bytes + footprint.output_bytes
        if policy == "full":
            forward = footprint.recompute_workspace_bytes
        workspace = footprint.saved_bytes + max(forward, workspace)
    compared = 2 * sum(core_buffer_bytes(view, each) for each in made)
    work = Work((*items, Elementwise(compared, compared)))
    return [Declared(tuple(sorted(reads + made)), tuple(sorted(grads)), work, workspace)]


def _balance(view: RankView) -> list[Declared]:
    if not view.spec.model.num_experts:
        return []
    routers = tuple(sorted(f"router/{segment.name}" for segment in view.moe_segments))
    layers = range(view.spec.model.num_layers + view.spec.model.mtp_layers)
    size = SCALAR_BYTES * view.spec.model.num_experts * sum(map(view.spec.model.is_moe, layers))
    loads = sends(*_over(view, "all_reduce", router_axes(view.spec.layout), size))
    return [Declared(routers, routers, loads, workspace_bytes=size)]


def _transfer(step: Instruction, view: RankView) -> list[Declared]:
    """An activation goes to the rank that has the segment, its gradient the other way."""
    segment, m = step.segment or "", step.microbatch
    source, target = view.stages.boundary(segment), view.stages.ranks[view.stages.stage_of[segment]]
    gradient = step.op.info.carries == "gradients"
    if source is None or m is None:
        return []
    leaves = step.op.is_send
    ends = (target, source) if gradient else (source, target)
    me, peer = ends if leaves else ends[::-1]
    if me != view.pp_rank or step.peer != peer:
        return []
    buffer = (name.dhidden if gradient else name.hidden)(segment, m)
    work = sends(Collective("send" if leaves else "recv", "pp", core_buffer_bytes(view, buffer), 2))
    return [Declared((buffer,), (), work) if leaves else Declared((), (buffer,), work)]


def _update(unit: str, view: RankView) -> Declared:
    flat, spec = view.flats[unit], view.spec
    state = (name.values(flat), f"optimizer/{unit}", *((f"master/{unit}",) if spec.mixed else ()))
    converted = flat.shard_numel * DTYPE_BYTES[spec.master] if spec.gradients != spec.master else 0
    reads = tuple(sorted((*state, name.gradient(flat))))
    rest = min(flat.shard_numel, flat.padded_numel - flat.matrix_numel)
    moved = spec.update_bytes(flat.shard_numel, flat.shard_numel - rest)
    return Declared(reads, tuple(sorted(state)), _then(moved), converted)


def _reductions(unit: str, view: RankView) -> list[Declared]:
    """Over the shard axes alone, or over the replicas too: which of them when, is for the gradients' walk to say."""
    flat, full, staging = view.flats[unit], f"grad/{unit}", f"reduce/{unit}"
    into = f"grad_shard/{unit}" if flat.zero >= 2 else full
    writes = tuple(sorted((into, staging) if core_buffer_bytes(view, staging) else (into,)))
    size = core_buffer_bytes(view, full)
    element = DTYPE_BYTES[view.spec.gradients]
    partial = tuple(
        c for axis, start, end in flat.sums for c in _over(view, "all_reduce", (axis,), (end - start) * element)
    )
    if flat.zero == 0:
        everywhere = partial + _over(view, "all_reduce", flat.gradient_axes, size)
        return [Declared((full,), writes, sends(*everywhere))] if everywhere else []
    scatter = partial + _over(view, "reduce_scatter", flat.shard_axes, size)
    allowed = [Declared((full,), writes, sends(*scatter))]
    if view.spec.layout.dp_replicate > 1:
        replicas = _over(view, "all_reduce", ("dp_replicate",), flat.shard_numel * element)
        allowed.append(Declared((full,), writes, sends(*scatter, *replicas)))
    return allowed


def _compute(op: Op, me: Segment, m: int, view: RankView, training: bool) -> list[Declared]:
    if op is Op.FORWARD:
        return _forward(me, m, view, training)
    if op is Op.REPLAY:
        return _replay(me, m, view)
    if op is not Op.BACKWARD and me.kind != "block":
        return []
    if op is Op.RECOMPUTE:
        return _recompute(me, m, view)
    return [_backward(op, me, m, view)]


def _forward(me: Segment, m: int, view: RankView, training: bool) -> list[Declared]:
    footprint = view.footprint(me)
    reads = [f"params/{unit}" for unit in me.units] + [name.batch(m)]
    reads += [name.hidden(me.name, m)] if me.kind != "embedding" else []
    reads += ["rope"] if me.kind == "block" else []
    reads += [f"router/{me.name}"] if me.moe else []
    if me.kind == "head":
        if training:
            return []  # its backward does both
        return [Declared(tuple(sorted(reads)), (), footprint.forward, footprint.forward_workspace_bytes)]
    writes = [name.hidden(view.stages.following[me.name], m)]
    workspace = footprint.forward_workspace_bytes
    if me.kind == "block" and not training:
        workspace = view.footprints.of(me, "full").forward_workspace_bytes
    elif me.kind == "block" and view.stages.policies[me.name] != "full":
        writes.append(name.saved(me.name, m))
    return [Declared(tuple(sorted(reads)), tuple(sorted(writes)), footprint.forward, workspace)]


def _recompute(me: Segment, m: int, view: RankView) -> list[Declared]:
    if view.stages.policies[me.name] != "full":
        return []
    footprint = view.footprint(me)
    reads = [f"params/{unit}" for unit in me.units] + [name.hidden(me.name, m), name.batch(m), "rope"]
    reads += [f"router/{me.name}"] if me.moe else []
    return [
        Declared(
            tuple(sorted(reads)),
            (name.saved(me.name, m),),
            footprint.forward,
            footprint.recompute_workspace_bytes,
        )
    ]


def _backward(op: Op, me: Segment, m: int, view: RankView) -> Declared:
    writes = [f"grad/{unit}" for unit in me.units]
    if op is Op.BACKWARD_WEIGHT:
        deferred = (name.deferred(me.name, m),)
        halves = view.halves(me)
        return Declared(deferred, tuple(sorted(writes)), halves.weight_gradient, halves.weight_workspace_bytes)
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
        reads.append(name.dhidden(view.stages.following[me.name], m))
    if op is Op.BACKWARD:
        footprint = view.footprint(me)
        taken = (footprint.backward, footprint.backward_workspace_bytes)
    else:
        writes.append(name.deferred(me.name, m))
        halves = view.halves(me)
        taken = (halves.input_gradient, halves.input_workspace_bytes)
    return Declared(tuple(sorted(reads)), tuple(sorted(writes)), *taken)
