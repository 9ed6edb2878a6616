"""Which tokens of a row each ring rank of context parallelism has: in zig-zag, or evenly by the work of the row's documents.

A row is cut into equal chunks and every rank has as many of them, so that all work but attention's is even whatever the rows. A
token's work in attention is the number of tokens up to it in its document. In zig-zag rank r of R has chunks r and 2R - 1 - r,
which is even for one document (Brandon et al. 2023). Where it is not even for a microbatch's documents, finer chunks are dealt
out, the heaviest first to the rank that has the least work (Graham 1969), and exchanged between the most and the least loaded
ranks while that helps.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

ENOUGH = 1.05
"""A placement is even enough where the most loaded rank has at most this much of the mean work."""
_FINENESS = (1, 2, 4, 8)
"""Tried in this order: so many times two chunks a rank."""

Chunks = tuple[int, ...]
"""The chunks of a row that one rank has, ascending."""


class Placement(NamedTuple):
    """`chunks[row][rank]`: each row is cut into `num_chunks` equal chunks. One row stands for all where they are alike."""

    num_chunks: int
    chunks: tuple[tuple[Chunks, ...], ...]

    def of_row(self, row: int) -> tuple[Chunks, ...]:
        return self.chunks[row if len(self.chunks) > 1 else 0]


def zigzag(ring: int) -> Placement:
    """Two chunks a rank, one from the front and one from the back; one chunk where the ring has one rank."""
    if ring == 1:
        return Placement(1, (((0,),),))
    return Placement(2 * ring, (tuple((rank, 2 * ring - 1 - rank) for rank in range(ring)),))


def balanced(lengths: Sequence[Sequence[int]], ring: int, together: int = 1) -> Placement:
    """A placement of rows with documents of these lengths (per row, of one sum): the coarsest that is even enough over all rows
    together, else the most even. The same for every caller. Chunks are a multiple of `together` tokens."""
    best = zigzag(ring)
    if ring == 1:
        return best
    length = sum(lengths[0])
    least = unevenness(best, lengths)
    for fineness in _FINENESS:
        if least <= ENOUGH or length % (2 * ring * fineness * together):
            break
        tried = dealt(lengths, ring, 2 * ring * fineness)
        found = unevenness(tried, lengths)
        if found < least:
            best, least = tried, found
    return best


def unevenness(placement: Placement, lengths: Sequence[Sequence[int]]) -> float:
    """The attention work of the most loaded rank, divided by the mean."""
    loads = [0] * len(placement.chunks[0])
    for row, each in enumerate(lengths):
        work = chunk_work(each, placement.num_chunks)
        for rank, chunks in enumerate(placement.of_row(row)):
            loads[rank] += sum(work[chunk] for chunk in chunks)
    return max(loads) * len(loads) / sum(loads)


def chunk_work(lengths: Sequence[int], num_chunks: int) -> list[int]:
    """Pairs of a query and a key that it sees, by the query's chunk, of a row with documents of these lengths."""
    starts = list(accumulate(lengths, initial=0))
    before = list(accumulate((size * (size + 1) // 2 for size in lengths), initial=0))
    chunk = starts[-1] // num_chunks
    upto = []
    for end in range(0, starts[-1] + 1, chunk):
        document = bisect_right(starts, end) - 1
        inside = end - starts[document]
        upto.append(before[document] + inside * (inside + 1) // 2)
    return [after - first for first, after in pairwise(upto)]


def dealt(lengths: Sequence[Sequence[int]], ring: int, num_chunks: int) -> Placement:
    """A placement of so many chunks a row, as even as dealing them out makes it."""
    loads, rows = [0] * ring, []
    for each in lengths:
        work = chunk_work(each, num_chunks)
        held: list[list[int]] = [[] for _ in range(ring)]
        for chunk in sorted(range(num_chunks), key=lambda chunk: (-work[chunk], chunk)):
            rank = min((r for r in range(ring) if len(held[r]) < num_chunks // ring), key=lambda r: loads[r])
            held[rank].append(chunk)
            loads[rank] += work[chunk]
        _exchange(held, work, loads)
        rows.append(tuple(tuple(sorted(chunks)) for chunks in held))
    return Placement(num_chunks, tuple(rows))


def _exchange(held: list[list[int]], work: Sequence[int], loads: list[int]) -> None:
    """Swaps a chunk of the most loaded rank with one of the least loaded while that brings the two nearer, in place."""
    ranks = range(len(loads))
    for _ in range(4 * len(loads)):
        high, low = max(ranks, key=lambda r: loads[r]), min(ranks, key=lambda r: loads[r])
        gap = loads[high] - loads[low]
        pairs = [(work[a] - work[b], a, b) for a in held[high] for b in held[low] if 0 < work[a] - work[b] < gap]
        if not pairs:
            return
        moved, a, b = min(pairs, key=lambda pair: (abs(gap - 2 * pair[0]), pair[1:]))
        held[high][held[high].index(a)], held[low][held[low].index(b)] = b, a
        loads[high] -= moved
        loads[low] += moved


class ContextShare(NamedTuple):
    """One rank's place in context parallelism: its index among the ring's ranks and among those that exchange heads."""

    ring: int
    ring_index: int
    ulysses: int
    ulysses_index: int

    @property
    def ranks(self) -> int:
        return self.ring * self.ulysses

    def positions(self, placement: Placement, row: int, sequence_length: int) -> list[int]:
        """Positions of a row's sequence that the rank has, in the order that it holds them: those of its ring rank, and of each
        half of these its part among the ranks that exchange heads."""
        chunk = sequence_length // placement.num_chunks
        chunks = placement.of_row(row)[self.ring_index]
        held = [position for c in chunks for position in range(c * chunk, (c + 1) * chunk)]
        if self.ulysses == 1:
            return held
        half = len(held) // 2
        part = half // self.ulysses
        first = self.ulysses_index * part
        return held[first : first + part] + held[half + first : half + first + part]
