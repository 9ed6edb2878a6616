"""Initial parameters as a pure function of (seed, name, element): the same under every layout, made shard by shard.

A rank draws what it holds and nothing else, on as many threads as it computes with: numbers are drawn, and turned into normals, in
blocks that stay in a core's cache, without the interpreter's lock.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import prod

import numpy as np
import torch
from torch import Tensor

from fourfold.layout import FlatLayout, LocalParameter
from fourfold.model.spec import ParameterSpec

TRUNCATION = 3.0
_CHUNK = 1 << 20
"""Elements that a thread draws at a time."""
_BLOCK = 30_000
"""Elements that are drawn and computed together: fewer than those from which on torch would start threads of its own."""

Run = tuple[int, int, int]
"""Elements [first, last) of a parameter, flattened, and the place of the first in what is filled."""


def initialize_shard(
    flat: FlatLayout,
    index: int,
    seed: int,
    coordinates: Mapping[str, int],
    out: Tensor,
    advance: Callable[[], None] = lambda: None,
) -> None:
    """Fills `out` [shard_numel] with shard `index` of a unit's initial parameters; the unit's part is that of `coordinates`.
    `advance` is called whenever some more of them are there."""
    out.zero_()
    for local, start, end, target in shard_pieces(flat, index, out):
        runs = [(first, last, low) for first, last, low, _ in global_runs(local, coordinates, start, end)]
        fill_runs(local.spec, runs, seed, target, advance)


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
    fill_runs(spec, [(start, end, 0)], seed, out)


def fill_runs(
    spec: ParameterSpec, runs: Sequence[Run], seed: int, out: Tensor, advance: Callable[[], None] = lambda: None
) -> None:
    """Runs of one parameter, in its order, each to its place in `out`; elements of `out` in no run stay as they are."""
    constant = 1.0 if spec.init_std is None else 0.0 if spec.init_std == 0.0 else None
    if constant is not None:
        for first, last, low in runs:
            out[low : low + last - first] = constant
        return
    tasks = list(_parts(runs, _CHUNK))
    threads = min(torch.get_num_threads(), len(tasks))

    def fill(task: Sequence[Run]) -> None:
        draws = _Draws(spec.name, seed)
        for block in _parts(task, _BLOCK):
            if spec.log_uniform is not None:
                least, most = spec.log_uniform
                values = _uniforms(draws, block).mul_(most - least).add_(least).log_()
            elif spec.softplus_log_uniform is not None:
                least, most = map(math.log, spec.softplus_log_uniform)
                found = _uniforms(draws, block).mul_(most - least).add_(least).exp_()
                values = found.expm1().log_()  # the inverse of the softplus
            else:
                values = _normals(draws, block).mul_(spec.init_std or 0.0)
            begin, low = 0, block[0][2]
            if low + values.numel() == block[-1][2] + block[-1][1] - block[-1][0]:  # without padding between
                out[low : low + values.numel()] = values
                continue
            for first, last, low in block:
                out[low : low + last - first] = values[begin : begin + last - first]
                begin += last - first

    if threads < 2:
        for task in tasks:
            fill(task)
            advance()
        return
    with ThreadPoolExecutor(threads, "initialize") as pool:
        for _ in pool.map(fill, tasks):
            advance()


def truncated_normal(name: str, start: int, end: int, seed: int) -> Tensor:
    """Elements [start, end) of the parameter's own stream of standard normals cut at three deviations, fp64."""
    return _normals(_Draws(name, seed), [(start, end, 0)])


def _parts(runs: Sequence[Run], most: int) -> Iterator[list[Run]]:
    """The runs in groups of `most` elements, the last of fewer; long runs are cut."""
    group: list[Run] = []
    left = most
    for first, last, low in runs:
        while first < last:
            taken = min(left, last - first)
            group.append((first, first + taken, low))
            first, low, left = first + taken, low + taken, left - taken
            if not left:
                yield group
                group, left = [], most
    if group:
        yield group


class _Draws:
    """A parameter's own stream of uniform numbers in [0, 1), fp64, at any place.

    Philox (Salmon et al. 2011) is counter-based, so a range costs no more than its length. One counter gives four numbers.
    """

    def __init__(self, name: str, seed: int) -> None:
        key = int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:16], "little")
        self._words = np.random.Philox(key=key)
        self._uniform = np.random.Generator(self._words)
        self._counter = 0

    def into(self, out: np.ndarray, start: int) -> None:
        """Elements [start, start + len(out))."""
        skipped = start % 4
        self._words.advance(start // 4 - self._counter)
        if skipped:
            self._words.random_raw(skipped, output=False)
        self._uniform.random(out=out)
        self._counter = start // 4 + -(-(skipped + len(out)) // 4)


def _uniforms(draws: _Draws, runs: Sequence[Run]) -> Tensor:
    """Numbers in [0, 1), of runs one behind the other, fp64."""
    uniform = np.empty(sum(last - first for first, last, _ in runs))
    begin = 0
    for first, last, _ in runs:
        draws.into(uniform[begin : begin + last - first], first)
        begin += last - first
    return torch.from_numpy(uniform)


def _normals(draws: _Draws, runs: Sequence[Run]) -> Tensor:
    """Standard normals cut at three deviations, by inversion, of runs one behind the other, fp64."""
    low = 0.5 * (1 + math.erf(-TRUNCATION / math.sqrt(2)))
    values = _uniforms(draws, runs).mul_(1 - 2 * low).add_(low)
    return values.mul_(2).sub_(1).erfinv_().mul_(math.sqrt(2)).clamp_(-TRUNCATION, TRUNCATION)
