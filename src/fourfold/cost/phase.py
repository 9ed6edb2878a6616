"""How long one pass over a segment takes: kernels one after the other, collectives beside them where the operators say so."""

from dataclasses import dataclass, field

from fourfold.cost.prices import Prices
from fourfold.model.work import Attention, Join, Pass, Phase, Product, Start

KINDS = {Product: "matrix products", Attention: "attention", Pass: "passes over memory"}


@dataclass(frozen=True)
class PhaseCost:
    """`seconds` from start to end. `busy`: of kernels, by kind. `communication`: of its collectives by axes, overlapped or not;
    `exposed`: of that, what kernels did not hide. `host`: what a slow host adds."""

    seconds: float
    busy: dict[str, float] = field(default_factory=dict)
    communication: dict[str, float] = field(default_factory=dict)
    exposed: float = 0.0
    host: float = 0.0


def phase_cost(phase: Phase, prices: Prices) -> PhaseCost:
    """One pass over a segment on one microbatch."""
    stack = prices.stack
    now = exposed = 0.0
    launches = starts = 0.0
    busy: dict[str, float] = {}
    communication: dict[str, float] = {}
    links: dict[str, float] = {}
    pending: dict[str, float] = {}
    for item in phase.work:
        if isinstance(item, Start):
            axes = item.traffic.axes
            seconds = prices.collective(item.traffic.kind, axes, item.traffic.bytes)
            communication[axes] = communication.get(axes, 0.0) + seconds
            end = max(now, links.get(axes, 0.0)) + seconds
            links[axes] = pending[item.name] = end
            starts += 1
            if not stack.overlap_inside:
                exposed, now = exposed + end - now, end
        elif isinstance(item, Join):
            end = pending.pop(item.name)
            if end > now:
                exposed, now = exposed + end - now, end
        else:
            seconds = prices.kernel(item)
            if pending:
                beside = max(pending.values()) - now
                seconds += stack.contention * max(0.0, min(seconds, beside))
            kind = KINDS[type(item)]
            busy[kind] = busy.get(kind, 0.0) + seconds
            launches += _launches(item, prices.kernels.fused)
            now += seconds
    end = max(pending.values(), default=now)
    if end > now:
        exposed, now = exposed + end - now, end
    host = launches * stack.host_launch_seconds + starts * stack.host_collective_seconds
    return PhaseCost(max(now, host), busy, communication, exposed, max(0.0, host - now))


def _launches(item: Product | Attention | Pass, fused: float) -> float:
    if not isinstance(item, Pass) or not item.launches:
        return 1.0 if not isinstance(item, Pass) else 0.0
    return 1 + (1 - fused) * (item.launches - 1)
