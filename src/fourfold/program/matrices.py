"""Hidden matrices, which Muon updates as a whole: where they lie in a unit, and what a rank orthogonalizes.

A shard is a range of a flat buffer, so it cuts matrices anywhere. Every rank gathers the directions of a unit and orthogonalizes
the matrices that its shard has elements of: no result is sent back. A matrix that k shards cut is computed k times.
"""

from math import prod
from typing import NamedTuple

from fourfold.layout import FlatLayout
from fourfold.model.newton_schulz import recorded
from fourfold.model.work import Work
from fourfold.program.spec import StepSpec

_TABLES = ("embed", "head")
"""Units whose rows are tokens' and not a hidden layer's: AdamW updates them."""


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
    if not spec.optimizer.orthogonalizes or flat.unit in _TABLES:
        return ()
    found = []
    for parameter, start, _ in flat.ranges():
        if len(parameter.shape) < 2 or not parameter.weight_decay:
            continue
        *batch, rows, columns = parameter.shape
        found += [Matrix(start + i * rows * columns, rows, columns) for i in range(prod(batch))]
    return tuple(found)


def held_matrices(spec: StepSpec, flat: FlatLayout, index: int) -> tuple[Matrix, ...]:
    """Those that shard `index` has elements of."""
    low, high = flat.shard_range(index)
    return tuple(matrix for matrix in hidden_matrices(spec, flat) if matrix.start < high and low < matrix.end)


def orthogonalization(spec: StepSpec, flat: FlatLayout) -> tuple[Work, int]:
    """The work of the shard that has most of it, for which the others wait, and the bytes of its workspace."""
    most, workspace = Work(), 0
    for index in range(flat.num_shards):
        passes = [recorded(m.rows, m.columns, spec.compute) for m in held_matrices(spec, flat, index)]
        work = Work(tuple(item for each, _ in passes for item in each.items))
        if work.flops > most.flops:
            most = work
        workspace = max([workspace, *(size for _, size in passes)])
    return most, workspace
