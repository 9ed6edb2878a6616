"""Matrices of pairs of tokens in a chunk, every channel of which decays by itself on its way from one to the other, and backward.

    pairs_ij = sum over channels c of left_ic right_jc exp(G_ic - G_jc)        for j <= i

G is the sum of the logarithms of decays up to a token. The chunk is halved, and each half again, down to single tokens: with R the
G at the end of a first half, the second half's pairs with the first are one matmul, of left exp(G - R) and right exp(R - G). No
exponent is above 0, however strong the decay is.

Shapes: left, right, G [n, C, d], C a power of two; pairs [n, C, C]."""

from collections.abc import Iterator

from fourfold.model.operations import Array, Operations


def pairs(ops: Operations, left: Array, right: Array, total: Array) -> Array:
    """Pairs, zeros above the diagonal. `total`: G."""
    number, chunk = left.shape[:2]
    with ops.fused():
        out = left.new_zeros((number, chunk, chunk))
        out.diagonal(0, 1, 2).copy_((left * right).sum(-1))
    for half in _halves(chunk):
        with ops.fused():
            after, before = _decays(total, half)
            after.mul_(_second(left, half))
            before.mul_(_first(right, half))
        found = ops.matmuls(after, before.transpose(1, 2))
        del after, before
        with ops.fused():
            _corners(out, half).copy_(found.unflatten(0, (number, -1)))
            del found
    return out


def pairs_backward(ops: Operations, grad: Array, left: Array, right: Array, total: Array) -> tuple[Array, Array]:
    """Gradients of left and right by pairs of different tokens: nothing of `grad` [n, C, C] but what is below its diagonal is read.
    That of G follows from them: left x its gradient - right x its gradient."""
    with ops.fused():
        d_left, d_right = left.new_zeros(left.shape), left.new_zeros(left.shape)
    for half in _halves(left.shape[1]):
        with ops.fused():
            after, before = _decays(total, half)
            later, earlier = after * _second(left, half), before * _first(right, half)
            corners = ops.copy(_corners(grad, half)).flatten(0, 1)
        found = ops.matmuls(corners, earlier)
        del earlier
        with ops.fused():
            _second(d_left, half).addcmul_(found, after)
            del found, after
        found = ops.matmuls(corners.transpose(1, 2), later)
        del corners, later
        with ops.fused():
            _first(d_right, half).addcmul_(found, before)
            del found, before
    return d_left, d_right


def _halves(chunk: int) -> Iterator[int]:
    """chunk / 2, chunk / 4, .. 1."""
    half = chunk // 2
    while half:
        yield half
        half //= 2


def _first(x: Array, half: int) -> Array:
    """[n, C, d] -> view [n x C / (2 half), half, d] of every block's first half."""
    return x.view(-1, 2, half, x.shape[-1])[:, 0]


def _second(x: Array, half: int) -> Array:
    return x.view(-1, 2, half, x.shape[-1])[:, 1]


def _decays(total: Array, half: int) -> tuple[Array, Array]:
    """From the end of every block's first half to each token of its second, and from each of its first to that end."""
    first = _first(total, half)
    end = first[:, half - 1 :]
    return (_second(total, half) - end).exp_(), (end - first).exp_()


def _corners(x: Array, half: int) -> Array:
    """[n, C, C] -> view [n, C / (2 half), half, half] of the pairs of every block's second half with its first."""
    blocks = x.unflatten(1, (-1, 2, half)).unflatten(4, (-1, 2, half))[:, :, 1, :, :, 0]
    return blocks.diagonal(0, 1, 3).permute(0, 3, 1, 2)
