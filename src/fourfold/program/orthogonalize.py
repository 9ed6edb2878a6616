"""The instructions before an update that orthogonalizes: momentum, directions brought together, homes and their results."""

from fourfold.config import DTYPE_BYTES
from fourfold.layout import FlatLayout
from fourfold.model.work import Work, sends, touches
from fourfold.program.buffers import direction, gradient, home, homes, matrices
from fourfold.program.homes import placement
from fourfold.program.instruction import Instruction, Op
from fourfold.program.matrices import hidden_matrices
from fourfold.program.sizes import unit_bytes
from fourfold.program.spec import StepSpec
from fourfold.program.totals import over
from fourfold.program.view import RankView


def read_by_update(spec: StepSpec, flat: FlatLayout) -> tuple[tuple[str, ...], Work, int]:
    """Buffers that an update reads beside gradient and state, the work that this adds to it, and the workspace."""
    found, plan = hidden_matrices(spec, flat), placement(spec, flat)
    if not found:
        return (), Work(), 0
    if plan.homes:
        split = [each.rows * each.columns for each in found if each.dim == 1 and each.pieces > 1]
        return (homes(flat),), Work(), max(split, default=0) * DTYPE_BYTES[spec.compute]
    return (matrices(flat, bool(plan.bring)),), plan.work, plan.workspace_bytes


def before_updates(view: RankView) -> list[list[Instruction]]:
    """For each unit, the instructions before its update. The next unit's directions start first, so that they arrive beside the
    update; where matrices have homes, the next unit is orthogonalized first too, so that results travel beside that."""
    units = list(view.flats.values())
    started, computed, joined = ([make(view, flat) for flat in units] for make in (_start, _compute, _join))
    if not any(computed):
        return [[*(started[0] if i == 0 else []), *_at(started, i + 1), *joined[i]] for i in range(len(units))]
    first = [*started[0], *_at(started, 1), *computed[0]]
    following = [[*_at(started, i + 2), *_at(computed, i + 1), *joined[i]] for i in range(len(units))]
    return [[*first, *following[0]], *following[1:]]


def _at(lists: list[list[Instruction]], index: int) -> list[Instruction]:
    return lists[index] if index < len(lists) else []


def _start(view: RankView, flat: FlatLayout) -> list[Instruction]:
    """Momentum and direction of the shard's matrices, and the all-gather of directions where ranks have parts of matrices."""
    spec, unit = view.spec, flat.unit
    if not hidden_matrices(spec, flat):
        return []
    state, own, numbers = f"optimizer/{unit}", direction(flat), flat.shard_numel * DTYPE_BYTES[spec.master]
    moved = unit_bytes(spec, "grad_shard", flat) + unit_bytes(spec, "direction", flat) + 2 * numbers
    momentum = Instruction(
        Op.MOMENTUM,
        unit,
        reads=(gradient(flat), state),
        writes=(state, own),
        work=touches(moved),
        workspace_bytes=2 * numbers,
    )
    bring = placement(spec, flat).bring
    if not bring:
        return [momentum]
    gather = over(spec.layout, "all_gather", bring, unit_bytes(spec, "matrices", flat))
    written = (matrices(flat, brought=True),)
    brought = Instruction(Op.BRING, unit, reads=(own,), writes=written, work=sends(gather), stream=gather.axes)
    return [momentum, brought]


def _compute(view: RankView, flat: FlatLayout) -> list[Instruction]:
    """The matrices whose home the rank is, and the all-gather of results; nothing where there are no homes."""
    spec, unit, plan = view.spec, flat.unit, placement(view.spec, flat)
    if not plan.homes:
        return []
    full, own = matrices(flat, bool(plan.bring)), home(flat)
    orthogonalized = Instruction(
        Op.ORTHOGONALIZE,
        unit,
        reads=(full,),
        writes=(own,),
        frees=(full,),
        work=Work((*plan.work.items, *touches(2 * unit_bytes(spec, "home", flat)).items)),
        workspace_bytes=plan.workspace_bytes,
    )
    gather = over(spec.layout, "all_gather", plan.homes, unit_bytes(spec, "homes", flat))
    results = Instruction(
        Op.ALL_GATHER_HOMES, unit, reads=(own,), writes=(homes(flat),), work=sends(gather), stream=gather.axes
    )
    return [*_arrived(flat, plan.bring), orthogonalized, results]


def _join(view: RankView, flat: FlatLayout) -> list[Instruction]:
    """The wait for what the update reads."""
    plan = placement(view.spec, flat)
    if plan.homes:
        return [Instruction(Op.WAIT, handle=f"{Op.ALL_GATHER_HOMES.value} {flat.unit}", frees=(home(flat),))]
    return _arrived(flat, plan.bring)


def _arrived(flat: FlatLayout, bring: tuple[str, ...]) -> list[Instruction]:
    wait = Instruction(Op.WAIT, handle=f"{Op.BRING.value} {flat.unit}", frees=(direction(flat),))
    return [wait] if bring else []
