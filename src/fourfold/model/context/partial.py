"""Attention piece by piece: outputs merged in place by log-sum-exp, gradients summed in place, in fp32 at least."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fourfold.model.context.pieces import Piece, Span, extent
from fourfold.model.operations import Array, Format, Operations


def part(x: Array, rows: Span, tokens: Span) -> Array:
    """A view of some rows and tokens of x [batch, tokens, ...]."""
    return x[rows[0] : rows[1], tokens[0] : tokens[1]]


def _covers(pieces: Sequence[Piece], q: Array) -> bool:
    """Whether there is one piece, of all queries."""
    return len(pieces) == 1 and pieces[0].rows == (0, q.shape[0]) and pieces[0].queries == (0, q.shape[1])


class Scores(NamedTuple):
    """How scores come from queries and keys: s = `scale` q k, and with a `cap` c the softmax is of c tanh(s / c)."""

    scale: float
    cap: float | None = None

    def packs(self, ops: Operations, q: Array) -> bool:
        """Whether kernels take documents and windows in one launch."""
        return self.cap is None and ops.on_accelerator(q)


def _attend(ops: Operations, q: Array, k: Array, v: Array, piece: Piece, scores: Scores) -> tuple[Array, Array]:
    """A piece's output and log-sum-exp. A square turned over is a causal one of tokens in the other order."""
    q, k, v = part(q, piece.rows, piece.queries), part(k, piece.rows, piece.keys), part(v, piece.rows, piece.keys)
    if piece.mask != "turned":
        return _call(ops, q, k, v, piece.mask == "causal", scores, piece.documents, piece.window)
    out, lse = _call(ops, ops.flip(q, 1), ops.flip(k, 1), ops.flip(v, 1), True, scores)
    return ops.flip(out, 1), ops.flip(lse, 1)


def _call(
    ops: Operations, q: Array, k: Array, v: Array, causal: bool, scores: Scores, *packed: Any
) -> tuple[Array, Array]:
    """`packed`: documents and window, of which there are none where scores are capped."""
    if scores.cap is None:
        return ops.attend(q, k, v, causal, scores.scale, *packed)
    return ops.attend_capped(q, k, v, causal, scores.scale, scores.cap)


def own_output(
    ops: Operations, given: list[Array], pieces: Sequence[Piece], scores: Scores, dtype: Format
) -> tuple[Array, Array]:
    """Output [batch, tokens, heads, d] in `dtype` and log-sum-exp [batch, tokens, heads] of pieces that hold every query once.
    `given`: q, k and v, taken out of the list."""
    q, k, v = given
    given.clear()
    if _covers(pieces, q):
        out, lse = _attend(ops, q, k, v, pieces[0], scores)
        return out.to(dtype), lse
    out = q.new_empty((*q.shape[:-1], v.shape[-1]), dtype=dtype)
    lse = q.new_empty(q.shape[:-1], dtype=ops.accumulation_dtype(q))
    for piece in ops.repeats(pieces, extent):
        result = _attend(ops, q, k, v, piece, scores)
        part(out, piece.rows, piece.queries).copy_(result[0])
        part(lse, piece.rows, piece.queries).copy_(result[1])
        del result
    return out, lse


def merge_output(
    ops: Operations, out: Array, lse: Array, q: Array, keys_values: list[Array], pieces: Sequence[Piece], scores: Scores
) -> None:
    """Adds what the queries get from more keys. out = softmax-weighted mean of two outputs: with l, l' their log-sum-exps the
    second weighs exp(l') / (exp(l) + exp(l')) = sigmoid(l' - l), and the sum's log-sum-exp is logaddexp(l, l')."""
    k, v = keys_values
    keys_values.clear()
    for piece in ops.repeats(pieces, extent):
        more, more_lse = _attend(ops, q, k, v, piece, scores)
        out_part, lse_part = part(out, piece.rows, piece.queries), part(lse, piece.rows, piece.queries)
        with ops.fused():
            weight = (more_lse - lse_part).sigmoid().unsqueeze(-1)
            out_part.lerp_(more.to(out.dtype), weight)
            ops.logaddexp_(lse_part, more_lse)
            del more, more_lse, weight


@dataclass(frozen=True)
class AttentionInputs:
    """The query side of attention's backward: grad, q and out [batch, tokens, heads, d], lse [batch, tokens, heads]."""

    ops: Operations
    grad: Array
    q: Array
    out: Array
    lse: Array
    scores: Scores

    def of_heads(self, first: int, last: int) -> "AttentionInputs":
        """Views of some heads."""
        grad, q, out, lse = (x[:, :, first:last] for x in (self.grad, self.q, self.out, self.lse))
        return AttentionInputs(self.ops, grad, q, out, lse, self.scores)

    def gradients(self, k: Array, v: Array, piece: Piece) -> tuple[Array, Array, Array]:
        """A piece's share of the gradients of its queries, its keys and its values."""
        rows, queries, keys, mask, documents, window = piece
        grad, q, out, lse = (part(x, rows, queries) for x in (self.grad, self.q, self.out, self.lse))
        k, v = part(k, rows, keys), part(v, rows, keys)
        if mask != "turned":
            masked = mask == "causal"
            return self._call((grad, q, k, v, out, lse), masked, documents, window)
        flip = self.ops.flip
        grad, q, k, v, out, lse = (flip(x, 1) for x in (grad, q, k, v, out, lse))
        d_q, d_k, d_v = self._call((grad, q, k, v, out, lse), True)
        return flip(d_q, 1), flip(d_k, 1), flip(d_v, 1)

    def _call(self, given: tuple[Array, ...], causal: bool, *packed: Any) -> tuple[Array, Array, Array]:
        scale, cap = self.scores
        grad, q, k, v, out, lse = given
        if cap is None:
            return self.ops.attend_backward(grad, q, k, v, out, lse, causal, scale, *packed)
        return self.ops.attend_capped_backward(grad, q, k, v, out, lse, causal, scale, cap)


