"""The cheapest choice of one option for each block that spares enough memory: a multiple-choice knapsack, solved exactly.

Blocks with equal options are alike, so that only how many take which option counts. Partial sums that spare no more than another,
and cost no less, are dropped (Pareto fronts; Nemhauser & Ullmann 1969): what is left is exact. Where more than `MANY`
blocks are alike, all but one take one of two options, as in the solution in which blocks could be divided: exact to less than a
block.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import combinations, product
from typing import NamedTuple

MANY = 16
"""Blocks that are alike, of which every number of every option is looked at."""


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
    enough = [each for each in _every(tuple(kinds.items())) if each.spared_bytes >= needed]
    if not enough:
        return None
    chosen = dict(zip(kinds, min(enough).counts, strict=True))
    left = {
        options: [place for place, n in reversed([*enumerate(counts)]) for _ in range(n)]
        for options, counts in chosen.items()
    }
    return [left[options].pop(0) for options in blocks]


@lru_cache(maxsize=64)
def _every(kinds: tuple[tuple[Options, int], ...]) -> list[_Sum]:
    """The front of so many blocks of each kind, whatever is needed: the same blocks are asked for more than once."""
    front = [_Sum(0.0, 0.0, ())]
    for options, number in kinds:
        own = _alike(options, number)
        front = _front(
            _Sum(a.seconds + b.seconds, a.spared_bytes + b.spared_bytes, (*a.counts, *b.counts))
            for a in front
            for b in own
        )
    return front


def _alike(options: Options, number: int) -> list[_Sum]:
    """The front of `number` blocks with the same options. One that another beats in both is taken by none."""
    useful = [place for place, each in enumerate(options) if not _is_beaten(place, each, options)]
    if number > MANY:
        return _front(_sum_of(options, counts) for counts in _two_and_one(useful, len(options), number))
    front = [(0,) * len(options)]
    for _ in range(number):
        more = {(*counts[:i], counts[i] + 1, *counts[i + 1 :]) for counts in front for i in useful}
        best = _front(_sum_of(options, counts) for counts in more)
        front = [each.counts[0] for each in best]
    return best if number else [_Sum(0.0, 0.0, (front[0],))]


def _sum_of(options: Options, counts: tuple[int, ...]) -> _Sum:
    seconds = sum(n * each.seconds for n, each in zip(counts, options, strict=True) if n)
    spared = sum(n * each.spared_bytes for n, each in zip(counts, options, strict=True) if n)
    return _Sum(seconds, spared, (counts,))


def _is_beaten(place: int, option: Option, options: Options) -> bool:
    """Whether another option costs no more and spares no less; the first of equal ones is not."""
    return any(
        (each.seconds, -each.spared_bytes, other) < (option.seconds, -option.spared_bytes, place)
        and each.spared_bytes >= option.spared_bytes
        for other, each in enumerate(options)
        if other != place
    )


def _two_and_one(useful: Sequence[int], options: int, number: int) -> Iterator[tuple[int, ...]]:
    """How many blocks take which of the useful options, where all but one take one of two."""
    pairs = combinations(useful, 2) if len(useful) > 1 else [(useful[0], useful[0])]
    for first, second in pairs:
        for many, one in product(range(number), useful):
            counts = [0] * options
            counts[first] += many
            counts[second] += number - 1 - many
            counts[one] += 1
            yield tuple(counts)


def _front(sums: Iterable[_Sum]) -> list[_Sum]:
    """Sums that no other beats in both, fewest seconds first."""
    front: list[_Sum] = []
    for each in sorted(sums, key=lambda s: (s.seconds, -s.spared_bytes)):
        if not front or each.spared_bytes > front[-1].spared_bytes:
            front.append(each)
    return front
