"""Partial recomputation: the first blocks alone recompute.

A block that is recomputed costs its forward once more. The first stages hold the most microbatches, so that recomputing the first N
blocks is what a 1F1B pipeline needs least of. The least N that fits is found by halving, each step the memory of a program;
the last one's time is simulated.
"""

from dataclasses import replace

from fourfold.plan.candidate import Candidate
from fourfold.plan.pricing import Priced, Pricer

PROBES = 4
"""Programs a layout: N is found to within a sixteenth of the blocks."""


def made_to_fit(pricer: Pricer, too_large: Candidate) -> Priced | None:
    """A layout that does not fit without recomputation, with as little of it as makes it fit; None where none does."""
    for policy in ("selective", "full"):
        every = replace(too_large, recompute=policy)
        if pricer.request.permits(every) and pricer.fits(every):
            found = fewest_recomputed(pricer, every) or pricer.price(every)
            return found if isinstance(found, Priced) else None
    return None


def fewest_recomputed(pricer: Pricer, candidate: Candidate) -> Priced | None:
    """With as few blocks recomputed as were seen to fit; None where that is all of them, or none are recomputed."""
    policy, fewest, most = candidate.recompute, 0, pricer.request.model.num_layers
    if policy not in ("selective", "full") or not pricer.request.permits(replace(candidate, recompute=f"{policy}:1")):
        return None
    best = candidate
    for _ in range(PROBES):
        count = (fewest + most) // 2
        if count in (fewest, most):
            break
        fewer = replace(candidate, recompute=f"{policy}:{count}")
        if pricer.fits(fewer):
            best, most = fewer, count
        else:
            fewest = count
    priced = pricer.price(best) if best != candidate else None
    return priced if isinstance(priced, Priced) else None
