"""Contributions to a gradient, and the reductions that they have been through.

A contribution is (segment, microbatch, operation): a backward in two halves makes two. Those of different microbatches that have
been summed over the same axes are kept as one set of microbatches, an integer with a bit for each.
"""

from collections.abc import Iterator

Source = tuple[str, str]
"""The segment that contributes, and the operation."""
Held = dict[tuple[Source, tuple[str, ...]], int]
"""Contributions by the axes that they have been summed over, each as often as it was: their microbatches."""


def bits(microbatches: int) -> Iterator[int]:
    """The microbatches of a set, ascending."""
    while microbatches:
        lowest = microbatches & -microbatches
        yield lowest.bit_length() - 1
        microbatches ^= lowest


def sources(held: Held) -> dict[Source, int]:
    """The microbatches of every source, over whatever axes they have been summed."""
    found: dict[Source, int] = {}
    for (source, _), numbers in held.items():
        found[source] = found.get(source, 0) | numbers
    return found


def sum_over(held: Held, axes: tuple[str, ...]) -> None:
    """Notes that they have been summed over these axes, too."""
    summed = {(source, (*before, *axes)): numbers for (source, before), numbers in held.items()}
    held.clear()
    held.update(summed)


def scatter(held: Held, shard: Held, axes: tuple[str, ...]) -> list[tuple[str, int]]:
    """Adds them, summed over these axes, to those of a shard; the (segment, microbatch) of what it has already."""
    there, twice = sources(shard), []
    for (source, before), numbers in held.items():
        twice += [(source[0], m) for m in bits(there.get(source, 0) & numbers)]
        key = source, (*before, *axes)
        shard[key] = shard.get(key, 0) | numbers
    return twice
