"""Schedules with one stage a rank and whole backwards: naive, GPipe, 1F1B. P stages, M microbatches."""

from collections.abc import Iterator, Sequence

from fourfold.program.schedule.compute import BACKWARD, FORWARD, Compute, Orders


def naive(pp_rank: int, num_stages: int, num_microbatches: int) -> Iterator[Compute]:
    """One microbatch at a time, forward through every stage and back: bubble (P-1)/P, one live activation."""
    for m in range(num_microbatches):
        yield Compute(FORWARD, pp_rank, m)
        yield Compute(BACKWARD, pp_rank, m)


def gpipe(pp_rank: int, num_stages: int, num_microbatches: int) -> Iterator[Compute]:
    """GPipe (Huang et al. 2018): every forward, then every backward: bubble (P-1)/(P-1+M), M live activations.
    Backwards go in the order of the forwards, so that gradients add up in the order of 1F1B."""
    for op in (FORWARD, BACKWARD):
        for m in range(num_microbatches):
            yield Compute(op, pp_rank, m)


def one_f_one_b(pp_rank: int, num_stages: int, num_microbatches: int) -> Iterator[Compute]:
    """1F1B (Narayanan et al. 2019): forwards until the pipeline is full, then one forward and one backward in turn.
    With one stage: forward and backward of each microbatch in turn, which is plain gradient accumulation.
    Bubble (P-1)/(P-1+M), min(P - rank, M) live activations."""
    warmup = min(num_stages - pp_rank - 1, num_microbatches)
    for m in range(warmup):
        yield Compute(FORWARD, pp_rank, m)
    for m in range(num_microbatches - warmup):
        yield Compute(FORWARD, pp_rank, warmup + m)
        yield Compute(BACKWARD, pp_rank, m)
    for m in range(num_microbatches - warmup, num_microbatches):
        yield Compute(BACKWARD, pp_rank, m)


def forward_only(pp_rank: int, num_microbatches: int) -> Iterator[Compute]:
    """Evaluation with one stage a rank: every microbatch forward."""
    for m in range(num_microbatches):
        yield Compute(FORWARD, pp_rank, m)


def forward_orders(stage_ranks: Sequence[int], num_microbatches: int) -> Orders:
    """Evaluation, whatever the placement: the order of every rank. In groups of P microbatches a rank takes its stages in
    turn, each through the whole group; all ranks follow the one order (group, stage, microbatch), so none can deadlock."""
    num_ranks = max(stage_ranks) + 1
    orders: list[list[Compute]] = [[] for _ in range(num_ranks)]
    for first in range(0, num_microbatches, num_ranks):
        for stage, rank in enumerate(stage_ranks):
            group = range(first, min(first + num_ranks, num_microbatches))
            orders[rank] += [Compute(FORWARD, stage, m) for m in group]
    return tuple(map(tuple, orders))
