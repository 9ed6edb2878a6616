"""A short causal convolution of every channel over the tokens of a document (depthwise), and its gradients.

    out_t = sum over lags l < kernel of taps_(kernel - 1 - l) x_(t - l)

Tokens before a document count as zero. Where a sequence is split over ranks, each of its stretches on a rank stands as a row of
its own, behind the few tokens in front of it, which another rank has (`context/recurrence.py`).

Shapes: x [rows, seq, G, c], taps [kernel, G, c], padded [rows, kernel - 1 + seq, G, c]; positions [rows, seq] say where each token
stands in its document, None where a sequence is one. Taps and `padded` are in the accumulation format."""

from fourfold.model.context.recurrence import halo, halo_backward, stretches
from fourfold.model.environment import Environment, Microbatch
from fourfold.model.operations import Array, Operations
from fourfold.model.parallel import Parallel


def positions_of(batch: Microbatch, parallel: Parallel) -> Array | None:
    """The positions of the tokens that this rank has, in rows."""
    found = batch.positions
    return None if found is None else found.view(found.shape[0] * stretches(parallel), -1)


def in_front(env: Environment, x: Array, kernel: int) -> Array | None:
    """The tokens before each row, [rows, kernel - 1, G, c]; None where there are none. All ranks of context parallelism call it
    together."""
    return None if env.parallel.context is None or kernel == 1 else halo(env, x, kernel - 1)


def padded(ops: Operations, x: Array, front: Array | None, kernel: int) -> Array:
    """x behind the tokens before it, or behind zeros."""
    rows, tokens, *rest = x.shape
    reach = kernel - 1
    out = x.new_empty((rows, reach + tokens, *rest), dtype=ops.accumulation_dtype(x))
    if front is None:
        out[:, :reach].zero_()
    else:
        out[:, :reach].copy_(front)
    out[:, reach:].copy_(x)
    return out


def convolve(ops: Operations, behind: Array, taps: Array, positions: Array | None) -> Array:
    """[rows, seq, G, c]. `behind`: as `padded` gives it."""
    reach = taps.shape[0] - 1
    tokens = behind.shape[1] - reach
    out = behind[:, reach:] * taps[reach]
    for lag in range(1, reach + 1):
        seen = _within(behind[:, reach - lag : reach - lag + tokens], positions, lag)
        out.addcmul_(seen, taps[reach - lag])
        del seen
    return out


def convolve_backward(
    ops: Operations, grad: Array, behind: Array, taps: Array, positions: Array | None
) -> tuple[Array, Array]:
    """grad [rows, seq, G, c] of what `convolve` gave -> gradients of what `padded` gave, and of the taps."""
    tokens, reach = grad.shape[1], taps.shape[0] - 1
    d_behind, d_taps = behind.new_zeros(behind.shape), taps.new_empty(taps.shape)
    for lag in range(reach + 1):
        span = slice(reach - lag, reach - lag + tokens)
        masked = grad if lag == 0 else _within(grad, positions, lag)
        d_taps[reach - lag].copy_((masked * behind[:, span]).flatten(0, 1).sum(0))
        d_behind[:, span].addcmul_(masked, taps[reach - lag])
        del masked
    return d_behind, d_taps


def split_gradient(env: Environment, d_behind: Array, into: Array) -> Array | None:
    """Puts the gradient of x into `into`, and returns that of the tokens before it, for `add_in_front`; None where none are."""
    reach = d_behind.shape[1] - into.shape[1]
    into.copy_(d_behind[:, reach:])
    return None if env.parallel.context is None or not reach else env.ops.copy(d_behind[:, :reach])


def add_in_front(env: Environment, given: list[Array | None], into: Array) -> None:
    """Adds to the gradient of x what other ranks' tokens give it. `given`: what `split_gradient` returned, taken out of the list.
    All ranks of context parallelism call it together."""
    front = given.pop()
    if front is None:
        return
    tokens = into.shape[1]
    found = halo_backward(env, front, tokens)
    del front
    with env.ops.fused():
        into[:, tokens - found.shape[1] :].add_(found)
        del found


def _within(x: Array, positions: Array | None, lag: int) -> Array:
    """x, zeros where a token's document does not reach back so far."""
    return x if positions is None else x * (positions >= lag).unsqueeze(-1).unsqueeze(-1)
