"""The cheapest choice of one option for each block that spares enough memory: a multiple-choice knapsack, solved exactly.

Blocks with equal options are alike, so that only how many take which option counts. Partial sums that spare no more than another,
and cost no less, are dropped (Pareto fronts; Nemhauser & Ullmann 1969): what is left is exact.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Option(NamedTuple):
    """One way of a block: its seconds, and the bytes that it spares."""

    seconds: float
    spared_bytes: float


Options = tuple[Option, ...]


class _Sum(NamedTuple):
    """Blocks that are decided: seconds, bytes, and of each kind how many take which option."""

    seconds: float
    spared_bytes: float
    counts: tuple[tuple[int, ...], ...]


def cheapest(blocks: Sequence[Options], needed: float) -> list[int] | None:
    """The place of each block's option, in the order of `blocks`, so that together they spare `needed` bytes in the fewest seconds;
    None where they cannot. The first of blocks that are alike take the later options."""
    kinds = Counter(blocks)
    front = [_Sum(0.0, 0.0, ())]
    for options, number in kinds.items():
        own = _alike(options, number)
        front = _front(
            _Sum(a.seconds + b.seconds, a.spared_bytes + b.spared_bytes, (*a.counts, *b.counts))
            for a in front
            for b in own
        )
    enough = [each for each in front if each.spared_bytes >= needed]
    if not enough:
        return None
    chosen = dict(zip(kinds, min(enough).counts, strict=True))
    left = {
        options: [place for place, n in reversed([*enumerate(counts)]) for _ in range(n)]
        for options, counts in chosen.items()
    }
    return [left[options].pop(0) for options in blocks]


def _alike(options: Options, number: int) -> list[_Sum]:
    """The front of `number` blocks with the same options, one block after the other."""
    front = [(0,) * len(options)]
    for _ in range(number):
        more = {(*counts[:i], counts[i] + 1, *counts[i + 1 :]) for counts in front for i in range(len(options))}
        sums = (
            _Sum(
                sum(n * each.seconds for n, each in zip(counts, options, strict=True)),
                sum(n * each.spared_bytes for n, each in zip(counts, options, strict=True)),
                (counts,),
            )
            for counts in more
        )
        best = _front(sums)
        front = [each.counts[0] for each in best]
    return best if number else [_Sum(0.0, 0.0, (front[0],))]


def _front(sums: Iterable[_Sum]) -> list[_Sum]:
    """Those that no other beats in both, fewest seconds first."""
    front: list[_Sum] = []
    for each in sorted(sums, key=lambda s: (s.seconds, -s.spared_bytes)):
        if not front or each.spared_bytes > front[-1].spared_bytes:
            front.append(each)
    return front
