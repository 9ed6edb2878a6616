"""All-to-alls of experts behind another microbatch: tried on the best layouts that have them, whose steps they may shorten.

Where the request says `overlap_experts`, layouts are held to it. The search orders layouts by bounds and timelines of passes in one
piece. The program alone tells what overlap gains and holds. Only fourfold's own software runs it.
"""

from collections.abc import Sequence
from dataclasses import replace

from fourfold.config import UserError
from fourfold.plan.pricing import Priced, Pricer
from fourfold.simulate.run_prices import OWN_SOFTWARE

TRIED = 3
"""Layouts that are simulated once more."""


def overlapped(pricer: Pricer, best: Sequence[Priced]) -> list[Priced]:
    """The best layouts with expert parallelism and more than one microbatch, with overlap, that fit, and that are faster
    so or asked for."""
    request = pricer.request
    if request.software.name != OWN_SOFTWARE or request.overlap_experts is False:
        return []
    found = []
    several = [p for p in sorted(best, key=lambda p: p.score) if p.candidate.ep > 1 and _microbatches(pricer, p) > 1]
    for each in several[:TRIED]:
        priced = pricer.fitting(replace(each.candidate, overlap_experts=True), request.memory_bytes)
        if priced is not None and (request.overlap_experts or priced.score < each.score):
            found.append(priced)
    return found


def with_overlap(pricer: Pricer, best: Sequence[Priced]) -> list[Priced]:
    """The best layouts and those with overlap; these alone where they are asked for. Raises `UserError` where there are none."""
    found = overlapped(pricer, best)
    if not pricer.request.overlap_experts:
        return [*best, *found]
    if not found:
        raise UserError(
            "layout.overlap_experts=true: none of the best layouts runs so and fits; it takes layout.ep above 1 and at least two "
            "microbatches a rank; what works: leave it out, or state layout.ep=2,4,8 beside it"
        )
    return found


def _microbatches(pricer: Pricer, priced: Priced) -> int:
    layout = priced.candidate
    return pricer.request.global_sequences // (layout.dp * layout.microbatch_sequences)
