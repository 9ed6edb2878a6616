"""Tokens to the ranks of their experts and back, without drops or with a capacity: sort, exchange counts, exchange rows.

A *pair* is a token and one of its experts, numbered token x top_k + slot. Pairs sorted by expert are sorted by rank too, as rank
r of `ep` has the r-th part of the experts. Symbols: N tokens, k = top_k, s pairs sent, m rows received.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import ceil

from fourfold.model.experts.router import Choice, Routing
from fourfold.model.operations import Array, Groups, Operations
from fourfold.model.parallel import Group, Pending


@dataclass(frozen=True)
class Route:
    """Where every row goes. `pairs` [s]: the pair of each row sent; `places` [N, k]: the row of each pair, s where it was dropped;
    `order` [m]: for each row sorted by expert the row received (None: they arrive sorted); `groups`: the sorted rows' experts."""

    ops: Operations
    pairs: Array
    places: Array
    order: Array | None
    groups: Groups
    sent_rows: tuple[int, ...]
    received_rows: tuple[int, ...]
    ep: Group | None

    @property
    def drops(self) -> bool:
        """Whether some pairs were dropped."""
        return len(self.pairs) < self.places.numel()


class Transfer:
    """Rows on their way. Their source stays allocated until they have arrived."""

    def __init__(self, work: Pending | None, sent: Array, received: Array, finish: Callable[[Array], Array]) -> None:
        self._work, self._sent, self._received, self._finish = work, sent, received, finish

    def wait(self) -> Array:
        """The rows in their final order. To be called once."""
        if self._work is not None:
            self._work.wait()
        received = self._received
        del self._work, self._sent, self._received
        return self._finish(received)


def keep_within_capacity(ops: Operations, choice: Choice, routing: Routing) -> Array:
    """The experts [n, top_k] of a rank's n tokens, `num_experts` (none) where an expert already has
    ceil(capacity_factor x top_k x n / num_experts) tokens before, by position (Lepikhin et al. 2020, algorithm 1)."""
    if routing.capacity_factor is None:
        return choice.experts
    with ops.fused():
        return _kept(ops, choice, routing, routing.capacity_factor)


def _kept(ops: Operations, choice: Choice, routing: Routing, capacity_factor: float) -> Array:
    flat = choice.experts.view(-1)
    capacity = ceil(capacity_factor * flat.numel() / routing.num_experts)
    by_expert = flat.argsort(stable=True)
    counts = _count(flat, routing.num_experts)
    starts = counts.cumsum(0) - counts
    experts = ops.take(flat, by_expert)
    place = ops.arange(0, flat.numel(), flat) - ops.take(starts, experts)
    kept = ops.where(place < capacity, experts, routing.num_experts)
    return flat.new_empty(flat.shape).scatter_(0, by_expert, kept).view_as(choice.experts)


def _count(experts: Array, number: int) -> Array:
    """How often each of `number` experts occurs: experts [pairs] -> [number]."""
    return experts.new_zeros((number,)).scatter_add_(0, experts, experts.new_ones(experts.shape))


def plan_route(ops: Operations, experts: Array, num_experts: int, ep: Group | None, all_kept: bool = False) -> Route:
    """The route of N tokens' pairs. experts [N, k]; `num_experts` stands for none, of which there is none where `all_kept`.
    Exchanges the counts over `ep`; without other ranks, and with all pairs kept, the host learns nothing of the choice."""
    if ep is None and all_kept:
        return _local_route(ops, experts, num_experts)
    flat = experts.view(-1)
    ranks = ep.size if ep is not None else 1
    with ops.fused():
        counts = _count(flat, num_experts + 1)[:num_experts].view(ranks, -1)
    incoming = counts
    if ep is not None:
        incoming = counts.new_empty(counts.shape)
        ep.all_to_all(incoming, counts).wait()
    local = incoming.shape[1]
    with ops.fused():
        totals = ops.concatenate((counts.sum(1), incoming.sum(1), incoming.sum(0)))
    sent, received, sizes = ops.host_counts(totals, (ranks, ranks, local), flat.numel())
    with ops.fused():
        pairs = flat.argsort(stable=True)[: sum(sent)]
        places = flat.new_full(flat.shape, sum(sent))
        ops.put(places, pairs, ops.arange(0, sum(sent), flat))
        order = _local_order(ops, incoming, sum(received)) if ranks > 1 and local > 1 else None
        groups = Groups(sizes, incoming.sum(0).cumsum(0).to(ops.int32))
    return Route(ops, pairs, places.view_as(experts), order, groups, sent, received, ep)


