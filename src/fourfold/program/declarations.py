"""What each instruction must declare, from the model and the layout alone: the verifier trusts no program's own word for it.

Written beside lowering, not through it, so that the two check each other. The other walks follow the names declared here; a program
that hid a read, a smaller collective or a smaller workspace would otherwise fool them.
"""

from dataclasses import dataclass

from fourfold.config import DTYPE_BYTES
from fourfold.layout.mesh import AXES, axes_name
from fourfold.program import buffers as name
from fourfold.program.buffers import Lowering
from fourfold.program.fault import Fault
from fourfold.program.instruction import Collective, Instruction, Op, Program

SCALAR_BYTES = 8


@dataclass(frozen=True)
class Declared:
    """Names read and written, collectives in order, arithmetic, workspace."""

    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    collectives: tuple[Collective, ...] = ()
    flops: int = 0
    workspace_bytes: int = 0


def check_declarations(rank: int, program: Program, facts: Lowering) -> list[Fault]:
    """Residents, buffer sizes, and every instruction against what it must declare."""
    faults = _check_buffers(rank, program, facts)
    for index, step in enumerate(program.instructions):
        for collective in step.collectives:
            for axis in collective.axes.split("+"):
                if axis not in AXES:
                    message = f"a collective over unknown axis {axis!r} of {collective.axes!r}"
                    faults.append(Fault(rank, index, step, message, f"name axes of the mesh: {', '.join(AXES)}"))
        if step.op in (Op.WAIT, Op.FREE):
            allowed = [Declared()]
        elif (step.segment is not None and step.segment not in facts.flats) or not _known_microbatch(step, facts):
            faults.append(Fault(rank, index, step, "names a segment or a microbatch that the run has not", "drop it"))
            continue
        else:
            allowed = _allowed(step, program.kind, facts)
        problem = _difference(step, allowed)
        if problem:
            faults.append(Fault(rank, index, step, *problem))
    return faults


def resident_buffers(kind: str, facts: Lowering) -> set[str]:
    """What is live before and after a program of this kind."""
    values = "shard" if facts.zero == 3 else "params"
    state = ["moments", *(["master"] if facts.mixed else [])] if kind == "train" else []
    return {"rope", *(f"{prefix}/{unit}" for unit in facts.flats for prefix in (values, *state))}


def _check_buffers(rank: int, program: Program, facts: Lowering) -> list[Fault]:
    faults = []
    for buffer, size in program.buffers.items():
        try:
            expected = facts.buffer_bytes(buffer)
        except KeyError:
            faults.append(Fault(rank, 0, None, f"buffer {buffer} belongs to no segment of the model", "remove it"))
            continue
        if size != expected:
            faults.append(Fault(rank, 0, None, f"buffer {buffer} is declared with {size} bytes", f"it has {expected}"))
    resident = resident_buffers(program.kind, facts)
    for buffer in sorted(resident - set(program.resident)):
        faults.append(Fault(rank, 0, None, f"{buffer} outlives the step", "declare it `resident`"))
    for buffer in sorted(set(program.resident) - resident):
        faults.append(Fault(rank, 0, None, f"{buffer} does not outlive the step", "drop its line `resident`"))
    named = {n for step in program.instructions for n in (*step.reads, *step.writes, *step.frees)}
    for buffer in sorted((named | set(program.resident)) - program.buffers.keys()):
        index, user = _first_user(program, buffer)
        faults.append(Fault(rank, index, user, f"{buffer} has no declared size", f"declare `buffer {buffer} BYTES`"))
    return faults


def _first_user(program: Program, buffer: str) -> tuple[int, Instruction | None]:
    for index, step in enumerate(program.instructions):
        if buffer in (*step.reads, *step.writes, *step.frees):
            return index, step
    return 0, None


def _known_microbatch(step: Instruction, facts: Lowering) -> bool:
    return step.microbatch is None or 0 <= step.microbatch < facts.layout.num_microbatches


def _difference(step: Instruction, allowed: list[Declared]) -> tuple[str, str] | None:
    """What is wrong, and the mend, measured against the first that is allowed."""
    own = Declared(
        tuple(sorted(step.reads)), tuple(sorted(step.writes)), step.collectives, step.flops, step.workspace_bytes
    )
    if not allowed:
        return "is no part of this step", "drop it"
    if own in allowed:
        return None
    wanted = allowed[0]
    for what, mine, right in (("reads", own.reads, wanted.reads), ("writes", own.writes, wanted.writes)):
        if mine != right:
            return f"{what} {' '.join(mine) or 'nothing'}", f"it {what} {' '.join(right) or 'nothing'}"
    if own.collectives != wanted.collectives:
        return f"enters {_spoken(own.collectives)}", f"it enters {_spoken(wanted.collectives)}"
    if own.flops != wanted.flops:
        return f"declares {own.flops} FLOPs", f"it takes {wanted.flops}"
    return f"declares a workspace of {own.workspace_bytes} bytes", f"it takes {wanted.workspace_bytes}"


def _spoken(collectives: tuple[Collective, ...]) -> str:
    return (
        " and ".join(f"{c.kind} of {c.bytes} bytes over {c.axes or 'nothing'} ({c.group_size})" for c in collectives)
        or "no collective"
    )


