"""The layouts that a search found, and their order."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from fourfold.plan.candidate import Candidate
from fourfold.plan.pool import Counts
from fourfold.plan.pricing import Priced
from fourfold.plan.request import Request


@dataclass(frozen=True)
class Found:
    """Layouts that a search found, best first. `smallest`: the least memory that any layout needs, where none fits. `low_memory`:
    one that holds clearly less than the best, where that is not near the memory limit. `surely_fits`: the best that is not near
    it. `riskier`: a faster one that is less likely to fit than was asked for. `refusal`: why the last layout that cannot run
    cannot. `away_seconds`: as in `Pool`."""

    request: Request
    best: tuple[Priced, ...]
    counts: Counts
    seconds: float
    smallest: tuple[Candidate, float] | None = None
    low_memory: Priced | None = None
    surely_fits: Priced | None = None
    riskier: Priced | None = None
    refusal: str | None = None
    away_seconds: float = float("inf")


def best_first(priced: Iterable[Priced], keep: int) -> list[Priced]:
    """The best few, each layout once; of those that differ in the order of their axes alone, and are as fast, the first."""
    every = {each.candidate: each for each in priced}.values()
    ordered = sorted(every, key=lambda each: (each.score, each.memory_bytes, each.candidate.words()))
    return [*{(replace(each.candidate, outermost="pp"), each.seconds): each for each in reversed(ordered)}.values()][
        ::-1
    ][:keep]


def pareto(priced: Sequence[Priced]) -> list[Priced]:
    """Layouts that no other beats in both time and memory, fastest first."""
    front: list[Priced] = []
    for each in sorted(priced, key=lambda p: (p.seconds, p.memory_bytes)):
        if not front or each.memory_bytes < front[-1].memory_bytes:
            front.append(each)
    return front
