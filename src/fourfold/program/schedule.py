"""Schedules: the compute order of one pipeline rank, and nothing else. Everything after that is lowering."""

from collections.abc import Iterator
from typing import NamedTuple

from fourfold.program.instruction import Op


class Compute(NamedTuple):
    """Forward or backward of one stage on one microbatch."""

    op: Op
    stage: int
    microbatch: int


def one_f_one_b(pp_rank: int, num_stages: int, num_microbatches: int) -> Iterator[Compute]:
    """1F1B (Narayanan et al. 2019): forwards until the pipeline is full, then one forward and one backward in turn.
    With one stage: forward and backward of each microbatch in turn, which is plain gradient accumulation."""
    warmup = min(num_stages - pp_rank - 1, num_microbatches)
    for m in range(warmup):
        yield Compute(Op.FORWARD, pp_rank, m)
    for m in range(num_microbatches - warmup):
        yield Compute(Op.FORWARD, pp_rank, warmup + m)
        yield Compute(Op.BACKWARD, pp_rank, m)
    for m in range(num_microbatches - warmup, num_microbatches):
        yield Compute(Op.BACKWARD, pp_rank, m)


def forward_only(pp_rank: int, num_microbatches: int) -> Iterator[Compute]:
    """Evaluation: every microbatch forward."""
    for m in range(num_microbatches):
        yield Compute(Op.FORWARD, pp_rank, m)
