"""Which part of a blend each sample comes from: every block of samples has the same proportions, exactly."""

from collections.abc import Sequence

import numpy as np

from fourfold.config import UserError
from fourfold.data.permutation import Permutation

_MAX_EXACT_BLOCK = 1024
_MAX_BLOCK = 1 << 16


def largest_remainder(weights: Sequence[float], total: int) -> list[int]:
    """Divides `total` whole things by `weights` (Hamilton's method): floors, then one each to the largest remainders."""
    shares = [weight / sum(weights) * total for weight in weights]
    # A share that is whole but for rounding counts as whole.
    counts = [int(share + 1e-9 * total) for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda part: (counts[part] - shares[part], part))
    for part in by_remainder[: total - sum(counts)]:
        counts[part] += 1
    return counts


def block_size(weights: Sequence[float]) -> int:
    """Samples in a block: the fewest, up to 1,024, in which every share is whole; else 1,024 or the power of two
    from which every part has a sample. Raises `UserError` for a weight that would take more than 65,536."""
    total = sum(weights)
    for size in range(1, _MAX_EXACT_BLOCK + 1):
        shares = [weight / total * size for weight in weights]
        if all(round(share) >= 1 and abs(share - round(share)) < 1e-9 * size for share in shares):
            return size
    size = _MAX_EXACT_BLOCK
    while 0 in largest_remainder(weights, size):
        size *= 2
        if size > _MAX_BLOCK:
            raise UserError(
                f"data.corpus: weight {min(weights):g} is less than 1/{_MAX_BLOCK} of the sum {total:g}, so that its part "
                f"would hardly be seen; a weight that works: {total / 1000:g}"
            )
    return size


class Blend:
    """Maps sample n of the run to (part, index within the part): pure functions of n, the weights and the seed."""

    def __init__(self, weights: Sequence[float], seed: int) -> None:
        self.block = block_size(weights)
        self.counts = np.array(largest_remainder(weights, self.block), np.int64)
        sorted_parts = np.repeat(np.arange(len(weights)), self.counts)
        self._part = sorted_parts[Permutation(self.block, seed, self.block)(np.arange(self.block))]
        # How many slots of the same part come before each slot.
        self._rank = np.zeros(self.block, np.int64)
        for part, count in enumerate(self.counts):
            self._rank[self._part == part] = np.arange(count)

    def locate(self, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(part, index within the part) of each sample, int64 [n] each."""
        blocks, slots = np.divmod(samples, self.block)
        parts = self._part[slots]
        return parts, blocks * self.counts[parts] + self._rank[slots]
