"""Schedules with one stage a rank and full backwards: naive, GPipe, 1F1B."""

from collections.abc import Iterator
from fractions import Fraction

from fourfold.program.schedule.compute import BACKWARD, FORWARD, Compute
from fourfold.program.schedule.record import Schedule, by_rank


def naive(pp_rank: int, num_ranks: int, virtual_stages: int, num_microbatches: int) -> Iterator[Compute]:
    """Forward and backward of each microbatch in turn: one live activation."""
    for m in range(num_microbatches):
        yield Compute(FORWARD, pp_rank, m)
        yield Compute(BACKWARD, pp_rank, m)


def gpipe(pp_rank: int, num_ranks: int, virtual_stages: int, num_microbatches: int) -> Iterator[Compute]:
    """M live activations. Backwards go in the order of the forwards, so that gradients add up in the order of 1F1B."""
    for op in (FORWARD, BACKWARD):
        for m in range(num_microbatches):
            yield Compute(op, pp_rank, m)


def one_f_one_b(pp_rank: int, num_ranks: int, virtual_stages: int, num_microbatches: int) -> Iterator[Compute]:
    """min(P - rank - 1, M) forwards of warm-up, then one forward and one backward in turn; min(P - rank, M) live activations.
    On one rank: forward and backward of each microbatch in turn, which is plain gradient accumulation."""
    warmup = min(num_ranks - pp_rank - 1, num_microbatches)
    for m in range(warmup):
        yield Compute(FORWARD, pp_rank, m)
    for m in range(num_microbatches - warmup):
        yield Compute(FORWARD, pp_rank, warmup + m)
        yield Compute(BACKWARD, pp_rank, m)
    for m in range(num_microbatches - warmup, num_microbatches):
        yield Compute(BACKWARD, pp_rank, m)


NAIVE = Schedule(
    name="naive",
    summary="One microbatch at a time, forward through every stage and back.",
    paper="Huang et al. 2018, figure 2b",
    orders=by_rank(naive),
    max_virtual_stages=1,
    bubble=lambda P, v, M: Fraction(P - 1, P),
)

GPIPE = Schedule(
    name="gpipe",
    summary="Every forward, then every backward: each rank holds all microbatches.",
    paper="Huang et al. 2018",
    orders=by_rank(gpipe),
    max_virtual_stages=1,
    steady_rounds=8,
    in_flight=lambda P, v, M: M,
    bubble=lambda P, v, M: Fraction(P - 1, P - 1 + M),
    names={"torch": "GPipe"},
)

ONE_F_ONE_B = Schedule(
    name="1f1b",
    summary="Forwards until the pipeline is full, then one forward and one backward in turn.",
    paper="Narayanan et al. 2019",
    orders=by_rank(one_f_one_b),
    max_virtual_stages=1,
    in_flight=lambda P, v, M: min(M, P),
    bubble=lambda P, v, M: Fraction(P - 1, P - 1 + M),
    searched=True,
    names={"megatron": "1F1B", "torch": "1F1B", "deepspeed": "1F1B"},
)
