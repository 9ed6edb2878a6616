"""All-to-alls of experts behind another microbatch: tried on the best layouts that have them, whose steps they may shorten.

The search orders layouts by bounds and timelines of passes in one piece. The program alone tells what overlap gains and holds.
Only fourfold's own software runs it.
"""

from collections.abc import Sequence
from dataclasses import replace

from fourfold.plan.pricing import Priced, Pricer
from fourfold.simulate.run_prices import OWN_SOFTWARE

TRIED = 3
"""Layouts that are simulated once more."""


def overlapped(pricer: Pricer, best: Sequence[Priced]) -> list[Priced]:
    """Those of the best layouts with expert parallelism and more than one microbatch, with overlap, that are faster so and fit."""
    request = pricer.request
    if request.software.name != OWN_SOFTWARE:
        return []
    found = []
    several = [p for p in sorted(best, key=lambda p: p.score) if p.candidate.ep > 1 and _microbatches(pricer, p) > 1]
    for each in several[:TRIED]:
        priced = pricer.price(replace(each.candidate, overlap_experts=True))
        if isinstance(priced, Priced) and priced.memory_bytes <= request.memory_bytes and priced.score < each.score:
            found.append(priced)
    return found


def _microbatches(pricer: Pricer, priced: Priced) -> int:
    layout = priced.candidate
    return pricer.request.global_sequences // (layout.dp * layout.microbatch_sequences)
