"""Recomputation of the first blocks alone: what a policy for all of them leaves on the table.

A block that is recomputed costs its forward once more. The first stages hold the most microbatches, so that recomputing the first N
blocks is what a 1F1B pipeline needs least of. The least N that fits is found by halving, each step a simulation of the program.
"""

from dataclasses import replace

from fourfold.plan.pricing import Priced, price_candidate
from fourfold.plan.request import Request

PROBES = 4
"""Simulations a layout: N is found to within a sixteenth of the blocks."""
WORTH = 0.98
"""Of the best time: a layout that does not fit without recomputation is looked at where it would take no more."""


def lighter(request: Request, priced: Priced) -> Priced | None:
    """A layout that recomputes every block, with as few of them as fit; None where that is no faster."""
    policy, blocks = priced.candidate.recompute, request.model.num_layers
    if policy not in ("selective", "full"):
        return None
    best, fewest, most = priced, 0, blocks
    for _ in range(PROBES):
        count = (fewest + most) // 2
        if count in (fewest, most):
            break
        found = price_candidate(request, replace(priced.candidate, recompute=f"{policy}:{count}"))
        if isinstance(found, Priced) and found.memory_bytes <= request.memory_bytes:
            best, most = min(best, found, key=lambda p: p.seconds), count
        else:
            fewest = count
    return best if best.seconds < priced.seconds else None


def mended(request: Request, too_large: Priced) -> Priced | None:
    """A layout that does not fit without recomputation, with as little of it as makes it fit; None where none does."""
    for policy in ("selective", "full"):
        found = price_candidate(request, replace(too_large.candidate, recompute=policy))
        if isinstance(found, Priced) and found.memory_bytes <= request.memory_bytes:
            return lighter(request, found) or found
    return None
