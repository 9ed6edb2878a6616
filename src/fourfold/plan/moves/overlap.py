"""All-to-alls of experts behind another microbatch: tried on the best layouts that have them, whose steps they may shorten.

The search orders layouts by bounds and timelines of passes in one piece. The program alone tells what overlap gains and holds. Only
fourfold's own software runs it. Where the request says `overlap_experts`, all layouts of the search are so, and none is tried here.
"""

from collections.abc import Sequence
from dataclasses import replace

from fourfold.plan.pricing import Priced, Pricer

TRIED = 3
"""Layouts that are simulated once more."""


def overlapped(pricer: Pricer, best: Sequence[Priced]) -> list[Priced]:
    """The best layouts with expert parallelism and more than one microbatch, with overlap, that fit and are faster so."""
    request, found = pricer.request, list[Priced]()
    if not request.overlap_is_open:
        return found
    able = sorted((each for each in best if request.can_overlap(each.candidate)), key=lambda each: each.score)
    for each in able[:TRIED]:
        priced = pricer.fitting(replace(each.candidate, overlap_experts=True), request.memory_bytes)
        if priced is not None and priced.score < each.score:
            found.append(priced)
    return found
