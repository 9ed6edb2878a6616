"""The climb: from layouts that were simulated to neighbours that are better, until none is.

The search orders whole layouts by bounds, and so many keys at once that it sees few values of each. The climb changes one
(`moves/neighbours.py`). Neighbours are ordered by what bounds and timelines say of them; those alone are simulated that could be
better.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from fourfold.config import UserError
from fourfold.plan.bound import may_mix
from fourfold.plan.candidate import Candidate
from fourfold.plan.moves.activations import mixed
from fourfold.plan.moves.neighbours import neighbours
from fourfold.plan.outlook import WORTH
from fourfold.plan.pricing import Priced, Pricer, computation

STEP = 0.997
"""Share of a layout's score that a better neighbour has at most."""
ADDED = 0.75
"""How much of what simulations add at least to the bounds of their like is taken to be added to one that is not simulated."""
ADDED_AT_THE_TOP = 0.25
"""`ADDED` for the neighbours of the best, of which none is to be missed."""
MIXED = 1.02
"""How many times its bound the score of a layout is taken to be that fits by its blocks' ways, before one like it was simulated."""
MIXES = 4
"""Neighbours of a layout, the best aside, for whose blocks ways are chosen: that costs many times a simulation."""
STARTS, NEAR = 3, 1.05
"""Layouts that are climbed from, of other degrees each, and how many times the best score they have at most."""


class Outlined(NamedTuple):
    """A layout as its bounds and its timeline have it: it is no better, and holds no less. `is_mixed`: it fits by what each of its
    blocks does with its activations alone."""

    score: float
    memory_bytes: float
    candidate: Candidate
    is_mixed: bool

    @property
    def kind(self) -> tuple[object, ...]:
        """A key shared by layouts whose simulations add alike to their bounds."""
        layout = self.candidate
        return (layout.pp > 1, layout.schedule, layout.zero == 3, layout.overlap_experts, self.is_mixed)


@dataclass
class Climb:
    """`seen`: all layouts that were simulated, or None where they cannot be or hold too much for the request. `least_added`: by
    what they have in common, what simulations were times bounds at least."""

    pricer: Pricer
    seen: dict[Candidate, Priced | None] = field(default_factory=dict)
    least_added: dict[tuple[object, ...], float] = field(default_factory=dict)
    _climbed: set[tuple[Candidate, float]] = field(default_factory=set)

    def from_best(self, best: Sequence[Priced]) -> list[Priced]:
        """All better layouts that are found on the way from the best of these, each of other degrees; then from the best of all."""
        ordered = sorted(best, key=lambda each: each.score)
        self.seen.update((each.candidate, each) for each in ordered)
        starts: dict[tuple[int, ...], Priced] = {}
        for each in ordered:
            layout = each.candidate
            starts.setdefault((layout.tp, layout.pp, layout.cp, layout.ep), each)
        found = list[Priced]()
        for start in [*starts.values()][:STARTS]:
            near = start.score <= NEAR * min(each.score for each in (*ordered, *found))
            if near and (start.candidate, ADDED) not in self._climbed:
                found += self.path(start)
        top = min([*ordered, *found], key=lambda each: each.score)
        return found + self.path(top, ADDED_AT_THE_TOP)

    def path(self, start: Priced, added: float = ADDED) -> list[Priced]:
        """The layouts on the way up from one, best last. `added`: as `ADDED`."""
        found: list[Priced] = []
        here: Priced | None = start
        while here is not None and (here.candidate, added) not in self._climbed and not self.pricer.budget.is_spent:
            self._climbed.add((here.candidate, added))
            here = self._better(here, added)
            found += [here] if here is not None else []
        return found

    def _better(self, here: Priced, added: float) -> Priced | None:
        """The first neighbour that is simulated to be better, of those in the order of their bounds; None where none is."""
        most = STEP * here.score
        self._note(self.outlined(self.kept(here.candidate)), here)
        ahead = [o for o in map(self.outlined, self.neighbours(here.candidate)) if o is not None]
        mixes = 0
        for each in sorted(ahead, key=lambda outlined: (self._promised(outlined), outlined.memory_bytes)):
            if self.pricer.budget.is_spent:
                break
            if self._expected(each, added) >= most or (each.is_mixed and mixes == MIXES and added == ADDED):
                continue
            mixes += each.is_mixed and each.candidate not in self.seen
            priced = self.simulated(each)
            self._note(each, priced)
            if priced is not None and priced.score < most:
                return priced
        return None

    def _expected(self, each: Outlined, added: float) -> float:
        """The score of a layout by its bound and so much of what simulations added to those of others like it at least."""
        return each.score * (1 + added * (self.least_added.get(each.kind, MIXED if each.is_mixed else 1.0) - 1))

    def _promised(self, each: Outlined) -> float:
        """The score by which neighbours are ordered: where none of the kind was simulated, of others that fit in the same way."""
        others = (added for kind, added in self.least_added.items() if kind[-1] == each.is_mixed)
        like = self.least_added.get(each.kind, min(others, default=1.0))
        return each.score * (1 + ADDED * (like - 1))

    def _note(self, each: Outlined | None, priced: Priced | None) -> None:
        if each is not None and priced is not None:
            known = self.least_added.get(each.kind, float("inf"))
            self.least_added[each.kind] = min(known, priced.score / each.score)

    def neighbours(self, layout: Candidate) -> list[Candidate]:
        """Neighbours of a layout, and of the same layout with what its blocks do with their activations left open. Where that was
        chosen, the layout's own are those that compute the same, and differ in how data parallelism is divided and placed."""
        request, free = self.pricer.request, self.kept(layout)
        found = dict.fromkeys([free, *neighbours(request, free)])
        own, same = neighbours(request, layout), free.activations == layout.activations
        found |= dict.fromkeys(each for each in own if same or computation(each) == computation(layout))
        found.pop(layout, None)
        return [*found]

    def kept(self, layout: Candidate) -> Candidate:
        """The layout before its blocks' ways with their activations were chosen."""
        return replace(layout, recompute="none", activations=()) if may_mix(self.pricer.request) else layout

    def outlined(self, candidate: Candidate) -> Outlined | None:
        """A layout before its simulation; None where it cannot be."""
        try:
            seconds, memory, is_mixed = self.pricer.bound(candidate)
        except UserError:
            return None
        weight = self.pricer.outlook.weight(candidate) * (WORTH if is_mixed else 1.0)
        return Outlined(seconds * weight, memory, candidate, is_mixed)

    def simulated(self, each: Outlined) -> Priced | None:
        """The layout, simulated; None where it holds too much, or cannot be."""
        if each.candidate not in self.seen:
            most = self.pricer.request.memory_bytes
            found = None
            if each.is_mixed:
                found = mixed(self.pricer, each.candidate)
            elif each.memory_bytes <= most:
                found = self.pricer.fitting(each.candidate, most)
            self.seen[each.candidate] = found
        return self.seen[each.candidate]
