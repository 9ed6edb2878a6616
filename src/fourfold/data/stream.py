"""A run of tokens that may skip parts of a file: some ranges of a memory-mapped array, read as if they were one."""

from collections.abc import Iterator

import numpy as np

_CHUNK_TOKENS = 1 << 22


class TokenStream:
    """The concatenation of ranges of an array, never built in memory."""

    def __init__(self, tokens: np.ndarray, ranges: np.ndarray) -> None:
        """tokens: ids, [N]. ranges: (start, stop) of each range, int64 [R, 2], rising, disjoint, none empty."""
        self._tokens = tokens
        self._ranges = ranges
        self._ends = np.cumsum(ranges[:, 1] - ranges[:, 0], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def read(self, start: int, count: int) -> np.ndarray:
        """Tokens `start` to `start + count` of the stream, int64 [count]; fewer where the stream ends."""
        stop = min(start + count, len(self))
        pieces = []
        at = int(np.searchsorted(self._ends, start, side="right"))
        while start < stop:
            range_stop = int(self._ranges[at, 1])
            begin = range_stop - (int(self._ends[at]) - start)
            piece = self._tokens[begin : min(range_stop, begin + stop - start)]
            pieces.append(piece)
            start += len(piece)
            at += 1
        return np.concatenate([np.empty(0, np.int64), *pieces]).astype(np.int64, copy=False)

    def chunks(self) -> Iterator[np.ndarray]:
        """The full stream in order, int64 [at most 4,194,304] at a time."""
        for start in range(0, len(self), _CHUNK_TOKENS):
            yield self.read(start, _CHUNK_TOKENS)


def all_tokens(tokens: np.ndarray) -> TokenStream:
    """The stream of all tokens of an array."""
    return TokenStream(tokens, complement(np.empty((0, 2), np.int64), len(tokens)))


def complement(ranges: np.ndarray, length: int) -> np.ndarray:
    """The ranges of [0, length) outside rising, disjoint `ranges` [R, 2]: int64 [R', 2], without empty ranges."""
    edges = np.concatenate([[0], ranges.reshape(-1), [length]]).astype(np.int64).reshape(-1, 2)
    return edges[edges[:, 0] < edges[:, 1]]
