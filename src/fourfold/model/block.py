"""A decoder block, pre-norm, forward and backward: the attention half, then the feed-forward half; and an MTP module around one."""

from fourfold.model.attention import grouped_backward, grouped_forward
from fourfold.model.environment import Environment, Microbatch, Saved
from fourfold.model.experts.balance import Balancing
from fourfold.model.experts.feed_forward import routed_backward, routed_forward
from fourfold.model.experts.parts import Parts, run_through
from fourfold.model.feed_forward import gated_backward, gated_forward, plain_backward, plain_forward
from fourfold.model.mla import mla_backward, mla_forward
from fourfold.model.multi_token import combine_backward, combine_forward
from fourfold.model.operations import Array
from fourfold.model.own.segment import own_backward, own_forward
from fourfold.model.weights import (
    BlockWeights,
    FeedForwardWeights,
    MLAWeights,
    ModuleWeights,
    OwnWeights,
    PlainFeedForwardWeights,
)

BlockKinds = BlockWeights | ModuleWeights | OwnWeights


def block_forward(
    env: Environment,
    x: Array,
    w: BlockKinds,
    batch: Microbatch,
    saved: Saved,
    balancing: Balancing | None = None,
    depth: int = 0,
) -> Array:
    """x [t, hidden] -> [t, hidden]: a microbatch laid flat, or this rank's part of its tokens under sequence parallelism. An
    MTP module of `depth` k, from 1: x [k t, hidden] -> [(k + 1) t, hidden].

    `balancing`: what a router reads and records; None: nothing beside its weights.
    """
    return run_through(block_forward_parts(env, x, w, batch, saved, balancing, depth))


def block_forward_parts(
    env: Environment,
    x: Array,
    w: BlockKinds,
    batch: Microbatch,
    saved: Saved,
    balancing: Balancing | None = None,
    depth: int = 0,
) -> Parts:
    """`block_forward`, which pauses where its experts' all-to-alls are ready to start."""
    if isinstance(w, OwnWeights):
        return own_forward(env, x, w, batch, saved)
    if isinstance(w, ModuleWeights):
        combined = combine_forward(env, x, w, batch, depth, saved)
        out = yield from block_forward_parts(env, combined, w.block, batch, saved, balancing)
        saved.keep(combined=combined)
        del combined
        with env.ops.fused():
            return env.ops.concatenate((x, out))
    is_mla = isinstance(w.attention, MLAWeights)
    half = mla_forward if is_mla else grouped_forward
    attended = half(env, x, w.attention, batch, saved)  # type: ignore[arg-type]
    if isinstance(w.feed_forward, FeedForwardWeights):
        return gated_forward(env, attended, w.feed_forward, saved, x)
    if isinstance(w.feed_forward, PlainFeedForwardWeights):
        return plain_forward(env, attended, w.feed_forward, saved, x)
    balancing = balancing or _no_balancing(env, batch)
    return (yield from routed_forward(env, attended, w.feed_forward, balancing, saved, x))


def block_backward(
    env: Environment,
    grad: Array,
    x: Array,
    w: BlockKinds,
    batch: Microbatch,
    saved: Saved,
    balancing: Balancing | None = None,
    depth: int = 0,
) -> Array:
    """The gradient of `x`, the block's input, from that of its output; adds the weights' gradients, at once or, where they are
    matmuls and `deferring`, later. Empties `saved`."""
    return run_through(block_backward_parts(env, grad, x, w, batch, saved, balancing, depth))


def block_backward_parts(
    env: Environment,
    grad: Array,
    x: Array,
    w: BlockKinds,
    batch: Microbatch,
    saved: Saved,
    balancing: Balancing | None = None,
    depth: int = 0,
) -> Parts:
    """`block_backward`, which pauses where its experts' all-to-alls are ready to start."""
    if isinstance(w, OwnWeights):
        return own_backward(env, grad, w, batch, saved)
    if isinstance(w, ModuleWeights):
        rows = x.shape[0]
        combined = saved.take("combined")
        inner = yield from block_backward_parts(env, grad[rows:], combined, w.block, batch, saved, balancing)
        given = [inner, grad[:rows]]
        del combined, inner
        return combine_backward(env, given, x, w, batch, depth, saved)
    if isinstance(w.feed_forward, FeedForwardWeights):
        grad = gated_backward(env, grad, w.feed_forward, saved)
    elif isinstance(w.feed_forward, PlainFeedForwardWeights):
        grad = plain_backward(env, grad, w.feed_forward, saved)
    else:
        grad = yield from routed_backward(env, grad, w.feed_forward, balancing or _no_balancing(env, batch), saved)
    is_mla = isinstance(w.attention, MLAWeights)
    half = mla_backward if is_mla else grouped_backward
    return half(env, grad, x, w.attention, batch, saved)  # type: ignore[arg-type]


def _no_balancing(env: Environment, batch: Microbatch) -> Balancing:
    """Balancing as if the microbatch were the full global batch, and its sequences run_through on the ranks of `tp`."""
    sequences, length = batch.tokens.shape
    tp = env.parallel.tp
    return Balancing(sequences, length, sequences, () if tp is None else (tp,))
