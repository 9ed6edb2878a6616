"""A block of a model: a layer, an MTP module around one, or a person's own; forward and backward."""

from typing import Any

from fourfold.model.environment import Environment, Microbatch, Saved
from fourfold.model.experts.balance import Balancing
from fourfold.model.experts.parts import Parts, run_through
from fourfold.model.kinds.kind import Pass
from fourfold.model.multi_token import combine_backward, combine_forward
from fourfold.model.operations import Array
from fourfold.model.own.segment import own_backward, own_forward
from fourfold.model.spec import Segment


def block_forward(
    segment: Segment,
    env: Environment,
    x: Array,
    w: Any,
    batch: Microbatch,
    saved: Saved,
    balancing: Balancing | None = None,
) -> Array:
    """x [t, hidden] -> [t, hidden]: a microbatch laid flat, or this rank's part of its tokens under sequence parallelism. An
    MTP module of `depth` k, from 1: x [k t, hidden] -> [(k + 1) t, hidden].

    `w`: the segment's weights (`bind_weights`). `balancing`: what a router reads and records; None: nothing beside its weights.
    """
    return run_through(block_forward_parts(segment, env, x, w, batch, saved, balancing))


def block_forward_parts(
    segment: Segment,
    env: Environment,
    x: Array,
    w: Any,
    batch: Microbatch,
    saved: Saved,
    balancing: Balancing | None = None,
) -> Parts:
    """`block_forward`, which pauses where its experts' all-to-alls are ready to start."""
    layer = segment.layer_kind
    if layer is None:
        return own_forward(env, x, w, batch, saved)
    run = Pass(env, batch, saved, balancing)
    if not segment.depth:
        return (yield from layer.forward(run, x, w))
    combined = combine_forward(env, x, w, batch, segment.depth, saved)
    out = yield from layer.forward(run, combined, w.block)
    saved.keep(combined=combined)
    del combined
    with env.ops.fused():
        return env.ops.concatenate((x, out))


def block_backward(
    segment: Segment,
    env: Environment,
    grad: Array,
    x: Array,
    w: Any,
    batch: Microbatch,
    saved: Saved,
    balancing: Balancing | None = None,
) -> Array:
    """The gradient of `x`, the block's input, from that of its output; adds the weights' gradients, at once or, where they are
    matmuls and `deferring`, later. Empties `saved`."""
    return run_through(block_backward_parts(segment, env, grad, x, w, batch, saved, balancing))


def block_backward_parts(
    segment: Segment,
    env: Environment,
    grad: Array,
    x: Array,
    w: Any,
    batch: Microbatch,
    saved: Saved,
    balancing: Balancing | None = None,
) -> Parts:
    """`block_backward`, which pauses where its experts' all-to-alls are ready to start."""
    layer = segment.layer_kind
    if layer is None:
        return own_backward(env, grad, w, batch, saved)
    run = Pass(env, batch, saved, balancing)
    if not segment.depth:
        return (yield from layer.backward(run, grad, x, w))
    rows = x.shape[0]
    combined = saved.take("combined")
    inner = yield from layer.backward(run, grad[rows:], combined, w.block)
    given = [inner, grad[:rows]]
    del combined, inner
    return combine_backward(env, given, x, w, batch, segment.depth, saved)
