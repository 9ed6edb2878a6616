"""Local search over compute orders: exchanges on the critical path, as in job-shop scheduling (Nowicki & Smutnicki 1996)."""

from collections.abc import Iterator, Sequence

from fourfold.program.instruction import Op
from fourfold.program.schedule.compute import Compute, Kind, Orders, numbered
from fourfold.program.schedule.execution import Execution, execute, needs, peak_activations
from fourfold.program.schedule.times import StageTimes

_TABU = 7
"""For so many moves a rank's order that was just left is not taken again."""
_STALE = 60
"""So many moves without a shorter step end the search."""

_REACH = 3
"""An entry on the critical path goes at most so many places forward in one move."""

Kinds = tuple[Kind, ...]


def improve(
    orders: Orders,
    stage_ranks: Sequence[int],
    times: StageTimes,
    limits: Sequence[float],
    bound: float,
    budget: int,
) -> Orders:
    """A tabu search from `orders`: each move takes the best neighbour, be it worse, that fits in the limits.

    Ends at a makespan of `bound`, after `budget` orders were timed, or when nothing got better for long. Only whose turn it
    is on a rank changes, and every stage takes its microbatches in turn: with microbatches alike no other numbering is better.
    """
    num_microbatches = 1 + max(entry.microbatch for order in orders for entry in order)
    best = current = orders
    run = execute(current, stage_ranks, times)
    shortest, stale = run.makespan, 0
    recent: list[tuple[int, Kinds]] = []
    while shortest > bound and budget > 0 and stale < _STALE:
        found: tuple[float, int, Kinds, Orders, Execution] | None = None
        for rank, kinds in _neighbours(current, stage_ranks, times, run):
            if budget <= 0:
                break
            if (rank, kinds) in recent:
                continue
            order = tuple(numbered(kinds, num_microbatches))
            if peak_activations([order], times)[0] > limits[rank]:
                continue
            orders = (*current[:rank], order, *current[rank + 1 :])
            tried = execute(orders, stage_ranks, times)
            budget -= 1
            if all(len(e) == len(o) for e, o in zip(tried.ends, orders, strict=True)) and (
                found is None or tried.makespan < found[0]
            ):
                found = tried.makespan, rank, kinds, orders, tried
        if found is None:
            break
        makespan, rank, _, neighbour, next_run = found
        recent = [*recent, (rank, _kinds(current[rank]))][-_TABU:]
        current, run = neighbour, next_run
        stale += 1
        if makespan < shortest:
            best, shortest, stale = current, makespan, 0
    return best


def _kinds(order: Sequence[Compute]) -> Kinds:
    return tuple((op, stage) for op, stage, _ in order)


def _neighbours(
    orders: Orders, stage_ranks: Sequence[int], times: StageTimes, run: Execution
) -> Iterator[tuple[int, Kinds]]:
    """An entry on the critical path moves before those just before it on its rank; a W moves to the next gaps of its rank, and
    to the end."""
    for rank, index in _critical(orders, stage_ranks, times, run):
        kinds = _kinds(orders[rank])
        for reach in range(1, min(_REACH, index) + 1):
            first = index - reach
            if _depends(orders[rank], first, index, len(stage_ranks)):
                break
            if kinds[first] != kinds[index]:
                yield rank, (*kinds[:first], kinds[index], *kinds[first:index], *kinds[index + 1 :])
        if kinds[index][0] is Op.BACKWARD_WEIGHT:
            for place in _gaps(run, rank, index):
                yield rank, (*kinds[:index], *kinds[index + 1 : place], kinds[index], *kinds[place:])


def _depends(order: Sequence[Compute], first: int, second: int, num_stages: int) -> bool:
    """Whether the second entry needs the first, be that a full backward or an I."""
    before = order[first]
    before = before._replace(op=Op.BACKWARD_INPUT) if before.op is Op.BACKWARD else before
    return before in needs(order[second], num_stages)


def _gaps(run: Execution, rank: int, index: int) -> list[int]:
    """Positions after `index` + 1 before which the rank idles: the first two; and the end."""
    starts, ends = run.starts[rank], run.ends[rank]
    gaps = [i for i in range(index + 2, len(starts)) if starts[i] > ends[i - 1]]
    return [*gaps[:2], len(starts)]


def _critical(
    orders: Orders, stage_ranks: Sequence[int], times: StageTimes, run: Execution
) -> Iterator[tuple[int, int]]:
    """(rank, index) of the entries of one longest path, from its end to its start."""
    place = {entry: (rank, index) for rank, order in enumerate(orders) for index, entry in enumerate(order)}
    rank = max(range(len(orders)), key=lambda r: run.ends[r][-1] if run.ends[r] else 0.0)
    at: tuple[int, int] | None = (rank, len(orders[rank]) - 1)
    while at is not None:
        yield at
        at = _cause(at, orders, stage_ranks, times, run, place)


def _cause(
    at: tuple[int, int],
    orders: Orders,
    stage_ranks: Sequence[int],
    times: StageTimes,
    run: Execution,
    place: dict[Compute, tuple[int, int]],
) -> tuple[int, int] | None:
    """The entry that ended, or arrived, just when this one started: one of its own rank if there is such, else one it needs."""
    rank, index = at
    start = run.starts[rank][index]
    if index and run.ends[rank][index - 1] == start:
        return rank, index - 1
    for need in needs(orders[rank][index], len(stage_ranks)):
        found = place.get(need) or place[need._replace(op=Op.BACKWARD)]
        if run.ends[found[0]][found[1]] + (times.transfer if found[0] != rank else 0.0) == start:
            return found
    return None
