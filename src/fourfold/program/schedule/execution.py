"""Runs compute orders on paper: every entry starts as soon as its rank is free and what it needs is there."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import TypeVar

from fourfold.program.instruction import Op
from fourfold.program.schedule.compute import Compute
from fourfold.program.schedule.times import StageTimes

T = TypeVar("T")


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


def forms_of(need: Compute) -> tuple[Compute, ...]:
    """The computations that give what a need asks for: of an input gradient the full backward too."""
    return (need, need._replace(op=Op.BACKWARD)) if need.op is Op.BACKWARD_INPUT else (need,)


def walk(turns: Sequence[T], go: Callable[[T], bool]) -> None:
    """Lets the ranks of a pipeline go on, one after the other and each until it must wait for others, to when none can. `turns`: of
    a round, every rank in one or more. `go`: whether the rank moved."""
    while sum([go(rank) for rank in turns]):
        pass


def execute(orders: Sequence[Sequence[Compute]], stage_ranks: Sequence[int], times: StageTimes) -> Execution:
    """Times when all begins as soon as it can."""
    num_stages = len(stage_ranks)
    row = 1 + max((max(map(itemgetter(2), order)) for order in orders if order), default=0)
    gradients, last = num_stages * row, num_stages - 1
    done: list[float | None] = [None] * (2 * gradients)
    late = [*(times.transfer if a != b else 0.0 for a, b in pairwise(stage_ranks)), 0.0]
    forward, input_gradient, weight_gradient = times.forward, times.input_gradient, times.weight_gradient
    backward = times.durations()[Op.BACKWARD]
    forward_op, input_op, weight_op = Op.FORWARD, Op.BACKWARD_INPUT, Op.BACKWARD_WEIGHT
    starts: list[list[float]] = [[] for _ in orders]
    ends: list[list[float]] = [[] for _ in orders]

    def go(rank: int) -> bool:
        order, rank_starts, rank_ends = orders[rank], starts[rank], ends[rank]
        free, begun = rank_ends[-1] if rank_ends else 0.0, len(rank_starts)
        for index in range(begun, len(order)):
            op, stage, m = order[index]
            at = stage * row + m
            if op is forward_op:
                out, need, crossing, duration = at, at - row, late[stage - 1], forward[stage]
            elif op is weight_op:
                out, need, crossing, duration = -1, gradients + at, 0.0, weight_gradient[stage]
            else:  # the gradient of the stage after follows this stage's own F, which need not be looked at then
                out, crossing = gradients + at, late[stage]
                need = at if stage == last else out + row
                duration = input_gradient[stage] if op is input_op else backward[stage]
            start = free
            if need >= 0:
                arrived = done[need]
                if arrived is None:
                    break
                if arrived + crossing > free:
                    start = arrived + crossing
            free = start + duration
            rank_starts.append(start)
            rank_ends.append(free)
            if out >= 0:
                done[out] = free
        return len(rank_starts) > begun

    there = range(len(orders))  # as activations go, and back as gradients do: few rounds, whatever the orders
    walk([*there, *reversed(there)], go)
    return Execution(starts, ends)


def activation_levels(orders: Sequence[Sequence[Compute]], times: StageTimes) -> list[list[float]]:
    """The activations that a rank holds before its first entry, between its entries, and after the last, in the units of `times`.
    A rank runs one entry at a time, so the order alone gives them. A microbatch's activations of a stage live from the start of F
    to the end of B; or to the end of I but for `weight_activations`, and these to the end of W."""
    changes = times.activation_changes()
    return [[0.0, *accumulate([changes[op][stage] for op, stage, _ in order])] for order in orders]


def live_activations(levels: Sequence[float]) -> list[float]:
    """The activations that are live while each entry of a rank runs, from its `activation_levels`."""
    return list(map(max, levels, levels[1:]))


def peak_activations(orders: Sequence[Sequence[Compute]], times: StageTimes) -> tuple[float, ...]:
    """The most live activations of every rank."""
    return tuple(map(max, activation_levels(orders, times)))
