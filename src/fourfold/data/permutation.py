"""A shuffle that can be asked at any place: a keyed bijection of 0 .. size - 1 that stores nothing."""

from hashlib import blake2b

import numpy as np

_NUM_ROUNDS = 8


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
