"""Hidden matrices, which Muon updates in full: where a rank's pieces of them lie in a unit's flat buffer, and in its shard.

A shard is a range of that buffer, so it cuts matrices anywhere; tensor parallelism splits them along one dim.
"""

from collections.abc import Iterable
from itertools import cycle
from typing import NamedTuple

from fourfold.layout import FlatLayout
from fourfold.model.local_parameter import LocalParameter
from fourfold.program.spec import StepSpec


class Matrix(NamedTuple):
    """Elements [start, end) of the unit's flat buffer, [rows, columns]: the piece of a model-parallel rank. `pieces` ranks have one
    each along `dim`. `at`: the coordinate of the tensor-parallel ranks that have it, where others have another there."""

    start: int
    rows: int
    columns: int
    dim: int = 0
    pieces: int = 1
    at: int | None = None

    @property
    def end(self) -> int:
        return self.start + self.rows * self.columns

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the full matrix."""
        return (self.rows * self.pieces, self.columns) if self.dim == 0 else (self.rows, self.columns * self.pieces)

    @property
    def numel(self) -> int:
        """Elements of the full matrix."""
        return self.rows * self.columns * self.pieces


def hidden_matrices(spec: StepSpec, flat: FlatLayout) -> tuple[Matrix, ...]:
    """The matrices of a unit, none where the optimizer treats all parameters alike. Experts' weights are batches of matrices, and
    with `per_head` so are those up-projections of MLA that have heads."""
    if not spec.optimizer.orthogonalizes:
        return ()
    found = []
    for parameter, start, end in flat.ranges()[: flat.num_matrices]:
        (dim, pieces), columns, sizes = _split(parameter), parameter.shape[-1], parameter.shape[-2:-1]
        coordinates: Iterable[int | None] = (None,)
        if spec.optimizer.per_head and parameter.spec.head_rows:
            sizes, coordinates, pieces = parameter.spec.head_rows, range(pieces) if pieces > 1 else (None,), 1
        for rows in cycle(sizes):
            found += [Matrix(start, rows, columns, dim, pieces, at) for at in coordinates]
            start += rows * columns
            if start == end:
                break
    return tuple(found)


def _split(parameter: LocalParameter) -> tuple[int, int]:
    """(dim of its matrices that tensor parallelism splits, into how many pieces)."""
    batch = len(parameter.shape) - 2
    return next(((dim - batch, degree) for dim, axis, degree in parameter.splits if axis != "ep"), (0, 1))


def is_split(matrix: Matrix) -> bool:
    """Whether tensor-parallel ranks have different parts of it, or different matrices in its place."""
    return matrix.pieces > 1 or matrix.at is not None


def within(matrices: tuple[Matrix, ...], start: int, end: int) -> tuple[Matrix, ...]:
    """Matrices that elements [start, end) of the flat buffer are parts of."""
    return tuple(matrix for matrix in matrices if matrix.start < end and start < matrix.end)


class HeldPart(NamedTuple):
    """Elements [low, high) of a shard, which are of a matrix."""

    low: int
    high: int
    matrix: Matrix


def parts_of_shard(matrices: tuple[Matrix, ...], start: int, end: int, tensor: int) -> tuple[HeldPart, ...]:
    """The parts of hidden matrices that elements [start, end) of the flat buffer are, in order, on a rank with this coordinate of
    tensor parallelism."""
    inside = (m for m in within(matrices, start, end) if m.at in (None, tensor))
    return tuple(HeldPart(max(m.start, start) - start, min(m.end, end) - start, m) for m in inside)
