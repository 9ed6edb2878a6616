"""Zero-bubble schedules with one stage a rank: backward apart into its input half (I) and its weight half (W)."""

from collections.abc import Iterator

from fourfold.program.schedule.compute import BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, Compute, Kind, numbered


def zb_h1(pp_rank: int, num_stages: int, num_microbatches: int) -> Iterator[Compute]:
    """ZB-H1 (Qi et al. 2023): 1F1B whose weight halves wait, so that no rank holds more than P activations.

    Bubble time (P-1)(F+I-W) against 1F1B's (P-1)(F+I+W): a third of it where F = I = W.
    """
    warmup = num_stages - pp_rank
    return numbered(_kinds(pp_rank, warmup, num_stages, num_microbatches), num_microbatches)


def zb_h2(pp_rank: int, num_stages: int, num_microbatches: int) -> Iterator[Compute]:
    """ZB-H2 (Qi et al. 2023): enough forwards to fill the time until the first gradient comes, for 2P - 1 activations.

    From a rank's first entry to its last it idles (P-1)(F+I-2W): not at all where F = I = W and M >= 2P - 1. Rank r starts
    r forwards after rank 0 and ends that much later: the paper hides this offset behind the next step, by an optimizer
    step that does not wait for all ranks. With one that waits, as here, the offset is idle time of the step.
    """
    warmup, most = 2 * (num_stages - pp_rank) - 1, 2 * num_stages - 1
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