def own_gradients(inputs: AttentionInputs, keys_values: list[Array], pieces: Sequence[Piece]) -> list[Array]:
    """Gradients of q, k and v, in their format, from pieces that hold every query and every key once."""
    k, v = keys_values
    if _covers(pieces, inputs.q):
        return list(inputs.gradients(k, v, pieces[0]))
    sums = [x.new_empty(x.shape) for x in (inputs.q, k, v)]
    for piece in inputs.ops.repeats(pieces, extent):
        shares = inputs.gradients(k, v, piece)
        for into, share, tokens in zip(sums, shares, (piece.queries, piece.keys, piece.keys), strict=True):
            part(into, piece.rows, tokens).copy_(share)
        del shares, share
    return sums


def summed_gradients(inputs: AttentionInputs, keys_values: list[Array], pieces: Sequence[Piece]) -> list[Array]:
    """Gradients of q, k and v, in their format, from pieces that may meet each other. `keys_values`: k and v, taken out of the
    list."""
    dtype = inputs.ops.accumulation_dtype(inputs.q)
    sums = [x.new_zeros(x.shape, dtype=dtype) for x in (inputs.q, *keys_values)]
    formats = [x.dtype for x in (inputs.q, *keys_values)]
    add_key_gradients(add_query_gradients(inputs, keys_values, pieces, sums[0]), *sums[1:])
    return [x.to(dtype) for x, dtype in zip(sums, formats, strict=True)]


class KeyShare(NamedTuple):
    """A piece's gradients of the keys and values of some heads."""

    piece: Piece
    kv_heads: Span
    d_k: Array
    d_v: Array


def add_query_gradients(
    inputs: AttentionInputs,
    keys_values: list[Array],
    pieces: Sequence[Piece],
    d_q: Array,
    kv_heads: Span | None = None,
) -> list[KeyShare]:
    """Adds the pieces' gradients of q; returns those of keys and values, to be added where the sums are. `keys_values`: k and
    v, taken out of the list; `kv_heads`: some heads of them only."""
    k, v = keys_values
    keys_values.clear()
    first, last = kv_heads or (0, k.shape[2])
    group = inputs.q.shape[2] // k.shape[2]
    inputs, d_q = inputs.of_heads(first * group, last * group), d_q[:, :, first * group : last * group]
    k, v = k[:, :, first:last], v[:, :, first:last]
    shares: list[KeyShare] = []
    for piece in reversed(pieces):  # the most keys of a document first: the shares of fewer are added to theirs
        d_q_share, d_k, d_v = inputs.gradients(k, v, piece)
        part(d_q, piece.rows, piece.queries).add_(d_q_share)
        if shares and _contains(shares[-1].piece, piece):
            shares[-1] = _with_more(shares[-1], KeyShare(piece, (first, last), d_k, d_v), d_q)
        else:
            shares.append(KeyShare(piece, (first, last), d_k, d_v))
        del d_q_share, d_k, d_v
    return shares


def _contains(outer: Piece, inner: Piece) -> bool:
    """Whether all keys of a piece are among those of another."""
    return outer.rows == inner.rows and outer.keys[0] <= inner.keys[0] and inner.keys[1] <= outer.keys[1]


def _with_more(share: KeyShare, more: KeyShare, sums: Array) -> KeyShare:
    """The sum of two shares of which the first has all keys of the second, in the format of `sums`."""
    offset = share.piece.keys[0]
    tokens = more.piece.keys[0] - offset, more.piece.keys[1] - offset
    gradients = [each.to(sums.dtype) for each in (share.d_k, share.d_v)]
    for into, each in zip(gradients, (more.d_k, more.d_v), strict=True):
        into[:, tokens[0] : tokens[1]].add_(each)
    return share._replace(d_k=gradients[0], d_v=gradients[1])


def add_key_gradients(shares: list[KeyShare], d_k: Array, d_v: Array) -> None:
    """Adds what `add_query_gradients` returned, and empties it."""
    for piece, (first, last), *gradients in shares:
        for into, share in zip((d_k, d_v), gradients, strict=True):
            part(into, piece.rows, piece.keys)[:, :, first:last].add_(share)
    shares.clear()


OwnWork = tuple[Sequence[Piece], Span]
"""Some pieces against a rank's own keys, for some of the kv heads."""


def own_work_in_two(pieces: Sequence[Piece], kv_heads: int) -> tuple[OwnWork, OwnWork]:
    """The work that waits for nobody, in two parts: one for the time in which the first keys are on their way, one for that in
    which the last gradients are. One piece is divided by heads."""
    if len(pieces) == 1 and kv_heads > 1:
        return (pieces, (0, kv_heads // 2)), (pieces, (kv_heads // 2, kv_heads))
    middle = (len(pieces) + 1) // 2
    return (pieces[:middle], (0, kv_heads)), (pieces[middle:], (0, kv_heads))


def joined(ops: Operations, k: Array, v: Array) -> Array:
    """k and v in one contiguous array [batch, tokens, kv_heads, head_dim + value_dim], to travel as one."""
    return ops.concatenate((k, v), dim=-1)


def halves(kv: Array, head_dim: int) -> tuple[Array, Array]:
    """Views of keys and values that were joined."""
    return kv[..., :head_dim], kv[..., head_dim:]
