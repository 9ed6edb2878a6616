"""Where the axes of a mesh lie on a cluster's interconnect levels: the order in which ranks are numbered.

With the stages of a pipeline outermost, ranks that read different data are as near as can be, and messages between stages travel
farthest. Any other order brings stages nearer and data farther apart: it can win no more than what ranks wait for those messages,
so that bounds for the first order hold for all, and the fastest layouts alone are tried in the others.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from fourfold.layout.mesh import ORDERS, Outermost
from fourfold.plan.candidate import Candidate
from fourfold.plan.pricing import Priced, Pricer
from fourfold.plan.request import Request

TRIED = 2
"""Layouts that are tried in other orders."""


def other_orders(request: Request, candidate: Candidate) -> Iterator[Outermost]:
    """Those that put some rank elsewhere, on a cluster where it matters."""
    if candidate.pp == 1 or request.devices <= request.cluster.levels[0].devices:
        return
    for outermost in ORDERS:
        moved = {"pp": 1, "dp_replicate": candidate.dp_replicate, "dp": candidate.dp}[outermost]
        same = outermost == "dp" and candidate.dp_shard == 1
        permitted = request.permits(replace(candidate, outermost=outermost))
        if outermost != candidate.outermost and moved > 1 and not same and permitted:
            yield outermost


def placed(pricer: Pricer, priced: Sequence[Priced]) -> list[Priced]:
    """The fastest of these layouts with their axes in the order that is best for each; the others as they are."""
    ordered = sorted(priced, key=lambda p: p.score)
    return [_best_order(pricer, each) for each in ordered[:TRIED]] + ordered[TRIED:]


def _best_order(pricer: Pricer, priced: Priced) -> Priced:
    best = priced
    for outermost in other_orders(pricer.request, priced.candidate):
        candidate = replace(priced.candidate, outermost=outermost)
        step = pricer.predict(candidate)
        if step.seconds < best.seconds:
            best = replace(priced, candidate=candidate, seconds=step.seconds)
    return best
