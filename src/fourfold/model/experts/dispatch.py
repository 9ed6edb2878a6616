"""Tokens to the ranks of their experts and back, without drops or with a capacity: sort, exchange counts, exchange rows.

A *pair* is a token and one of its experts, numbered token x top_k + slot. Pairs sorted by expert are sorted by rank too, as rank
r of `ep` has the r-th part of the experts. Symbols: N tokens, k = top_k, s pairs sent, m rows received.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

import torch
import torch.nn.functional as F
from torch import Tensor

from fourfold.config import ModelConfig
from fourfold.model.experts.grouped import Groups
from fourfold.model.experts.router import Choice
from fourfold.model.parallel import Group, Work
from fourfold.model.tensor_parallel import Arriving


@dataclass(frozen=True)
class Route:
    """Where every row goes. `pairs` [s]: the pair of each row sent; `places` [N, k]: the row of each pair, s where it was dropped;
    `order` [m]: for each row sorted by expert the row received (None: they arrive sorted); `groups`: the sorted rows' experts."""

    pairs: Tensor
    places: Tensor
    order: Tensor | None
    groups: Groups
    sent_rows: tuple[int, ...]
    received_rows: tuple[int, ...]
    ep: Group | None

    @property
    def drops(self) -> bool:
        """Whether some pairs were dropped."""
        return len(self.pairs) < self.places.numel()


class Transfer:
    """Rows on their way. What they are copied from lives until they have arrived."""

    def __init__(self, work: Work | None, sent: Tensor, received: Tensor, finish: Callable[[Tensor], Tensor]) -> None:
        self._work, self._sent, self._received, self._finish = work, sent, received, finish

    def wait(self) -> Tensor:
        """The rows in their final order. To be called once."""
        if self._work is not None:
            self._work.wait()
        received = self._received
        del self._work, self._sent, self._received
        return self._finish(received)


def keep_within_capacity(choice: Choice, model: ModelConfig) -> Tensor:
    """The experts [n, top_k] of a rank's n tokens, `num_experts` (none) where an expert already has
    ceil(capacity_factor x top_k x n / num_experts) tokens before, by position (Lepikhin et al. 2020, algorithm 1)."""
    if model.capacity_factor is None:
        return choice.experts
    capacity = ceil(model.capacity_factor * choice.experts.numel() / model.num_experts)
    flat = choice.experts.view(-1)
    by_expert = flat.argsort(stable=True)
    counts = flat.new_zeros(model.num_experts).scatter_add_(0, flat, torch.ones_like(flat))
    starts = counts.cumsum(0) - counts
    experts = flat[by_expert]
    place = torch.arange(len(flat), device=flat.device) - starts[experts]
    kept = torch.where(place < capacity, experts, model.num_experts)
    return torch.empty_like(flat).scatter_(0, by_expert, kept).view_as(choice.experts)


def plan_route(experts: Tensor, num_experts: int, ep: Group | None) -> Route:
    """The route of N tokens' pairs. experts [N, k]; `num_experts` stands for none. Exchanges the counts over `ep`."""
    flat = experts.view(-1)
    counts = flat.new_zeros(num_experts + 1).scatter_add_(0, flat, torch.ones_like(flat))[:num_experts].contiguous()
    ranks = ep.size if ep is not None else 1
    incoming = counts.view(ranks, -1)
    if ep is not None:
        incoming = torch.empty_like(incoming)
        ep.all_to_all(incoming, counts.view(ranks, -1)).wait()
    totals = torch.cat((counts.view(ranks, -1).sum(1), incoming.sum(1), incoming.sum(0)))
    sums = totals.tolist()  # waits for the device, once
    sent, received, sizes = sums[:ranks], sums[ranks : 2 * ranks], sums[2 * ranks :]
    pairs = flat.argsort(stable=True)[: sum(sent)]
    places = torch.full_like(flat, sum(sent))
    places[pairs] = torch.arange(sum(sent), device=flat.device)
    order = _local_order(incoming, sum(received)) if ranks > 1 and incoming.shape[1] > 1 else None
    groups = Groups(tuple(sizes), incoming.sum(0).cumsum(0).to(torch.int32))
    return Route(pairs, places.view_as(experts), order, groups, tuple(sent), tuple(received), ep)


def _local_order(incoming: Tensor, rows: int) -> Tensor:
    """Received rows come by rank, then expert; sorts them by expert, then rank. incoming [ranks, local experts] -> [m]."""
    experts = torch.arange(incoming.shape[1], device=incoming.device).repeat(incoming.shape[0])
    return experts.repeat_interleave(incoming.view(-1), output_size=rows).argsort(stable=True)


def dispatch(route: Route, tokens: Tensor) -> Transfer:
    """Each token's row to each of its experts: tokens [N, ...] -> [m, ...], sorted by expert."""
    return _send(route, tokens[route.pairs // route.places.shape[1]])


def dispatch_pairs(route: Route, values: Tensor) -> Transfer:
    """One value a pair: values [N, k] -> [m], sorted by expert."""
    return _send(route, values.reshape(-1)[route.pairs])


def combine(route: Route, rows: Tensor) -> Transfer:
    """Sums each token's rows where it came from: [m, hidden], sorted by expert -> [N, hidden]."""
    dropped = len(route.pairs) if route.drops else None
    return _return(route, rows, lambda back: F.embedding_bag(route.places, back, mode="sum", padding_idx=dropped))


def combine_pairs(route: Route, values: Tensor) -> Transfer:
    """One value a pair, 0 where it was dropped: [m], sorted by expert -> [N, k]."""

    def spread(back: Tensor) -> Tensor:
        back[len(route.pairs) :] = 0
        return back[route.places]

    return _return(route, values, spread)


def _send(route: Route, rows: Tensor) -> Transfer:
    if route.ep is None:
        return Transfer(None, rows, rows, lambda received: received)
    received = rows.new_empty((sum(route.received_rows), *rows.shape[1:]))
    work = route.ep.all_to_all(received, rows, route.received_rows, route.sent_rows)
    return Transfer(work, rows, received, lambda there: there if route.order is None else there[route.order])


def _return(route: Route, rows: Tensor, finish: Callable[[Tensor], Tensor]) -> Transfer:
    """The way back, with one row more where dropped pairs need something to point at."""
    if route.ep is None and not route.drops:
        return Transfer(None, rows, rows, finish)
    sent = len(route.pairs)
    back = rows.new_empty((sent + route.drops, *rows.shape[1:]))
    if route.ep is None:
        back[:sent] = rows
        return Transfer(None, rows, back, finish)
    if route.order is not None:
        rows = torch.empty_like(rows).index_copy_(0, route.order, rows)
    work = route.ep.all_to_all(back[:sent], rows, route.sent_rows, route.received_rows)
    return Transfer(work, rows, back, finish)


def gather_over(x: Tensor, group: Group | None) -> Arriving:
    """Starts bringing every rank's rows together: [n, ...] -> [size x n, ...]; x itself without a group."""
    if group is None:
        return Arriving(x)
    whole = x.new_empty((group.size * x.shape[0], *x.shape[1:]))
    return Arriving(whole, group.all_gather(whole, x))


def scatter_over(x: Tensor, group: Group | None) -> Arriving:
    """Starts summing every rank's rows and leaving each its own: [size x n, ...] -> [n, ...]; x itself without a group."""
    if group is None:
        return Arriving(x)
    part = x.new_empty((x.shape[0] // group.size, *x.shape[1:]))
    return Arriving(part, group.sum_scatter(x, part))
