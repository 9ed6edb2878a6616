"""Who orthogonalizes a matrix: every rank those that its shard has elements of, or each matrix one rank, its owner.

Owners compute a matrix once and send the result; without them it is computed on every rank that holds a part. Owners are taken
where the matmuls that they save take longer than the all-gather of results, at the fixed balance of arithmetic and links that a
transport stands for (`StepSpec.flops_per_received_byte`).
"""

from dataclasses import dataclass
from functools import lru_cache

from fourfold.config import DTYPE_BYTES
from fourfold.config.optimizers import MatrixPlacement
from fourfold.layout import FlatLayout, Layout
from fourfold.layout.flat import shard_index
from fourfold.model.newton_schulz import recorded
from fourfold.model.work import NOTHING, Work
from fourfold.program.muon.matrices import HeldPart, Matrix, hidden_matrices, is_split, parts_of_shard, within
from fourfold.program.spec import StepSpec


@dataclass(frozen=True)
class MatrixOwners:
    """Owners of matrices, equal on all ranks. `divided`: axes over which directions are gathered first, because their ranks have
    parts of a matrix. `owners`: axes over whose ranks matrices are shared out; none: every rank orthogonalizes what it has elements
    of. `slot`: elements of the results of the owner that has most. `work`, `workspace_bytes`: of the rank that has most, for which
    the others wait; `spread_work`: what that rank would have without owners."""

    divided: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()
    slot: int = 0
    work: Work = NOTHING
    workspace_bytes: int = 0
    spread_work: Work = NOTHING


@dataclass(frozen=True)
class Share:
    """One rank's part. `held`: what its shard has of matrices. `own`: the matrices that it owns, with their places among its
    results. `places`: by matrix, where its result lies among those of all owners. `tensor`: its coordinate among the ranks of
    tensor parallelism, and how many there are. `slot`: as in `MatrixOwners`."""

    held: tuple[HeldPart, ...] = ()
    own: tuple[tuple[Matrix, int], ...] = ()
    places: tuple[tuple[Matrix, int], ...] = ()
    tensor: tuple[int, int] = (0, 1)
    slot: int = 0


def placement(spec: StepSpec, flat: FlatLayout) -> MatrixOwners:
    """How the unit's matrices get orthogonalized. A unit without any has an empty one."""
    matrices = hidden_matrices(spec, flat)
    if not matrices:
        return MatrixOwners()
    layout, shards = spec.layout, flat.shard_axes if flat.zero else ()
    tensor = layout.active((_tensor_axis(flat),))
    divided = (*shards, *(tensor if any(map(is_split, matrices)) else ()))
    choices = tuple((axes, layout.group_size(axes), shards_too) for axes, shards_too in _choices(layout, flat))
    owners, slot, work, workspace, spread = _choose(
        matrices, flat.shard_numel, flat.num_shards if flat.zero else 1, choices, spec.compute,
        spec.flops_per_received_byte, spec.optimizer.placement,
    )  # fmt: skip
    return MatrixOwners(divided, owners, slot, work, workspace, spread)


def share_of(spec: StepSpec, flat: FlatLayout, rank: int) -> Share:
    """This rank's part of `placement`."""
    matrices, plan, layout = hidden_matrices(spec, flat), placement(spec, flat), spec.layout
    if not matrices:
        return Share()
    index, axis = shard_index(layout, flat, rank), _tensor_axis(flat)
    tensor = (layout.coordinates(rank)[axis], layout.degree(axis))
    held = parts_of_shard(matrices, *flat.shard_range(index), tensor[0])
    if not plan.owners:
        return Share(held, tensor=tensor)
    shared = matrices if _covers(plan.owners, flat) else within(matrices, *flat.shard_range(index))
    members = layout.group_of(rank, plan.owners)
    places, own = list[tuple[Matrix, int]](), tuple[tuple[Matrix, int], ...]()
    for owner, given in enumerate(share_out(shared, len(members), spec.compute)):
        results, offset = [], 0
        for matrix in given:
            results.append((matrix, offset))
            places.append((matrix, owner * plan.slot + offset))
            offset += matrix.numel
        if members[owner] == rank:
            own = tuple(results)
    return Share(held, own, tuple(places), tensor, plan.slot)


