"""Which keys each query sees: one interval for each query, of which neither end ever moves back.

Full attention, causal attention, and documents packed into one sequence are all of this kind. A tile of queries then sees one range
of keys, and a tile of keys is seen by one range of queries: the other tiles are never visited.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int32]
Range = tuple[int, int]
"""First and one past the last."""


@dataclass(frozen=True, eq=False)
class Visible:
    """Query i sees the keys first[i] to last[i] - 1. Both [queries]; neither decreases; an empty interval sees nothing. `lengths`:
    of causal documents side by side; empty for anything else."""

    first: Integers
    last: Integers
    keys: int
    lengths: tuple[int, ...] = ()
    _made: dict[Hashable, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for name, ends in (("first", self.first), ("last", self.last)):
            if ends.size and (np.diff(ends).min(initial=0) < 0 or ends[0] < 0 or ends[-1] > self.keys):
                raise ValueError(f"`{name}` must not decrease and lie in 0 to {self.keys}")

    @classmethod
    def full(cls, queries: int, keys: int) -> "Visible":
        """Every query sees every key."""
        return cls(np.zeros(queries, np.int32), np.full(queries, keys, np.int32), keys)

    @classmethod
    def causal(cls, length: int) -> "Visible":
        """Query i sees keys 0 to i."""
        return cls.documents([length])

    @classmethod
    def documents(cls, lengths: Sequence[int], causal: bool = True) -> "Visible":
        """Documents side by side in one sequence: a query sees its own, up to itself where it is causal."""
        sizes = np.asarray(lengths, np.int32)
        ends = np.cumsum(sizes, dtype=np.int32)
        first, last = np.repeat(ends - sizes, sizes), np.repeat(ends, sizes)
        keys = first.size
        if not causal:
            return cls(first, last, keys)
        return cls(first, np.arange(1, keys + 1, dtype=np.int32), keys, tuple(lengths))

    def within(self, window: int | None) -> "Visible":
        """A mask with the last `window` keys that each query sees; None: all of them."""
        if window is None:
            return self
        within: Visible = self.once(
            ("window", window),
            lambda: Visible(np.maximum(self.first, self.last - np.int32(window)), self.last, self.keys),
        )
        return within

    @property
    def queries(self) -> int:
        return int(self.first.size)

    @property
    def pairs(self) -> int:
        """How many scores count."""
        return int(np.maximum(self.last - self.first, 0).sum(dtype=np.int64))

    @property
    def ends(self) -> Integers:
        """Where the documents start and end, [documents + 1]."""
        return np.cumsum((0, *self.lengths), dtype=np.int32)

    def once(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """The result of the first call's `make` with this key: arrays on a device, which all layers share."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def keys_of(self, queries: Range) -> Range:
        """The range of keys that some of these queries see."""
        first, last = int(self.first[queries[0]]), int(self.last[queries[1] - 1])
        return (first, last) if first < last else (0, 0)

    def queries_of(self, keys: Range) -> Range:
        """The range of queries that see some of these keys."""
        first = int(np.searchsorted(self.last, keys[0], side="right"))
        last = int(np.searchsorted(self.first, keys[1], side="left"))
        return (first, last) if first < last else (0, 0)

    def covers(self, queries: Range, keys: Range) -> bool:
        """Whether each of these queries sees each of these keys, so that the tile needs no mask."""
        return bool(self.first[queries[1] - 1] <= keys[0] and self.last[queries[0]] >= keys[1])


def tiles(of: Range, size: int, length: int) -> Iterator[Range]:
    """The tiles of `size` tokens, cut from token 0 on, that meet the range. The last one ends at `length`."""
    first, last = of
    for start in range(first - first % size, last, size):
        yield start, min(start + size, length)