def _allowed(step: Instruction, kind: str, facts: Lowering) -> list[Declared]:
    """The declarations that this operation may have; none: it has no place in this step."""
    training = kind == "train"
    unit, m = step.segment, step.microbatch
    if step.op in (Op.COUNT, Op.SUM_LOSS):
        return [Declared(collectives=(_over(facts, "all_reduce", facts.data_axes, SCALAR_BYTES),))]
    if step.op is Op.LOAD and m is not None:
        return [Declared(writes=(name.batch(m),))]
    if step.op is Op.CLIP_NORM and training:
        norm = (_over(facts, "all_reduce", ("dp_shard",), SCALAR_BYTES),) if facts.zero > 0 else ()
        return [Declared(reads=tuple(sorted(f"{_gradient(facts)}/{u}" for u in facts.flats)), collectives=norm)]
    if unit is None:
        return []
    if step.op is Op.GATHER and facts.zero == 3:
        gather = _over(facts, "all_gather", ("dp_shard",), facts.buffer_bytes(f"params/{unit}"))
        return [Declared((f"shard/{unit}",), (f"params/{unit}",), (gather,))]
    if step.op is Op.PUBLISH and training and facts.zero in (1, 2):
        gather = _over(facts, "all_gather", ("dp_shard",), facts.buffer_bytes(f"params/{unit}"))
        return [Declared((f"params/{unit}",), (f"params/{unit}",), (gather,))]
    if step.op is Op.UPDATE and training:
        return [_update(unit, facts)]
    if m is None:
        return []
    if step.op is Op.REDUCE and training:
        return _reductions(unit, facts)
    compute = {Op.FORWARD: _forward, Op.RECOMPUTE: _recompute, Op.BACKWARD: _backward}.get(step.op)
    return compute(unit, m, facts, training) if compute is not None else []


def _gradient(facts: Lowering) -> str:
    return "grad_shard" if facts.zero >= 2 else "grad"


def _over(facts: Lowering, kind: str, axes: tuple[str, ...], size: int) -> Collective:
    active = facts.layout.active(axes)
    return Collective(kind, axes_name(active), size, facts.layout.group_size(active))  # type: ignore[arg-type]


def _update(unit: str, facts: Lowering) -> Declared:
    values = "shard" if facts.zero == 3 else "params"
    state = (f"{values}/{unit}", f"moments/{unit}", *((f"master/{unit}",) if facts.mixed else ()))
    converts = facts.gradients != facts.master
    converted = facts.flats[unit].shard_numel * DTYPE_BYTES[facts.master] if converts else 0
    reads = tuple(sorted((*state, f"{_gradient(facts)}/{unit}")))
    return Declared(reads, tuple(sorted(state)), workspace_bytes=converted)


def _reductions(unit: str, facts: Lowering) -> list[Declared]:
    """Over the shard axis alone, or over the replicas too: which of them when, is for the gradients' walk to say."""
    whole, landing = f"grad/{unit}", f"reduce/{unit}"
    into = f"grad_shard/{unit}" if facts.zero >= 2 else whole
    writes = tuple(sorted((into, landing) if facts.buffer_bytes(landing) else (into,)))
    size = facts.buffer_bytes(whole)
    if facts.zero == 0:
        return [Declared((whole,), writes, (_over(facts, "all_reduce", facts.data_axes, size),))]
    scatter = _over(facts, "reduce_scatter", ("dp_shard",), size)
    allowed = [Declared((whole,), writes, (scatter,))]
    if facts.layout.dp_replicate > 1:
        replicas = _over(facts, "all_reduce", ("dp_replicate",), size // facts.layout.dp_shard)
        allowed.append(Declared((whole,), writes, (scatter, replicas)))
    return allowed


def _forward(segment: str, m: int, facts: Lowering, training: bool) -> list[Declared]:
    kinds = {s.name: s for s in facts.segments}
    me, footprint = kinds[segment], facts.footprint(kinds[segment])
    reads = [f"params/{unit}" for unit in me.units] + [name.batch(m)]
    reads += [name.hidden(segment, m)] if me.kind != "embedding" else []
    reads += ["rope"] if me.kind == "block" else []
    if me.kind == "head":
        if training:
            return []  # its backward does both
        return [Declared(tuple(sorted(reads)), (), (), footprint.forward_flops, footprint.forward_workspace_bytes)]
    following = facts.segments[facts.segments.index(me) + 1].name
    writes = [name.hidden(following, m)]
    workspace = footprint.forward_workspace_bytes
    if me.kind == "block" and not training:
        workspace = facts.evaluation_workspace(me)
    elif me.kind == "block" and facts.policy(me) != "full":
        writes.append(name.saved(segment, m))
    return [Declared(tuple(sorted(reads)), tuple(sorted(writes)), (), footprint.forward_flops, workspace)]


def _recompute(segment: str, m: int, facts: Lowering, training: bool) -> list[Declared]:
    me = next(s for s in facts.segments if s.name == segment)
    if not training or facts.policy(me) != "full":
        return []
    footprint = facts.footprint(me)
    reads = (f"params/{segment}", name.hidden(segment, m), name.batch(m), "rope")
    workspace = footprint.recompute_workspace_bytes
    return [Declared(tuple(sorted(reads)), (name.saved(segment, m),), (), footprint.forward_flops, workspace)]


def _backward(segment: str, m: int, facts: Lowering, training: bool) -> list[Declared]:
    if not training:
        return []
    me = next(s for s in facts.segments if s.name == segment)
    footprint = facts.footprint(me)
    writes = [f"grad/{unit}" for unit in me.units]
    reads = [] if me.kind == "block" else [name.batch(m)]
    if me.kind != "embedding":
        reads += [f"params/{unit}" for unit in me.units] + [name.hidden(segment, m)]
        writes.append(name.dhidden(segment, m))
    if me.kind == "block":
        reads.append(name.saved(segment, m))
    if me.kind != "head":
        reads.append(name.dhidden(facts.segments[facts.segments.index(me) + 1].name, m))
    backward, workspace = footprint.backward_flops, footprint.backward_workspace_bytes
    return [Declared(tuple(sorted(reads)), tuple(sorted(writes)), (), backward, workspace)]
