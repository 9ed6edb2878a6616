"""Breadth-first pipelines: several stages a rank, stage s on rank s mod P; a stage runs all microbatches before the next one."""

from collections.abc import Iterator
from fractions import Fraction

from fourfold.program.schedule.compute import BACKWARD, FORWARD, Compute
from fourfold.program.schedule.record import Schedule, by_rank


def breadth_first(pp_rank: int, num_ranks: int, virtual_stages: int, num_microbatches: int) -> Iterator[Compute]:
    """Every forward of a rank's first stage, of its second, and so on; then every backward from its last stage to its first.

    vM live activations. Backwards go in the order of the forwards, so that gradients add up in the order of 1F1B.
    """
    stages = range(pp_rank, num_ranks * virtual_stages, num_ranks)
    for op, in_turn in ((FORWARD, stages), (BACKWARD, reversed(stages))):
        for stage in in_turn:
            for m in range(num_microbatches):
                yield Compute(op, stage, m)


def _bubble(num_ranks: int, virtual_stages: int, num_microbatches: int) -> Fraction:
    """(P-1)/(P-1+vM) where M >= P. With fewer microbatches, each comes back to a rank's next stage after P forwards, not M."""
    busy = virtual_stages * num_microbatches
    step = (virtual_stages - 1) * max(num_ranks, num_microbatches) + num_microbatches + num_ranks - 1
    return Fraction(step - busy, step)


BREADTH_FIRST = Schedule(
    name="breadth_first",
    summary="GPipe over several stages a rank: the bubble of interleaved 1F1B for any M >= P; each rank holds all microbatches.",
    paper="Lamy-Poirier 2022",
    orders=by_rank(breadth_first),
    min_virtual_stages=2,
    steady_rounds=8,
    in_flight=lambda P, v, M: M,
    bubble=_bubble,
    names={"torch": "LoopedBFS"},
)
