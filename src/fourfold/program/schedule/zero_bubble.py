"""Zero-bubble schedules with one stage a rank: the backward split into its input half (I) and its weight half (W)."""

from collections.abc import Iterator
from fractions import Fraction

from fourfold.program.schedule.compute import BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, Compute, Kind, numbered
from fourfold.program.schedule.record import Idle, Schedule, by_rank


def zb_h1(pp_rank: int, num_ranks: int, virtual_stages: int, num_microbatches: int) -> Iterator[Compute]:
    """Bubble time (P-1)(F+I-W) against 1F1B's (P-1)(F+I+W): a third of it where F = I = W."""
    warmup = num_ranks - pp_rank
    return numbered(_kinds(pp_rank, warmup, num_ranks, num_microbatches), num_microbatches)


def zb_h2(pp_rank: int, num_ranks: int, virtual_stages: int, num_microbatches: int) -> Iterator[Compute]:
    """From a rank's first entry to its last it idles (P-1)(F+I-2W): not at all where F = I = W and M >= 2P - 1. Rank r starts
    r forwards after rank 0 and ends that much later: the paper hides this offset behind the next step, by an optimizer
    step that does not wait for all ranks. With one that waits, as here, the offset is idle time of the step.
    """
    warmup, most = 2 * (num_ranks - pp_rank) - 1, 2 * num_ranks - 1
    return numbered(_kinds(pp_rank, warmup, most, num_microbatches), num_microbatches)


def _kinds(stage: int, warmup: int, most: int, num_microbatches: int) -> Iterator[Kind]:
    """`warmup` forwards before the first I; weight halves wait until `most` activations are live."""
    forward, input_half, weight_half = (FORWARD, stage), (BACKWARD_INPUT, stage), (BACKWARD_WEIGHT, stage)
    delay, steady = most - warmup, max(num_microbatches, most) - most
    yield from [forward] * warmup
    yield from [input_half, forward] * delay
    yield from [input_half, weight_half, forward] * steady
    yield from [input_half, weight_half] * warmup
    yield from [weight_half] * delay


def first_activation_alone(num_ranks: int, virtual_stages: int, num_microbatches: int) -> Fraction | None:
    """The least bubble of any order: where M >= 2P - 1, every rank waits for P - 1 forwards of a stage and never again."""
    if num_microbatches < 2 * num_ranks - 1:
        return None
    return Fraction(num_ranks - 1, num_ranks - 1 + 3 * virtual_stages * num_microbatches)


ZB_H1 = Schedule(
    name="zb_h1",
    summary="1F1B whose weight halves wait: a third of its bubble, no rank holds more than P activations.",
    paper="Qi et al. 2023",
    orders=by_rank(zb_h1),
    max_virtual_stages=1,
    splits_backward=True,
    in_flight=lambda P, v, M: min(M, P),
    least_idle=Idle(1, 1, 2),
    bubble=first_activation_alone,
    searched=True,
)

ZB_H2 = Schedule(
    name="zb_h2",
    summary="Forwards until the first gradient comes: no bubble between first and last entry, 2P - 1 activations.",
    paper="Qi et al. 2023",
    orders=by_rank(zb_h2),
    max_virtual_stages=1,
    splits_backward=True,
    steady_rounds=4,
    in_flight=lambda P, v, M: min(M, 2 * P - 1),
    least_idle=Idle(1, 0),
    bubble=first_activation_alone,
    searched=True,
)
