"""Hidden matrices, which Muon updates as a whole: where they lie in a unit, and what a rank orthogonalizes.

A shard is a range of a flat buffer, so it cuts matrices anywhere. Every rank gathers the directions of a unit and orthogonalizes
the matrices that its shard has elements of: no result is sent back. A matrix that k shards cut is computed k times.
"""

from functools import lru_cache
from math import prod
from typing import NamedTuple

from fourfold.layout import FlatLayout
from fourfold.model.newton_schulz import recorded
from fourfold.model.work import Work
from fourfold.program.spec import StepSpec


class Matrix(NamedTuple):
    """Elements [start, start + rows * columns) of the unit's flat buffer, [rows, columns]."""

    start: int
    rows: int
    columns: int

    @property
    def end(self) -> int:
        return self.start + self.rows * self.columns


def hidden_matrices(spec: StepSpec, flat: FlatLayout) -> tuple[Matrix, ...]:
    """The matrices of a unit, none where the optimizer treats all parameters alike. Experts' weights are batches of matrices."""
    if not spec.optimizer.orthogonalizes:
        return ()
    found = []
    for parameter, start, _ in flat.ranges()[: flat.num_matrices]:
        *batch, rows, columns = parameter.shape
        found += [Matrix(start + i * rows * columns, rows, columns) for i in range(prod(batch))]
    return tuple(found)


class HeldPart(NamedTuple):
    """Elements [low, high) of a shard, which are a matrix's."""

    low: int
    high: int
    matrix: Matrix


def held_parts(spec: StepSpec, flat: FlatLayout, index: int) -> tuple[HeldPart, ...]:
    """The parts of hidden matrices that shard `index` holds, in order."""
    return _held(hidden_matrices(spec, flat), *flat.shard_range(index))


def _held(matrices: tuple[Matrix, ...], start: int, end: int) -> tuple[HeldPart, ...]:
    inside = (matrix for matrix in matrices if matrix.start < end and start < matrix.end)
    return tuple(HeldPart(max(m.start, start) - start, min(m.end, end) - start, m) for m in inside)


def orthogonalization(spec: StepSpec, flat: FlatLayout) -> tuple[Work, int]:
    """The work of the shard that has most of it, for which the others wait, and the bytes of its workspace."""
    matrices = hidden_matrices(spec, flat)
    return _most_work(matrices, flat.shard_numel, flat.num_shards, spec.compute) if matrices else (Work(), 0)


@lru_cache(maxsize=256)
def _most_work(matrices: tuple[Matrix, ...], shard_numel: int, num_shards: int, compute: str) -> tuple[Work, int]:
    most, workspace = Work(), 0
    for index in range(num_shards):
        held = _held(matrices, index * shard_numel, (index + 1) * shard_numel)
        passes = [recorded(part.matrix.rows, part.matrix.columns, compute) for part in held]
        work = Work(tuple(item for each, _ in passes for item in each.items))
        if work.flops > most.flops:
            most = work
        workspace = max([workspace, *(size for _, size in passes)])
    return most, workspace
