"""All-to-alls of experts behind another microbatch: tried on the best layouts that have them, whose steps they may shorten.

Where the request says `overlap_experts`, layouts are held to it. The search orders layouts by bounds and timelines of passes in one
piece. The program alone tells what overlap gains and holds. Only fourfold's own software runs it.
"""

from collections.abc import Sequence
from dataclasses import replace

from fourfold.config import UserError
from fourfold.plan.candidate import Candidate
from fourfold.plan.pricing import Priced, Pricer

TRIED = 3
"""Layouts that are simulated once more."""


def overlapped(pricer: Pricer, best: Sequence[Priced]) -> list[Priced]:
    """The best layouts with expert parallelism and more than one microbatch, with overlap, that fit, and that are faster
    so or asked for. Raises `UserError` where it is asked for and there are none."""
    request, found = pricer.request, list[Priced]()
    runs = request.software.is_own and request.overlap_experts is not False

    def can(layout: Candidate) -> bool:
        return layout.ep > 1 and request.global_sequences // (layout.dp * layout.microbatch_sequences) > 1

    able = sorted((each for each in best if runs and can(each.candidate)), key=lambda each: each.score)
    for each in able[:TRIED]:
        priced = pricer.fitting(replace(each.candidate, overlap_experts=True), request.memory_bytes)
        if priced is not None and (request.overlap_experts or priced.score < each.score):
            found.append(priced)
    if request.overlap_experts and not found:
        raise UserError(
            "layout.overlap_experts=true: none of the best layouts runs so and fits; it takes layout.ep above 1 and at least two "
            "microbatches a rank; what works: leave it out, or state layout.ep=2,4,8 beside it"
        )
    return found
