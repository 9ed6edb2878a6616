"""The record of a schedule: what every other part of fourfold knows about it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from fourfold.program.schedule.compute import Compute, Orders
from fourfold.program.schedule.times import StageTimes

RankOrder = Callable[[int, int, int, int], Iterable[Compute]]
"""(pp_rank, P, v, M) -> the compute order of one rank."""
MemoryLimit = float | Sequence[float] | None
AllOrders = Callable[[int, int, int, StageTimes | None, MemoryLimit], Orders]
"""(P, v, M, times, memory_limit) -> the compute order of every rank."""


class Idle(NamedTuple):
    """Idle time of a rank: P - 1 times `forward` F + `backward` B - `weight` W, but never less than P - 1 times `forward` F,
    with F, B and W the times of one stage."""

    forward: float
    backward: float
    weight: float = 0.0


_BOTH_PASSES = Idle(1, 1)


def loop_placement(num_ranks: int, virtual_stages: int) -> tuple[int, ...]:
    """Stage s on rank s mod P (Narayanan et al. 2021)."""
    return tuple(stage % num_ranks for stage in range(num_ranks * virtual_stages))


def v_placement(num_ranks: int, virtual_stages: int = 2) -> tuple[int, ...]:
    """Stage s < P on rank s, stage s >= P on rank 2P - 1 - s: down and back up (Qi et al. 2024)."""
    return (*range(num_ranks), *reversed(range(num_ranks)))


def by_rank(order: RankOrder) -> AllOrders:
    """All orders from a function that gives one rank's and needs no times. Keeps the last sizes asked for."""

    def orders(
        num_ranks: int, virtual_stages: int, num_microbatches: int, times: StageTimes | None, limit: MemoryLimit
    ) -> Orders:
        return _kept_orders(order, num_ranks, virtual_stages, num_microbatches)

    return orders


@lru_cache(maxsize=32)
def _kept_orders(order: RankOrder, num_ranks: int, virtual_stages: int, num_microbatches: int) -> Orders:
    return tuple(tuple(order(rank, num_ranks, virtual_stages, num_microbatches)) for rank in range(num_ranks))


def _one_microbatch(num_ranks: int, virtual_stages: int, num_microbatches: float) -> float:
    return min(1, num_microbatches)


def _no_formula(num_ranks: int, virtual_stages: int, num_microbatches: int) -> Fraction | None:
    return None


@dataclass(frozen=True, eq=False)
class Schedule:
    """P pipeline ranks, v stages a rank, M microbatches.

    `name`: the value of `layout.schedule`. `summary`: one sentence. `paper`: authors and year.
    `orders`: the compute order of every rank; `by_rank` makes it from a function of one rank.
    `placement`: (P, v) -> the rank of every stage.
    `min_virtual_stages`, `max_virtual_stages`: the stages that a rank may have; None: any number.
    `check_size`: raises `UserError` for (P, v, M) that the schedule cannot do. Left out: it takes any number of microbatches.
    `splits_backward`: input gradients and weight gradients are entries of their own.
    `pairs_passes`: the steady state is a forward of one microbatch beside a backward of another.
    `needs_times`: the orders depend on how long the stages take.
    `steady_rounds`: after so many rounds of P microbatches, each further round adds the same time and the same memory
    (measured on whole steps). None: the schedule need not repeat itself.
    `in_flight`: (P, v, M) -> microbatches whose activations the fullest rank holds at least.
    `least_idle`: the idle time that no rank avoids.
    `bubble`: (P, v, M) -> idle time over all time of all ranks for F = I = W and B = 2F; None where no formula holds.
    `searched`: the planner tries it.
    `names`: what other software calls it: `megatron`, `deepspeed`, and `torch` (torch.distributed.pipelining).
    """

    name: str
    summary: str
    paper: str
    orders: AllOrders
    placement: Callable[[int, int], tuple[int, ...]] = loop_placement
    min_virtual_stages: int = 1
    max_virtual_stages: int | None = None
    check_size: Callable[[int, int, int], object] | None = None
    splits_backward: bool = False
    pairs_passes: bool = False
    needs_times: bool = False
    steady_rounds: int | None = 2
    in_flight: Callable[[int, int, float], float] = _one_microbatch
    least_idle: Idle = _BOTH_PASSES
    bubble: Callable[[int, int, int], Fraction | None] = _no_formula
    searched: bool = False
    names: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_v(self) -> bool:
        """Whether the first rank holds the first stage and the last."""
        return self.placement is v_placement

    def takes(self, virtual_stages: int) -> bool:
        """Whether a rank may have this many stages."""
        most = self.max_virtual_stages
        return self.min_virtual_stages <= virtual_stages and (most is None or virtual_stages <= most)
