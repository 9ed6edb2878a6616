"""The pass that orthogonalizes: before a unit's update its momentum, directions gathered, owners and their results."""

from fourfold.config import DTYPE_BYTES
from fourfold.layout import FlatLayout
from fourfold.model.work import Work, sends, touches
from fourfold.program.buffers import gradient
from fourfold.program.instruction import Instruction, Op
from fourfold.program.muon.matrices import hidden_matrices, parts_of_shard
from fourfold.program.muon.owners import placement
from fourfold.program.muon.rows import MuonOp, direction, matrices, matrix_bytes, orthogonal, owned
from fourfold.program.pattern import Pattern, Step
from fourfold.program.sizes import core_unit_bytes
from fourfold.program.spec import StepSpec
from fourfold.program.totals import over
from fourfold.program.view import RankView

_DIRECTION, _MOVED, _UPDATED = 2, 4, 5
"""Operations on a device: of a shard's momentum, and of each matrix that it has a part of, in its momentum and its update."""


def insert_orthogonalization(steps: list[Step], view: RankView) -> list[Step]:
    """Before each update what it reads of matrices. The next unit's directions start first, so that they arrive beside the update;
    where matrices have owners, the next unit is orthogonalized first too, so that results travel beside that."""
    units = list(view.flats.values())
    started, computed, joined = ([make(view, flat) for flat in units] for make in (_start, _compute, _join))
    if not any(started):
        return steps
    ahead = int(any(computed))
    before = [[*_at(started, i + 1 + ahead), *_at(computed, i + ahead), *joined[i]] for i in range(len(units))]
    first = [*started[0], *(_at(started, 1) if ahead else ()), *computed[0]]
    result, place = list[Step](), {flat.unit: i for i, flat in enumerate(units)}
    for step in steps:
        if step[0].op is Op.UPDATE:
            i = place[step[0].segment or ""]
            result += [(Pattern.of_first(each), None) for each in (*(first if i == 0 else ()), *before[i])]
            step = _with_matrices(step[0], view, units[i]), None
        result.append(step)
    return result


def _with_matrices(update: Pattern, view: RankView, flat: FlatLayout) -> Pattern:
    """The update with the buffers that it reads of matrices, and the work and workspace that they add to it."""
    spec, found, plan = view.spec, hidden_matrices(view.spec, flat), placement(view.spec, flat)
    if not found:
        return update
    step = update.first
    read, work, workspace = matrices(flat, bool(plan.divided)), plan.work, plan.workspace_bytes
    if plan.owners:
        split = [each.rows * each.columns for each in found if each.dim == 1 and each.pieces > 1]
        read, work, workspace = orthogonal(flat), Work(), max(split, default=0) * DTYPE_BYTES[spec.compute]
    return update.like(
        step._replace(
            reads=(*step.reads, read),
            frees=(*step.frees, read),
            work=Work((*step.work.items, *work.items)),
            workspace_bytes=step.workspace_bytes + workspace,
        )
    )


def launches(step: Instruction | Pattern, view: RankView) -> int:
    """Operations on a device beside the work of a unit's momentum and update."""
    if step.op not in (MuonOp.MOMENTUM, Op.UPDATE) or step.segment is None:
        return 0
    flat = view.flats[step.segment]
    parts = len(parts_of_shard(hidden_matrices(view.spec, flat), *flat.shard_range(0), 0))
    return _DIRECTION + _MOVED * parts if step.op is MuonOp.MOMENTUM else _UPDATED * parts


def _bytes(spec: StepSpec, kind: str, flat: FlatLayout) -> int:
    size = matrix_bytes(spec, kind, flat)
    assert size is not None
    return size


def _at(lists: list[list[Instruction]], index: int) -> list[Instruction]:
    return lists[index] if index < len(lists) else []


def _start(view: RankView, flat: FlatLayout) -> list[Instruction]:
    """Momentum and direction of the shard's matrices, and the all-gather of directions where ranks have parts of matrices."""
    spec, unit = view.spec, flat.unit
    if not hidden_matrices(spec, flat):
        return []
    state, own, numbers = f"optimizer/{unit}", direction(flat), flat.shard_numel * DTYPE_BYTES[spec.master]
    moved = core_unit_bytes(spec, "grad_shard", flat) + _bytes(spec, "direction", flat) + 2 * numbers
    momentum = Instruction(
        MuonOp.MOMENTUM,
        unit,
        reads=(gradient(flat), state),
        writes=(state, own),
        work=touches(moved),
        workspace_bytes=2 * numbers,
    )
    divided = placement(spec, flat).divided
    if not divided:
        return [momentum]
    gather = over(spec.layout, "all_gather", divided, _bytes(spec, "matrices", flat))
    written = (matrices(flat, gathered=True),)
    gathered = Instruction(
        MuonOp.ALL_GATHER_DIRECTIONS, unit, reads=(own,), writes=written, work=sends(gather), stream=gather.axes
    )
    return [momentum, gathered]


def _compute(view: RankView, flat: FlatLayout) -> list[Instruction]:
    """The matrices that the rank owns, and the all-gather of results; nothing where there are no owners."""
    spec, unit, plan = view.spec, flat.unit, placement(view.spec, flat)
    if not plan.owners:
        return []
    full, own = matrices(flat, bool(plan.divided)), owned(flat)
    orthogonalized = Instruction(
        MuonOp.ORTHOGONALIZE,
        unit,
        reads=(full,),
        writes=(own,),
        frees=(full,),
        work=Work((*plan.work.items, *touches(2 * _bytes(spec, "home", flat)).items)),
        workspace_bytes=plan.workspace_bytes,
    )
    gather = over(spec.layout, "all_gather", plan.owners, _bytes(spec, "homes", flat))
    results = Instruction(
        MuonOp.ALL_GATHER_ORTHOGONAL,
        unit,
        reads=(own,),
        writes=(orthogonal(flat),),
        work=sends(gather),
        stream=gather.axes,
    )
    return [*_arrived(flat, plan.divided), orthogonalized, results]


def _join(view: RankView, flat: FlatLayout) -> list[Instruction]:
    """The wait for what the update reads."""
    plan = placement(view.spec, flat)
    if plan.owners:
        return [Instruction(Op.WAIT, handle=f"{MuonOp.ALL_GATHER_ORTHOGONAL.value} {flat.unit}", frees=(owned(flat),))]
    return _arrived(flat, plan.divided)


def _arrived(flat: FlatLayout, divided: tuple[str, ...]) -> list[Instruction]:
    wait = Instruction(Op.WAIT, handle=f"{MuonOp.ALL_GATHER_DIRECTIONS.value} {flat.unit}", frees=(direction(flat),))
    return [wait] if divided else []
