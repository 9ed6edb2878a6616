"""Rows sorted by expert: where each expert's begin and end."""

from collections.abc import Iterator
from dataclasses import dataclass

from fourfold.model.operations import Array


@dataclass(frozen=True)
class Groups:
    """`sizes`: rows of each expert of this rank; `ends` [experts] int32, on the device: where they end."""

    sizes: tuple[int, ...]
    ends: Array

    def ranges(self) -> Iterator[tuple[int, int, int]]:
        """(expert, start, end) of every expert that has rows."""
        start = 0
        for expert, size in enumerate(self.sizes):
            if size:
                yield expert, start, start + size
            start += size
