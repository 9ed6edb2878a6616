"""The order of samples: from sample n of a run to (source, index within the source), and from an index to a shuffled window.

Both are asked at any place and store nothing that grows with the run: the shuffle is a keyed bijection of 0 .. size - 1. A source
is read in its own order, and its cursor is the number of its samples drawn so far, whatever its weight was: a change of weights
repeats none and leaves none out. After any number of samples each source has had its share, to a sample or two.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

_NUM_ROUNDS = 8
_BELOW_HALF = 0.5 - 2**-30


class Permutation:
    """A pseudo-random bijection of range(size): a balanced Feistel network over the smallest even number of bits that
    holds `size`, walked along its cycles until the value lies in range (Black & Rogaway 2002, "Ciphers with arbitrary
    finite domains"). The round function is the finalizer of SplitMix64.
    """

    def __init__(self, size: int, *key: int) -> None:
        """size: from 1 to 2**62. key: integers; another key gives another, unrelated shuffle."""
        if not 1 <= size <= 2**62:
            raise ValueError(f"size = {size}: a permutation has from 1 to 2**62 elements")
        self._size = np.uint64(size)
        self._half_bits = np.uint64(max(1, ((size - 1).bit_length() + 1) // 2))
        self._mask = np.uint64((1 << int(self._half_bits)) - 1)
        digest = blake2b(repr([int(part) for part in key]).encode(), digest_size=8 * _NUM_ROUNDS).digest()
        self._round_keys = np.frombuffer(digest, "<u8").astype(np.uint64)

    def __call__(self, indices: np.ndarray) -> np.ndarray:
        """The images of `indices`, int64 [n] in and out, each from 0 to size - 1."""
        values = self._encrypt(indices.astype(np.uint64))
        # The domain is less than four times `size`, so a walk takes fewer than four rounds on average.
        while (outside := np.flatnonzero(values >= self._size)).size:
            values[outside] = self._encrypt(values[outside])
        return values.astype(np.int64)

    def _encrypt(self, values: np.ndarray) -> np.ndarray:
        left, right = values >> self._half_bits, values & self._mask
        for key in self._round_keys:
            left, right = right, left ^ (_mix(right ^ key) & self._mask)
        return (left << self._half_bits) | right


def _mix(values: np.ndarray) -> np.ndarray:
    """SplitMix64's finalizer: a bijection of 64-bit words in which every input bit moves every output bit."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


@dataclass(frozen=True)
class _Split:
    """Two sides, each a source or a split of its own: by the first weights the smaller and the larger."""

    number: int
    smaller: "int | _Split"
    larger: "int | _Split"


@dataclass
class _Quota:
    """The samples of a split from where a phase begins. `start`: its samples before; `rounded`: those of the side that is rounded,
    which is the lighter one, before. `share`: of that side. `owed`: what it is ahead (below 0) or behind at the start, within half
    a sample. `is_larger`: the side that is lighter now was the heavier at first."""

    start: int
    rounded: int
    share: float
    owed: float
    is_larger: bool

    def count(self, samples: np.ndarray) -> np.ndarray:
        """Samples of the rounded side among the first `samples` of the split since the start, int64."""
        return np.floor(self.owed + samples * self.share + 0.5).astype(np.int64)


class Blend:
    """Maps sample n of a run to (source, index within the source), under weights that may change from phase to phase: pure
    functions of n and of the weights up to n.

    Sources are joined two by two by their first weights, the smallest first (Huffman 1952). Among n samples of a pair n times the
    lighter side's share, rounded, are its own, and where the shares change, what a side is behind by rounding goes on with it. So
    no error adds up with n, whatever the weights, and samples next to each other have each source's share as well.
    """

    def __init__(self, phases: Sequence[tuple[int, Sequence[float]]]) -> None:
        """phases: (first sample, weights) of each, rising from sample 0; weights are 0 or more, with one above 0."""
        self._starts = np.array([start for start, _ in phases], np.int64)
        if self._starts[0] != 0 or np.any(np.diff(self._starts) <= 0):
            raise ValueError(f"phases begin at {self._starts.tolist()}; allowed: 0 first, then rising")
        self._num_sources = len(phases[0][1])
        self._tree = _joined(phases[0][1])
        self._quotas: list[list[_Quota]] = []
        for index, (_, weights) in enumerate(phases):
            self._quotas.append([_NO_QUOTA] * (self._num_sources - 1))
            self._begin(self._tree, index, weights, int(self._starts[index]))

    @property
    def num_phases(self) -> int:
        return len(self._starts)

    def locate(self, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(source, index within the source) of each sample, int64 [n] each."""
        sources, indices = np.empty_like(samples), np.empty_like(samples)
        phases = np.searchsorted(self._starts, samples, side="right") - 1
        for phase in np.unique(phases):
            places = np.flatnonzero(phases == phase)
            self._deal(self._tree, self._quotas[phase], places, samples[places], sources, indices)
        return sources, indices

    def drawn(self, samples: int) -> list[int]:
        """The cursor of each source after so many samples of the run."""
        counts = [0] * self._num_sources
        phase = int(np.searchsorted(self._starts, samples, side="right")) - 1
        self._count(self._tree, self._quotas[phase], samples, counts)
        return counts

    def _begin(self, node: "int | _Split", phase: int, weights: Sequence[float], start: int) -> None:
        """Fills the quotas of a phase. `start`: samples of the node before it."""
        if isinstance(node, int):
            return
        smaller, larger = _weight(node.smaller, weights), _weight(node.larger, weights)
        is_larger = larger < smaller
        share = min(smaller, larger) / (smaller + larger) if smaller + larger else 0.0
        rounded, owed = 0, 0.0
        if phase:
            before = self._quotas[phase - 1][node.number]
            passed = start - before.start
            count = int(before.count(np.array(passed)))
            rounded, owed = before.rounded + count, before.owed + passed * before.share - count
            if is_larger != before.is_larger:
                rounded, owed = start - rounded, -owed
        self._quotas[phase][node.number] = _Quota(start, rounded, share, min(owed, _BELOW_HALF), is_larger)
        first = start - rounded if is_larger else rounded
        self._begin(node.smaller, phase, weights, first)
        self._begin(node.larger, phase, weights, start - first)

    def _count(self, node: "int | _Split", quotas: "list[_Quota]", samples: int, counts: list[int]) -> None:
        if isinstance(node, int):
            counts[node] = samples
            return
        quota = quotas[node.number]
        rounded = quota.rounded + int(quota.count(np.array(samples - quota.start)))
        smaller = samples - rounded if quota.is_larger else rounded
        self._count(node.smaller, quotas, smaller, counts)
        self._count(node.larger, quotas, samples - smaller, counts)

    def _deal(
        self,
        node: "int | _Split",
        quotas: "list[_Quota]",
        places: np.ndarray,
        numbers: np.ndarray,
        sources: np.ndarray,
        indices: np.ndarray,
    ) -> None:
        """Puts sources and indices of a node's samples at `places`. `numbers`: of the samples within the node."""
        if isinstance(node, int):
            sources[places], indices[places] = node, numbers
            return
        quota = quotas[node.number]
        passed = numbers - quota.start
        before, after = quota.count(passed), quota.count(passed + 1)
        light = after > before
        sides = (node.larger, node.smaller) if quota.is_larger else (node.smaller, node.larger)
        rounded = quota.rounded + before
        self._deal(sides[0], quotas, places[light], rounded[light], sources, indices)
        self._deal(sides[1], quotas, places[~light], (numbers - rounded)[~light], sources, indices)


_NO_QUOTA = _Quota(0, 0, 0.0, 0.0, is_larger=False)


def _joined(weights: Sequence[float]) -> int | _Split:
    heap: list[tuple[float, int, int | _Split]] = [(weight, source, source) for source, weight in enumerate(weights)]
    heapq.heapify(heap)
    for number in range(len(weights), 2 * len(weights) - 1):
        light, _, smaller = heapq.heappop(heap)
        heavy, _, larger = heapq.heappop(heap)
        heapq.heappush(heap, (light + heavy, number, _Split(number - len(weights), smaller, larger)))
    return heap[0][2]


def _weight(node: int | _Split, weights: Sequence[float]) -> float:
    return weights[node] if isinstance(node, int) else _weight(node.smaller, weights) + _weight(node.larger, weights)
