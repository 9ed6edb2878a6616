"""The declarations of the instructions around an orthogonalization: every rank that has a part of a matrix takes part in bringing
it together, and every rank that needs a part of the result gets it."""

from fourfold.config import DTYPE_BYTES
from fourfold.layout import FlatLayout
from fourfold.layout.mesh import axes_name
from fourfold.model.work import Collective, Elementwise, Work, sends
from fourfold.program import buffers as name
from fourfold.program.homes import placement
from fourfold.program.instruction import Op
from fourfold.program.spec import StepSpec

MATRIX_OPS = frozenset((Op.MOMENTUM, Op.BRING, Op.ORTHOGONALIZE, Op.ALL_GATHER_HOMES))
Declaration = tuple[tuple[str, ...], tuple[str, ...], Work, int]
"""Names read, names written, work, workspace."""


def declared_of_matrices(op: Op, spec: StepSpec, flat: FlatLayout) -> list[Declaration]:
    """The declarations that one of `MATRIX_OPS` may have on a unit with matrices."""
    own, full, plan, element = name.direction(flat), _full(spec, flat), placement(spec, flat), DTYPE_BYTES[spec.compute]
    if op is Op.MOMENTUM:
        state, numbers = f"optimizer/{flat.unit}", flat.shard_numel * DTYPE_BYTES[spec.master]
        size = flat.shard_numel * (DTYPE_BYTES[spec.gradients] + element) + 2 * numbers
        kernel = Work((Elementwise(size, size),))
        return [(tuple(sorted((name.gradient(flat), state))), tuple(sorted((state, own))), kernel, 2 * numbers)]
    if op is Op.BRING:
        axes = _divided(spec, flat)
        return [((own,), (full,), _gather(spec, axes, flat.shard_numel * element), 0)] if axes else []
    if not plan.homes:
        return []
    results = plan.slot * element
    if op is Op.ORTHOGONALIZE:
        written = Elementwise(2 * results, 2 * results)
        return [((full,), (name.home(flat),), Work((*plan.work.items, written)), plan.workspace_bytes)]
    return [((name.home(flat),), (name.homes(flat),), _gather(spec, plan.homes, results), 0)]


def declared_of_update(spec: StepSpec, flat: FlatLayout) -> tuple[tuple[str, ...], Work, int]:
    """Names of matrices' buffers that an update reads, and the work and workspace that they add to it."""
    plan = placement(spec, flat)
    if not flat.matrix_numel or not spec.optimizer.orthogonalizes:
        return (), Work(), 0
    if not plan.homes:
        return (_full(spec, flat),), plan.work, plan.workspace_bytes
    rows = [p for p in flat.parameters[: flat.num_matrices] if any(dim == len(p.shape) - 1 for dim, _, _ in p.splits)]
    pieces = [p.shape[-1] * p.shape[-2] for p in rows]
    return (name.homes(flat),), Work(), max(pieces, default=0) * DTYPE_BYTES[spec.compute]


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