@lru_cache(maxsize=256)
def share_out(matrices: tuple[Matrix, ...], ranks: int, compute: str) -> tuple[tuple[Matrix, ...], ...]:
    """The matrices of every owner: the longest first, each to the rank that has least (Graham 1969)."""
    loads, given = [0] * ranks, [list[Matrix]() for _ in range(ranks)]
    for matrix in sorted(matrices, key=lambda each: -_flops(each, compute)):
        least = loads.index(min(loads))
        loads[least] += _flops(matrix, compute)
        given[least].append(matrix)
    return tuple(map(tuple, given))


def _flops(matrix: Matrix, compute: str) -> int:
    return recorded(*matrix.shape, compute)[0].flops


def _tensor_axis(flat: FlatLayout) -> str:
    return "tp" if flat.domain == "dense" else "etp"


def _covers(owners: tuple[str, ...], flat: FlatLayout) -> bool:
    """Whether all shards are among the owners: they share out all matrices, else those of their shard."""
    return not flat.zero or set(flat.shard_axes) <= set(owners)


def _choices(layout: Layout, flat: FlatLayout) -> list[tuple[tuple[str, ...], bool]]:
    """Axes over which owners can be, with whether all shards are among them: the ranks nearest to each other, more and more of
    them; and where a unit is sharded, those that hold one shard."""
    inner = ("dp_shard", "cp", "tp") if flat.domain == "dense" else ("edp", "etp")
    axes = layout.active(("dp_replicate", *inner))
    found = {axes[i:] for i in range(len(axes))}
    if flat.zero:
        alike = tuple(axis for axis in axes if axis not in flat.shard_axes)
        found = {each for each in found if set(flat.shard_axes) <= set(each)} | {alike[i:] for i in range(len(alike))}
    return [(each, _covers(each, flat)) for each in sorted(found, key=lambda each: (len(each), each))]


@lru_cache(maxsize=256)
def _choose(
    matrices: tuple[Matrix, ...],
    shard_numel: int,
    num_shards: int,
    choices: tuple[tuple[tuple[str, ...], int, bool], ...],
    compute: str,
    flops_per_byte: int,
    wanted: MatrixPlacement,
) -> tuple[tuple[str, ...], int, Work, int, Work]:
    """(axes of owners, slot, work, workspace, work without owners) of the cheapest choice: FLOPs of the rank that has most, and
    bytes received by `flops_per_byte`."""
    ends = [(i * shard_numel, (i + 1) * shard_numel) for i in range(num_shards)]
    shards = list(dict.fromkeys(within(matrices, *end) for end in ends))
    cut = shard_numel if any(map(is_split, matrices)) else 0
    spread, workspace = _most([tuple(m for m in shard if not m.at) for shard in shards], cut, compute)
    best: tuple[float, tuple[tuple[str, ...], int, Work, int]] | None = None
    if wanted != "owner" or not choices:
        best = spread.flops, ((), 0, spread, workspace)
    for axes, ranks, covers in choices if wanted != "shard" else ():
        groups = [given for shared in ([matrices] if covers else shards) for given in share_out(shared, ranks, compute)]
        work, workspace = _most(groups, cut, compute)
        slot = max(sum(matrix.numel for matrix in given) for given in groups)
        price = work.flops + (ranks - 1) * slot * DTYPE_BYTES[compute] * flops_per_byte
        if best is None or price < best[0]:
            best = price, (axes, slot, work, workspace)
    assert best is not None
    return *best[1], spread


def _most(groups: list[tuple[Matrix, ...]], cut: int, compute: str) -> tuple[Work, int]:
    """The most work of any of these groups of matrices, and the largest workspace. `cut`: elements of a shard, at whose ends a
    piece that has to be put together is cut; 0: matrices arrive in one piece."""
    most, workspace = NOTHING, 0
    for group in groups:
        passes = [_recorded(matrix, cut, compute) for matrix in group]
        work = Work(tuple(item for each, _ in passes for item in each.items))
        if work.flops > most.flops:
            most = work
        workspace = max([workspace, *(size for _, size in passes)])
    return most, workspace


def _recorded(matrix: Matrix, cut: int, compute: str) -> tuple[Work, int]:
    chunks = (matrix.end - 1) // cut - matrix.start // cut + 1 if cut else 1
    return recorded(matrix.rows, matrix.columns, compute, matrix.dim, (chunks,) * matrix.pieces)
