"""The declarations of the instructions around an orthogonalization: every rank that has a part of a matrix takes part in gathering
it, and every rank that needs a part of the result gets it. And the rule of the momentum, which moves once.
"""

from collections.abc import Mapping
from dataclasses import replace

from fourfold.config import DTYPE_BYTES
from fourfold.layout import FlatLayout
from fourfold.layout.mesh import axes_name
from fourfold.model.work import Collective, Elementwise, Work, sends
from fourfold.program import buffers as name
from fourfold.program.capability import GradientRule, GradientWalk
from fourfold.program.declared import Declared
from fourfold.program.instruction import Instruction, Op, Opcode
from fourfold.program.muon.matrices import hidden_matrices
from fourfold.program.muon.owners import placement
from fourfold.program.muon.rows import MuonOp, direction, orthogonal, owned
from fourfold.program.pattern import Pattern
from fourfold.program.spec import StepSpec
from fourfold.program.view import RankView


def declared(step: Instruction, kind: str, view: RankView, allowed: list[Declared]) -> list[Declared]:
    """A unit's momentum, gathers and orthogonalization, where it has matrices; what its update reads and does beside."""
    spec, flat = view.spec, view.flats.get(step.segment or "")
    if flat is None or not hidden_matrices(spec, flat):
        return allowed
    if isinstance(step.op, MuonOp):
        return _declared(step.op, spec, flat)
    return [_with_matrices(each, spec, flat) for each in allowed] if step.op is Op.UPDATE else allowed


def _declared(op: MuonOp, spec: StepSpec, flat: FlatLayout) -> list[Declared]:
    own, full, plan, element = direction(flat), _full(spec, flat), placement(spec, flat), DTYPE_BYTES[spec.compute]
    if op is MuonOp.MOMENTUM:
        state, numbers = f"optimizer/{flat.unit}", flat.shard_numel * DTYPE_BYTES[spec.master]
        size = flat.shard_numel * (DTYPE_BYTES[spec.gradients] + element) + 2 * numbers
        kernel = Work((Elementwise(size, size),))
        return [Declared(tuple(sorted((name.gradient(flat), state))), tuple(sorted((state, own))), kernel, 2 * numbers)]
    if op is MuonOp.ALL_GATHER_DIRECTIONS:
        axes = _divided(spec, flat)
        return [Declared((own,), (full,), _gather(spec, axes, flat.shard_numel * element))] if axes else []
    if not plan.owners:
        return []
    results = plan.slot * element
    if op is MuonOp.ORTHOGONALIZE:
        written = Elementwise(2 * results, 2 * results)
        return [Declared((full,), (owned(flat),), Work((*plan.work.items, written)), plan.workspace_bytes)]
    return [Declared((owned(flat),), (orthogonal(flat),), _gather(spec, plan.owners, results))]


def _with_matrices(update: Declared, spec: StepSpec, flat: FlatLayout) -> Declared:
    """An update with the buffers that it reads of matrices, and the work and workspace that they add to it."""
    plan = placement(spec, flat)
    read, work, workspace = _full(spec, flat), plan.work, plan.workspace_bytes
    if plan.owners:
        rows = [
            p for p in flat.parameters[: flat.num_matrices] if any(dim == len(p.shape) - 1 for dim, _, _ in p.splits)
        ]
        pieces = [p.shape[-1] * p.shape[-2] for p in rows]
        read, work, workspace = orthogonal(flat), Work(), max(pieces, default=0) * DTYPE_BYTES[spec.compute]
    return replace(
        update,
        reads=tuple(sorted((*update.reads, read))),
        work=Work((*update.work.items, *work.items)),
        workspace_bytes=update.workspace_bytes + workspace,
    )


def gradient_rules(walk: GradientWalk) -> Mapping[Opcode, GradientRule]:
    """The momentum of a unit moves once, between the norm and the update."""
    moved = set[str]()

    def move(index: int, step: Pattern) -> None:
        unit = step.segment or ""
        if unit in moved:
            walk.fault(index, f"the momentum of {unit} moves twice", "drop one")
        moved.add(unit)
        if not walk.clipped or walk.updated[unit]:
            walk.fault(index, f"the momentum of {unit} moves out of turn", "move it between `C` and the update")

    return {MuonOp.MOMENTUM: move}


def _divided(spec: StepSpec, flat: FlatLayout) -> tuple[str, ...]:
    """The active axes along which ranks have different parts of a matrix: shards, and pieces of tensor parallelism."""
    split = {axis for p in flat.parameters[: flat.num_matrices] for _, axis, _ in p.splits}
    tensor = ("tp" if flat.domain == "dense" else "etp",) if split - {"ep"} else ()
    return (*(flat.shard_axes if flat.zero else ()), *spec.layout.active(tensor))


def _full(spec: StepSpec, flat: FlatLayout) -> str:
    return f"{'matrices' if _divided(spec, flat) else 'direction'}/{flat.unit}"


def _gather(spec: StepSpec, axes: tuple[str, ...], size: int) -> Work:
    """An all-gather of `size` bytes from every rank along these axes."""
    ranks = spec.layout.group_size(axes)
    return sends(Collective("all_gather", axes_name(axes), size * ranks, ranks))
