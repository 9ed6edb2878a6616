"""Waste of matmuls on a device: tiles that reach beyond its result, a last wave that does not fill the multiprocessors.

A kernel divides the result [m, n] into tiles, each computed by one multiprocessor, so many at a time as there are:

    waves = ceil(groups x ceil(m / tile rows) x ceil(n / tile columns) / multiprocessors)
    idle  = 1 - groups x m x n / (waves x multiprocessors x tile rows x tile columns)

(NVIDIA, Matrix multiplication background user's guide, tile and wave quantization). A library tries several tiles; the share is
that of the best of `TILES`. Matmuls of few tiles and a long inner dim may be divided along that, which this leaves out.
"""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from fourfold.cost.kernels import expert_sizes
from fourfold.model.work import Gemm, Work

TILES = ((128, 128), (128, 256), (256, 128))
"""Rows and columns of the tiles that libraries take for large matmuls on A100 and later."""
H100_MULTIPROCESSORS = 132


class Waste(NamedTuple):
    """`share`: of the multiprocessors' time that is idle or computes outside of the result; `waves`: of tiles `tile`."""

    share: float
    tile: tuple[int, int]
    waves: int


def waste(gemm: Gemm, multiprocessors: int = H100_MULTIPROCESSORS) -> Waste:
    """The least that one of the tiles wastes."""
    return min(_waste(gemm, tile, multiprocessors) for tile in TILES)


def _waste(gemm: Gemm, tile: tuple[int, int], multiprocessors: int) -> Waste:
    rows, _ = expert_sizes(gemm)
    tiles = gemm.groups * -(-rows // tile[0]) * -(-gemm.columns // tile[1])
    waves = -(-tiles // multiprocessors)
    computed = waves * multiprocessors * tile[0] * tile[1]
    return Waste(1 - gemm.groups * rows * gemm.columns / computed, tile, waves)


def matmuls(works: Iterable[Work]) -> Counter[Gemm]:
    """Every matmul of some instructions, and how often it is computed."""
    return Counter(item for work in works for item in work.items if isinstance(item, Gemm))
