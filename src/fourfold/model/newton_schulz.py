"""Newton-Schulz iteration: a matrix with its singular values brought near 1, by matmuls alone (Jordan et al. 2024, "Muon").

The quintic coefficients are those of that text, as `torch.optim.Muon` has them. The singular values end between about 0.7 and 1.2.
"""

from collections.abc import Sequence
from functools import lru_cache

from fourfold.model.operations import Array, Operations
from fourfold.model.recorder.operations import RecorderOperations
from fourfold.model.recorder.recording import Recording
from fourfold.model.work import Work

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
STEPS = 5
EPSILON = 1e-7


def orthogonalize(ops: Operations, matrix: Array) -> Array:
    """matrix [m, n] -> [m, n], in its own number format. The Gram matrix is that of the shorter side."""
    rows, columns = matrix.shape
    a, b, c = COEFFICIENTS
    x = matrix.t() if rows > columns else matrix
    norm = ops.vector_norm(ops.vector_norm(x).view(1, -1))
    x = x / norm.clamp(min=EPSILON)
    del norm
    for _ in range(STEPS):
        gram = ops.matmul(x, x.t())
        polynomial = ops.matmul(gram, gram).mul_(c)
        polynomial += gram.mul_(b)
        del gram
        x = ops.matmul(polynomial, x).add_(x.mul_(a))
        del polynomial
    return x.t() if rows > columns else x


def assemble(ops: Operations, pieces: Sequence[Sequence[Array]], rows: int, columns: int, dim: int) -> Array:
    """The full matrix. `pieces`: [rows, columns] each, in order along `dim`, each in flat chunks that follow each other."""
    parts = [(each[0] if len(each) == 1 else ops.concatenate(each)).view(rows, columns) for each in pieces]
    return parts[0] if len(parts) == 1 else ops.concatenate(parts, dim)


@lru_cache(maxsize=256)
def recorded(rows: int, columns: int, dtype: str, dim: int = 0, chunks: tuple[int, ...] = (1,)) -> tuple[Work, int]:
    """The work of one matrix, and the bytes of its workspace, the result included. `chunks`: in how many each of its pieces [rows,
    columns] arrives."""
    recording = Recording(staging=False)
    ops = RecorderOperations(recording)
    sizes = [[rows * columns - number + 1, *[1] * (number - 1)] for number in chunks]  # their sum alone matters
    pieces = [[ops.outside((size,), dtype) for size in each] for each in sizes]
    recording.begin()
    result = orthogonalize(ops, assemble(ops, pieces, rows, columns, dim))
    del result
    return recording.recorded(), recording.peak
