"""Interleaved 1F1B: several stages a rank, stage s on rank s mod P."""

from collections.abc import Iterator
from fractions import Fraction

from fourfold.program.schedule.compute import BACKWARD, FORWARD, Compute, Kind, numbered
from fourfold.program.schedule.record import Schedule, by_rank


def interleaved_one_f_one_b(
    pp_rank: int, num_ranks: int, virtual_stages: int, num_microbatches: int
) -> Iterator[Compute]:
    """P microbatches through a rank's first stage, the same P through its second, and so on; backward likewise from the last.

    2(P - rank - 1) + (v - 1)P forwards of warm-up, then one forward and one backward in turn. One more live activation than
    the warm-up has forwards, or vM if that is fewer. Where P does not divide M the last group is ragged: it stands in the
    order where a full group would.
    """
    return numbered(_kinds(pp_rank, num_ranks, virtual_stages, num_microbatches), num_microbatches)


def _kinds(pp_rank: int, num_ranks: int, virtual_stages: int, num_microbatches: int) -> Iterator[Kind]:
    groups = -(-num_microbatches // num_ranks)
    stages = [pp_rank + chunk * num_ranks for chunk in range(virtual_stages)]
    forwards = [(FORWARD, stage) for stage in stages for _ in range(num_ranks)] * groups
    backwards = [(BACKWARD, stage) for stage in reversed(stages) for _ in range(num_ranks)] * groups
    warmup = min(2 * (num_ranks - pp_rank - 1) + (virtual_stages - 1) * num_ranks, len(forwards))
    yield from forwards[:warmup]
    for forward, backward in zip(forwards[warmup:], backwards, strict=False):
        yield forward
        yield backward
    yield from backwards[len(backwards) - warmup :]


def _in_flight(num_ranks: int, virtual_stages: int, num_microbatches: float) -> float:
    """The first rank's warm-up and one more: a group through every stage, and P - 1 of the next group through the first."""
    if num_microbatches <= num_ranks:
        return num_microbatches
    return num_ranks * (1 + min(num_ranks - 1, num_microbatches - num_ranks) / (num_ranks * virtual_stages))


INTERLEAVED = Schedule(
    name="interleaved_1f1b",
    summary="1F1B over several stages a rank: 1 / v of its bubble, more transfers and activations.",
    paper="Narayanan et al. 2021",
    orders=by_rank(interleaved_one_f_one_b),
    min_virtual_stages=2,
    steady_rounds=4,
    in_flight=_in_flight,
    bubble=lambda P, v, M: Fraction(P - 1, P - 1 + v * M) if M % P == 0 else None,
    searched=True,
    names={"megatron": "interleaved 1F1B", "torch": "Interleaved1F1B"},
)
