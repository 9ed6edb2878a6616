"""Schedules on a V: rank r holds stages r and 2P - 1 - r, so that the first and last stage share rank 0."""

from collections.abc import Iterator

from fourfold.program.schedule.compute import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    Compute,
    Kind,
    numbered,
)
from fourfold.program.schedule.record import Idle, Schedule, by_rank, v_placement
from fourfold.program.schedule.zero_bubble import first_activation_alone


def zb_v(pp_rank: int, num_ranks: int, virtual_stages: int, num_microbatches: int) -> Iterator[Compute]:
    """Where F = I = W and M >= 2P - 1 no rank idles from its first entry to its last. 2P activations of half a rank's layers."""
    return numbered(_zb_v(pp_rank, num_ranks, num_microbatches), num_microbatches)


def _zb_v(r: int, num_ranks: int, num_microbatches: int) -> Iterator[Kind]:
    """F, I, W of the way down (0) and of the way back (1)."""
    f0, i0, w0 = _ops(r)
    f1, i1, w1 = _ops(2 * num_ranks - 1 - r)
    after = num_ranks - r - 1
    steady = max(num_microbatches, 2 * num_ranks - 1) - 2 * num_ranks + r + 1
    yield from [f0] * (2 * after + 1)
    yield from [f1, f0] * r
    yield from [f1, i1, w1] * (after + 1)
    yield from [f0, i0, w0, f1, i1, w1] * steady
    yield from [i0, w0, f1, i1, w1] * after
    yield from [i0, i1] * r
    yield from [i0, w0] * (after + 1)
    yield from [w1] * r
    yield from [w0] * r


def dualpipe_v(pp_rank: int, num_ranks: int, virtual_stages: int, num_microbatches: int) -> Iterator[Compute]:
    """Every forward of one way stands beside a backward of the other, so that a runtime can hide the one's communication
    behind the other's arithmetic. Here they are neighbours, one after the other.

    Idle (P-1)(FB + B - 3W), FB the time of such a pair, B = I + W, and 2P + 1 activations of half a rank's layers.
    """
    return numbered(_dualpipe_v(pp_rank, num_ranks, num_microbatches), num_microbatches)


def _dualpipe_v(r: int, num_ranks: int, num_microbatches: int) -> Iterator[Kind]:
    """Full backwards where gradients arrive in time; I and W apart while the pipeline fills and drains."""
    first, last = r, 2 * num_ranks - 1 - r
    f0, i0, _ = _ops(first)
    f1, i1, w1 = _ops(last)
    b0, b1 = (BACKWARD, first), (BACKWARD, last)
    after = num_ranks - r - 1
    steady = max(num_microbatches, 2 * num_ranks) - 2 * num_ranks + r + 1
    draining_input = ([i1, i0] * (r + 1))[r + 1 :] + [i0] * after
    draining_weight = [(BACKWARD_WEIGHT, stage) for _, stage in draining_input]
    yield from [f0] * (2 * after)
    yield from [f0, f1] * (r + 1)
    yield from [i1, w1, f1] * after
    yield from [f0, b1, f1, b0] * steady
    yield from [b1, f1, b0] * after
    yield from ([b1, b0] * (r + 1))[: r + 1]
    yield from draining_input[: r + 1]
    for weight_half, input_half in zip(draining_weight, draining_input[r + 1 :], strict=False):
        yield weight_half
        yield input_half
    yield from draining_weight[after:]


def _ops(stage: int) -> tuple[Kind, Kind, Kind]:
    return (FORWARD, stage), (BACKWARD_INPUT, stage), (BACKWARD_WEIGHT, stage)


ZB_V = Schedule(
    name="zb_v",
    summary="Zero bubble on a V, at the memory of 1F1B.",
    paper="Qi et al. 2024",
    orders=by_rank(zb_v),
    placement=v_placement,
    min_virtual_stages=2,
    max_virtual_stages=2,
    splits_backward=True,
    steady_rounds=3,
    in_flight=lambda P, v, M: min(M, P),
    least_idle=Idle(1, 0),
    bubble=first_activation_alone,
    searched=True,
    names={"torch": "ZBVZeroBubble"},
)

DUALPIPE_V = Schedule(
    name="dualpipe_v",
    summary="DualPipe cut in half: a forward beside a backward in the steady state, on a V.",
    paper="DeepSeek-AI 2025",
    orders=by_rank(dualpipe_v),
    placement=v_placement,
    min_virtual_stages=2,
    max_virtual_stages=2,
    splits_backward=True,
    pairs_passes=True,
    steady_rounds=4,
    in_flight=lambda P, v, M: min(M, P),
    least_idle=Idle(1, 0),
    searched=True,
    names={"torch": "DualPipeV"},
)
