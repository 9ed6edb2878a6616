"""Runs compute orders on paper: every entry starts as soon as its rank is free and what it needs is there."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import itemgetter

from fourfold.program.instruction import Op
from fourfold.program.schedule.compute import Compute
from fourfold.program.schedule.times import StageTimes


@dataclass(frozen=True)
class Execution:
    """`starts` and `ends` of the entries of every rank, as far as they could run: to the end unless the orders deadlock."""

    starts: list[list[float]]
    ends: list[list[float]]

    @property
    def makespan(self) -> float:
        return max((ends[-1] for ends in self.ends if ends), default=0.0)


def needs(compute: Compute, num_stages: int) -> list[Compute]:
    """Computations that must come before: F needs F of the stage before; B and I their own F, and the gradient of the stage after
    (from B or I, here I); W its own I."""
    op, stage, m = compute
    if op is Op.FORWARD:
        return [Compute(Op.FORWARD, stage - 1, m)] if stage else []
    if op is Op.BACKWARD_WEIGHT:
        return [Compute(Op.BACKWARD_INPUT, stage, m)]
    own = [Compute(Op.FORWARD, stage, m)]
    return [*own, Compute(Op.BACKWARD_INPUT, stage + 1, m)] if stage + 1 < num_stages else own


def execute(orders: Sequence[Sequence[Compute]], stage_ranks: Sequence[int], times: StageTimes) -> Execution:
    """As-soon-as-possible times; in time linear in the number of entries."""
    num_stages = len(stage_ranks)
    row = 1 + max((max(map(itemgetter(2), order)) for order in orders if order), default=0)
    gradients, last = num_stages * row, num_stages - 1
    done: list[float | None] = [None] * (2 * gradients)
    late = [*(times.transfer if a != b else 0.0 for a, b in pairwise(stage_ranks)), 0.0]
    forward, input_gradient, weight_gradient = times.forward, times.input_gradient, times.weight_gradient
    backward = times.durations()[Op.BACKWARD]
    starts: list[list[float]] = [[] for _ in orders]
    ends: list[list[float]] = [[] for _ in orders]
    waiting: dict[int, list[int]] = {}
    runnable = list(range(len(orders)))
    while runnable:
        rank = runnable.pop()
        order, rank_starts, rank_ends = orders[rank], starts[rank], ends[rank]
        free = rank_ends[-1] if rank_ends else 0.0
        for index in range(len(rank_starts), len(order)):
            op, stage, m = order[index]
            at = stage * row + m
            if op is Op.FORWARD:
                out, need, crossing, duration = at, at - row, late[stage - 1], forward[stage]
            elif op is Op.BACKWARD_WEIGHT:
                out, need, crossing, duration = -1, gradients + at, 0.0, weight_gradient[stage]
            else:  # the gradient of the stage after follows this stage's own F, which need not be looked at then
                out, crossing = gradients + at, late[stage]
                need = at if stage == last else out + row
                duration = input_gradient[stage] if op is Op.BACKWARD_INPUT else backward[stage]
            start = free
            if need >= 0:
                arrived = done[need]
                if arrived is None:
                    waiting.setdefault(need, []).append(rank)
                    break
                if arrived + crossing > free:
                    start = arrived + crossing
            free = start + duration
            rank_starts.append(start)
            rank_ends.append(free)
            if out >= 0:
                done[out] = free
                if out in waiting:
                    runnable += waiting.pop(out)
    return Execution(starts, ends)


def live_activations(orders: Sequence[Sequence[Compute]], times: StageTimes) -> tuple[tuple[float, ...], ...]:
    """The activations that are live while each entry runs, in the units of `times`. A rank runs one entry at a time, so the order
    alone gives them. A microbatch's activations of a stage live from the start of F to the end of B; or to the end of I but for
    `weight_activations`, and these to the end of W."""
    changes = times.activation_changes()
    rows = []
    for order in orders:
        after = accumulate(changes[op][stage] for op, stage, _ in order)
        rows.append(tuple(max(pair) for pair in pairwise((0.0, *after))))
    return tuple(rows)


def peak_activations(orders: Sequence[Sequence[Compute]], times: StageTimes) -> tuple[float, ...]:
    """The most live activations of every rank, as `live_activations` counts them."""
    return tuple(max(row, default=0.0) for row in live_activations(orders, times))
