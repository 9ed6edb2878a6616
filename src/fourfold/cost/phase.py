"""How long one pass over a segment takes: kernels one after the other, collectives beside them where the operators say so."""

from dataclasses import dataclass, field, replace
from functools import lru_cache

from fourfold.cost.kernels import launches
from fourfold.cost.prices import Prices
from fourfold.model.work import Attention, Join, Pass, Phase, Product, Start, Work

AT_ONCE = "at once"
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
    """One pass over a segment on one microbatch. What goes to experts beside another microbatch's pass (`Prices.paired_share`)
    finds there as much computation as this pass has, on average of the two."""
    stack = prices.stack
    now = exposed = 0.0
    started = host = 0.0
    busy: dict[str, float] = {}
    communication: dict[str, float] = {}
    links: dict[str, float] = {}
    pending: dict[str, float] = {}
    beside_pair = 0.0
    for item in phase.work:
        if isinstance(item, Start):
            axes = item.traffic.axes
            seconds = prices.collective(item.traffic.kind, axes, item.traffic.bytes)
            communication[axes] = communication.get(axes, 0.0) + seconds
            if axes == "ep" and prices.paired_share:
                beside_pair += prices.paired_share * seconds
                seconds *= 1 - prices.paired_share
            end = max(now, links.get(axes, 0.0)) + seconds
            links[axes] = pending[item.name] = end
            host += prices.host(axes)
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
            started += launches(item, prices.kernels)
            now += seconds
    end = max(pending.values(), default=now)
    if end > now:
        exposed, now = exposed + end - now, end
    if beside_pair:
        lost = stack.contention * min(now, beside_pair)
        end = max(now + lost, beside_pair)
        exposed, now = exposed + end - now, end
    host += started * stack.host_launch_seconds
    if stack.host_route_seconds and is_routed(phase):
        host += stack.host_route_seconds
    return PhaseCost(max(now, host), busy, communication, exposed, max(0.0, host - now))


def is_routed(phase: Phase) -> bool:
    """Whether tokens go to experts in it; weight gradients apart find them there."""
    return any(
        (isinstance(item, Product) and item.groups > 1 and not item.accumulates)
        or (isinstance(item, Start) and item.traffic.axes in ("ep", "etp"))
        for item in phase.work
    )


@lru_cache(maxsize=512)
def whole(phase: Phase) -> Phase:
    """A pass that works chunk by chunk over its tokens, as one that takes all of them at once: products of the same matrix, passes
    and collectives that repeat are each one."""
    kept: dict[object, Work] = {}
    for index, item in enumerate(phase.work):
        if isinstance(item, Product):
            _join_into(kept, (item.columns, item.rows if item.accumulates else item.inner, item.accumulates), item)
        elif isinstance(item, Pass):
            _join_into(kept, ("pass", item.launches, item.part), item)
        elif isinstance(item, Start) and item.name == AT_ONCE:
            _join_into(kept, item.traffic.kind, item)
        elif not isinstance(item, Join) or item.name != AT_ONCE:
            kept[index] = item
    work: list[Work] = []
    for item in kept.values():
        work.append(item)
        if isinstance(item, Start) and item.name == AT_ONCE:
            work.append(Join(AT_ONCE))
    return Phase(tuple(work))


def _join_into(kept: dict[object, Work], key: object, item: Work) -> None:
    before = kept.get(key)
    if isinstance(before, Product) and isinstance(item, Product):
        rows, inner = (0, item.inner) if item.accumulates else (item.rows, 0)
        kept[key] = replace(before, rows=before.rows + rows, inner=before.inner + inner)
    elif isinstance(before, Pass) and isinstance(item, Pass):
        kept[key] = replace(before, bytes=before.bytes + item.bytes, least_bytes=before.least_bytes + item.least_bytes)
    elif isinstance(before, Start) and isinstance(item, Start):
        kept[key] = replace(before, traffic=replace(before.traffic, bytes=before.traffic.bytes + item.traffic.bytes))
    else:
        kept[key] = item
