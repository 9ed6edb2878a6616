"""Initial parameters as a pure function of (seed, name, element): the same under every layout, made shard by shard."""

import hashlib
import math
from collections.abc import Iterator, Mapping
from math import prod

import numpy as np
import torch
from torch import Tensor

from fourfold.layout import FlatLayout, LocalParameter
from fourfold.model.spec import ParameterSpec

TRUNCATION = 3.0
_CHUNK = 1 << 20


def initialize_shard(flat: FlatLayout, index: int, seed: int, coordinates: Mapping[str, int], out: Tensor) -> None:
    """Fills `out` [shard_numel] with shard `index` of a unit's initial parameters; the unit's part is that of `coordinates`."""
    out.zero_()
    for local, start, end, target in shard_pieces(flat, index, out):
        for first, last, low, high in global_runs(local, coordinates, start, end):
            fill_range(local.spec, first, last, seed, target[low:high])


def shard_pieces(flat: FlatLayout, index: int, out: Tensor) -> Iterator[tuple[LocalParameter, int, int, Tensor]]:
    """Yields (parameter, start, end, view of `out`): the elements of each local parameter, flattened, that shard `index` has."""
    shard_start, shard_end = flat.shard_range(index)
    for local, start, end in flat.ranges():
        low, high = max(start, shard_start), min(end, shard_end)
        if low < high:
            yield local, low - start, high - start, out[low - shard_start : high - shard_start]


def global_runs(
    local: LocalParameter, coordinates: Mapping[str, int], start: int, end: int
) -> Iterator[tuple[int, int, int, int]]:
    """Maps elements [start, end) of a rank's flattened part to runs [first, last) of the full parameter, flattened. Each run has
    its place [low, high), counted from `start`. Padding is in no run."""
    if not local.splits:
        yield start, end, 0, end - start
        return
    shape, box = local.spec.shape, local.box(coordinates)
    inner = max(dim for dim, _, _ in local.splits)
    run = prod(local.shape[inner:])
    stride = prod(shape[inner + 1 :])
    position = start
    while position < end:
        row, within = divmod(position, run)
        taken = min(run - within, end - position)
        first = 0
        for dim in range(inner):
            index, row = divmod(row, prod(local.shape[dim + 1 : inner]))
            first = first * shape[dim] + box[dim][0] + index
        first = (first * shape[inner] + box[inner][0]) * stride + within
        own = min(taken, (box[inner][1] - box[inner][0]) * stride - within)
        if own > 0:
            yield first, first + own, position - start, position - start + own
        position += taken


def fill_range(spec: ParameterSpec, start: int, end: int, seed: int, out: Tensor) -> None:
    """Elements [start, end) of one parameter, flattened."""
    if spec.init_std is None:
        out.fill_(1.0)
        return
    if spec.init_std == 0.0:
        out.zero_()
        return
    for low in range(start, end, _CHUNK):
        high = min(low + _CHUNK, end)
        out[low - start : high - start] = truncated_normal(spec.name, low, high, seed).mul_(spec.init_std).to(out)


def truncated_normal(name: str, start: int, end: int, seed: int) -> Tensor:
    """Elements [start, end) of the parameter's own stream of standard normals cut at three deviations, fp64.

    Philox (Salmon et al. 2011) is counter-based, so a range costs no more than its length; normals by inversion.
    """
    key = int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:16], "little")
    generator = np.random.Philox(key=key)
    skipped = start % 4
    generator.advance(start // 4)  # one counter gives four 64-bit words
    words = generator.random_raw(end - start + skipped)[skipped:]
    uniform = torch.from_numpy((words >> np.uint64(11)).astype(np.float64) * 2.0**-53)
    low = 0.5 * (1 + math.erf(-TRUNCATION / math.sqrt(2)))
    inner = low + (1 - 2 * low) * uniform
    return torch.erfinv(2 * inner - 1).mul_(math.sqrt(2)).clamp_(-TRUNCATION, TRUNCATION)
