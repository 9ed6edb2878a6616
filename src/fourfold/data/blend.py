"""Which part of a blend each sample comes from: after any number of samples each part has had its share, to a sample or two."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fourfold.config import UserError

FEWEST_SEEN = 1 << 16
"""Samples of which every part has one at least."""


def largest_remainder(weights: Sequence[float], total: int) -> list[int]:
    """Divides `total` whole things by `weights` (Hamilton's method): floors, then one each to the largest remainders."""
    shares = [weight / sum(weights) * total for weight in weights]
    # A share that is whole but for rounding counts as whole.
    counts = [int(share + 1e-9 * total) for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda part: (counts[part] - shares[part], part))
    for part in by_remainder[: total - sum(counts)]:
        counts[part] += 1
    return counts


@dataclass(frozen=True)
class _Split:
    """Two sides, each a part or a split of its own. `share`: the smaller's, of what both have."""

    share: float
    smaller: "int | _Split"
    larger: "int | _Split"


class Blend:
    """Maps sample n of the run to (part, index within the part): pure functions of n and the weights.

    Parts are joined two by two, the smallest first (Huffman 1952). Among n samples of a pair n times the smaller side's share,
    rounded, are its own. So no error adds up with n, whatever the weights, and samples next to each other have each part's share
    as well.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        """Raises `UserError` for a weight that has none of `FEWEST_SEEN` samples."""
        if 0 in largest_remainder(weights, FEWEST_SEEN):
            total = sum(weights)
            raise UserError(
                f"data.corpus: weight {min(weights):g} is less than 1/{FEWEST_SEEN} of the sum {total:g}, so that its part "
                f"would hardly be seen; a weight that works: {total / 1000:g}"
            )
        heap: list[tuple[float, int, int | _Split]] = [(weight, part, part) for part, weight in enumerate(weights)]
        heapq.heapify(heap)
        for number in range(len(weights), 2 * len(weights) - 1):
            light, _, smaller = heapq.heappop(heap)
            heavy, _, larger = heapq.heappop(heap)
            heapq.heappush(heap, (light + heavy, number, _Split(light / (light + heavy), smaller, larger)))
        self._tree = heap[0][2]

    def locate(self, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(part, index within the part) of each sample, int64 [n] each."""
        parts, indices = np.empty_like(samples), np.empty_like(samples)
        self._deal(self._tree, np.arange(len(samples)), samples, parts, indices)
        return parts, indices

    def _deal(
        self, node: int | _Split, places: np.ndarray, numbers: np.ndarray, parts: np.ndarray, indices: np.ndarray
    ) -> None:
        """Puts parts and indices of a node's samples at `places`. `numbers`: of the samples within the node."""
        if isinstance(node, int):
            parts[places], indices[places] = node, numbers
            return
        before, after = (np.floor(n * node.share + 0.5).astype(np.int64) for n in (numbers, numbers + 1))
        light = after > before
        self._deal(node.smaller, places[light], before[light], parts, indices)
        self._deal(node.larger, places[~light], (numbers - before)[~light], parts, indices)
