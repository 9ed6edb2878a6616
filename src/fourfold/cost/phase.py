"""How long one pass over a segment takes: kernels one after the other, collectives beside them where the operators say so."""

from dataclasses import dataclass, field, replace
from functools import lru_cache

from fourfold.cost.kernels import launches
from fourfold.cost.prices import OVERLAPPED_SHARE, Prices
from fourfold.model.work import Attention, Elementwise, Gemm, HostCopy, Item, Join, Start, Work

KINDS = {Gemm: "matmuls", Attention: "attention", Elementwise: "memory-bound kernels"}


@dataclass(frozen=True)
class PhaseCost:
    """`seconds` from start to end. `busy`: of kernels, by kind. `communication`: of its collectives by axes, overlapped or not;
    `exposed`: of that, what kernels did not hide; `network`: of that too, while the device's port to the network is full. `host`:
    what a slow host adds, where passes are all that is known of it; `issue`: seconds in which the host issues the pass."""

    seconds: float
    busy: dict[str, float] = field(default_factory=dict)
    communication: dict[str, float] = field(default_factory=dict)
    exposed: float = 0.0
    host: float = 0.0
    network: float = 0.0
    issue: float = 0.0

    def delay(self, beside: float) -> float:
        """Seconds that the pass takes longer while collectives started before it hold the network for another `beside` seconds:
        both progress at half their speed, and as much of the delay shows as of the pass's own communication."""
        if not self.network or not self.exposed:
            return 0.0
        return min(self.network, beside) * self.exposed / sum(self.communication.values())


def phase_cost(phase: Work, prices: Prices) -> PhaseCost:
    """One pass over a segment on one microbatch. Dispatch that runs beside another microbatch's pass (`Prices.paired_share`)
    finds there as much computation as this pass has, on average of the two."""
    software = prices.software
    now = exposed = 0.0
    started = host = network = 0.0
    busy: dict[str, float] = {}
    communication: dict[str, float] = {}
    links: dict[str, float] = {}
    pending: dict[str, float] = {}
    beside_pair = 0.0
    for place, item in enumerate(phase.items):
        if isinstance(item, Start):
            axes = item.collective.axes
            seconds = prices.collective(item.collective.kind, axes, item.collective.bytes)
            communication[axes] = communication.get(axes, 0.0) + seconds
            network += prices.network(item.collective.kind, axes, item.collective.bytes)
            if axes == "ep" and prices.paired_share:
                beside_pair += prices.paired_share * seconds
                seconds *= 1 - prices.paired_share
            elif axes == "tp" and software.overlap_tensor:
                seconds -= OVERLAPPED_SHARE * min(seconds, _matmul_beside(phase.items, place, prices))
            end = max(now, links.get(axes, 0.0)) + seconds
            links[axes] = pending[item.name] = end
            host += prices.host(axes)
            if not software.overlap_inside:
                exposed, now = exposed + end - now, end
        elif isinstance(item, Join):
            end = pending.pop(item.name)
            if end > now:
                exposed, now = exposed + end - now, end
        elif not isinstance(item, HostCopy):  # passes have none: copies are instructions of their own
            seconds = prices.kernel(item)
            if pending:
                beside = max(pending.values()) - now
                seconds += software.contention * max(0.0, min(seconds, beside))
            kind = KINDS[type(item)]
            busy[kind] = busy.get(kind, 0.0) + seconds
            started += launches(item, prices.kernels)
            now += seconds
    end = max(pending.values(), default=now)
    if end > now:
        exposed, now = exposed + end - now, end
    if beside_pair:
        lost = software.contention * min(now, beside_pair)
        end = max(now + lost, beside_pair)
        exposed, now = exposed + end - now, end
    host += started * software.host_launch_seconds
    if software.host_route_seconds and is_routed(phase):
        host += software.host_route_seconds
    if software.host_gather_seconds and prices.layout.zero == 3:
        host += software.host_gather_seconds * num_modules(phase)
    least = 0.0 if software.host_instruction_seconds else host
    return PhaseCost(max(now, least), busy, communication, exposed, max(0.0, least - now), network, host)


def _matmul_beside(items: tuple[Item, ...], place: int, prices: Prices) -> float:
    """Seconds of the matmul that waits for the all-gather at a place, or for which the reduce-scatter there waits: parts of both
    run at once (Wang et al. 2023, "Overlap communication with dependent computation via decomposition"). 0 where other kernels run
    beside the collective already, or nothing is multiplied."""
    start = items[place]
    if not isinstance(start, Start) or items[place + 1 : place + 2] != (Join(start.name),):
        return 0.0
    near = {"all_gather": items[place + 2 : place + 4], "reduce_scatter": items[max(0, place - 1) : place]}
    found = near.get(start.collective.kind, ())
    return max((prices.kernel(each) for each in found if isinstance(each, Gemm)), default=0.0)


def num_modules(phase: Work) -> int:
    """Number of modules with weights that a pass goes through: one for each matmul; weight gradients belong to one of those."""
    return sum(isinstance(item, Gemm) and not item.accumulates for item in phase.items)


def is_routed(phase: Work) -> bool:
    """Whether tokens go to experts in it; weight gradients apart find them there."""
    return any(
        (isinstance(item, Gemm) and item.groups > 1 and not item.accumulates)
        or (isinstance(item, Start) and item.collective.axes in ("ep", "etp"))
        for item in phase.items
    )


@lru_cache(maxsize=512)
def unchunked(work: Work) -> Work:
    """Work chunk by chunk over its tokens, as on all of them at once: matmuls of the same matrix, elementwise kernels and
    collectives that are joined at once and repeat are each one."""
    kept: dict[object, Item] = {}
    items = iter(enumerate(work.items))
    for index, item in items:
        if isinstance(item, Gemm):
            _join_into(
                kept, (item.columns, item.rows if item.accumulates else item.inner, item.accumulates, item.batch), item
            )
        elif isinstance(item, Elementwise):
            _join_into(kept, ("elementwise", item.launches, item.part), item)
        elif isinstance(item, Start) and work.items[index + 1 : index + 2] == (Join(item.name),):
            next(items)
            _join_into(kept, ("at once", item.collective.kind, item.collective.axes), item)
        else:
            kept[index] = item
    result: list[Item] = []
    for key, item in kept.items():
        result.append(item)
        if isinstance(item, Start) and isinstance(key, tuple):
            result.append(Join(item.name))
    return Work(tuple(result))


def _join_into(kept: dict[object, Item], key: object, item: Item) -> None:
    before = kept.get(key)
    if isinstance(before, Gemm) and isinstance(item, Gemm):
        rows, inner = (0, item.inner) if item.accumulates else (item.rows, 0)
        kept[key] = replace(before, rows=before.rows + rows, inner=before.inner + inner)
    elif isinstance(before, Elementwise) and isinstance(item, Elementwise):
        kept[key] = replace(before, bytes=before.bytes + item.bytes, least_bytes=before.least_bytes + item.least_bytes)
    elif isinstance(before, Start) and isinstance(item, Start):
        size = before.collective.bytes + item.collective.bytes
        kept[key] = replace(before, collective=replace(before.collective, bytes=size))
    else:
        kept[key] = item