def _local_route(ops: Operations, experts: Array, num_experts: int) -> Route:
    """The route of pairs that all stay on this rank: as many rows as pairs, whatever was chosen."""
    flat = experts.view(-1)
    rows = flat.numel()
    with ops.fused():
        ends = _count(flat, num_experts).cumsum(0).to(ops.int32)
        pairs = flat.argsort(stable=True)
        places = flat.new_empty(flat.shape)
        ops.put(places, pairs, ops.arange(0, rows, flat))
    groups = Groups(partial(ops.host_sizes, rows=rows), ends)
    return Route(ops, pairs, places.view_as(experts), None, groups, (rows,), (rows,), None)


def _local_order(ops: Operations, incoming: Array, rows: int) -> Array:
    """Received rows come by rank, then expert; sorts them by expert, then rank. incoming [ranks, local experts] -> [m]."""
    ranks, local = incoming.shape
    experts = ops.arange(0, local, incoming).expand(ranks, local).reshape(-1)
    return ops.repeat(experts, incoming.view(-1), rows).argsort(stable=True)


def dispatch(route: Route, tokens: Array) -> Transfer:
    """Each token's row to each of its experts: tokens [N, ...] -> [m, ...], sorted by expert."""
    with route.ops.fused("sent" if route.ep is not None else ""):
        rows = route.ops.take(tokens, route.pairs // route.places.shape[1])
    return _send(route, rows)


def dispatch_pairs(route: Route, values: Array) -> Transfer:
    """One value a pair: values [N, k] -> [m], sorted by expert."""
    with route.ops.fused("sent" if route.ep is not None else ""):
        rows = route.ops.take(values.reshape(-1), route.pairs)
    return _send(route, rows)


def combine(route: Route, rows: list[Array]) -> Transfer:
    """Sums each token's rows where it came from: [m, hidden], sorted by expert, taken out of the list -> [N, hidden]."""
    dropped = len(route.pairs) if route.drops else None

    def add(back: Array) -> Array:
        with route.ops.fused("sent" if route.ep is not None else ""):
            return route.ops.sum_rows(route.places, back, dropped)

    return _return(route, rows, add)


def combine_pairs(route: Route, values: Array) -> Transfer:
    """One value a pair, 0 where it was dropped: [m], sorted by expert -> [N, k]."""

    def spread(back: Array) -> Array:
        with route.ops.fused():
            if route.drops:
                back[len(route.pairs) :].zero_()
            return route.ops.take(back, route.places)

    return _return(route, [values], spread)


def _send(route: Route, rows: Array) -> Transfer:
    if route.ep is None:
        return Transfer(None, rows, rows, lambda received: received)
    received = rows.new_empty((sum(route.received_rows), *rows.shape[1:]))
    work = route.ep.all_to_all(received, rows, route.received_rows, route.sent_rows)

    def sort(there: Array) -> Array:
        if route.order is None:
            return there
        with route.ops.fused("sorted"):
            return route.ops.take(there, route.order)

    return Transfer(work, rows, received, sort)


def _return(route: Route, given: list[Array], finish: Callable[[Array], Array]) -> Transfer:
    """The way back, with one row more where dropped pairs need something to point at."""
    rows = given.pop()
    if route.ep is None and not route.drops:
        return Transfer(None, rows, rows, finish)
    sent = len(route.pairs)
    back = rows.new_empty((sent + route.drops, *rows.shape[1:]))
    if route.ep is None:
        back[:sent].copy_(rows)
        return Transfer(None, rows, back, finish)
    if route.order is not None:
        with route.ops.fused("sorted"):
            unsorted = rows.new_empty(rows.shape)
            route.ops.put(unsorted, route.order, rows)
        rows = unsorted
        del unsorted
    work = route.ep.all_to_all(back[:sent], rows, route.sent_rows, route.received_rows)
    return Transfer(work, rows, back, finish)
