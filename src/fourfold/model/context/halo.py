"""Sliding windows over a sequence split in zig-zag: each rank gets the keys just before its two chunks, and no others.

A window of w tokens reaches w - 1 tokens back. Where those are no more than a chunk, the keys before front chunk r are the end of
rank r - 1's front chunk, and those before back chunk 2R - 1 - r the end of rank r + 1's: every rank sends the end of its front
chunk to the next one and the end of its back chunk to the one before, however many ranks there are. The ends that rank 0 and rank R
- 1 exchange are read by nobody. Backward sends them once more, and their gradients home."""

from fourfold.model.context.partial import (
    AttentionInputs,
    Scores,
    add_key_gradients,
    add_query_gradients,
    halves,
    joined,
    merge_output,
    own_output,
)
from fourfold.model.context.pieces import Documents, Piece, Run, earlier_pieces, own_pieces, window_pieces
from fourfold.model.context.placement import zigzag
from fourfold.model.environment import Environment, Saved
from fourfold.model.operations import Array, Operations
from fourfold.model.parallel import Group, Pending


def takes(documents: Documents) -> bool:
    """Whether a window reaches no further back than a chunk, in zig-zag."""
    window, chunk = documents.window, documents.length // (2 * documents.ring)
    return window is not None and window - 1 <= chunk and documents.placement == zigzag(documents.ring)


class Halo:
    """The ends of two chunks of other ranks, on their way: [batch, 2 (window - 1), kv_heads, head_dim + value_dim]."""

    def __init__(self, ops: Operations, group: Group, k: Array, v: Array, reach: int) -> None:
        self._ops = ops
        ends = [joined(ops, k[:, span], v[:, span]) for span in _ends(k.shape[1], reach)]
        self._arrays = [end.new_empty(end.shape) for end in ends]
        self._works = _exchanged(group, self._arrays, ends)
        self._sent = ends

    def finish(self) -> Array:
        for work in self._works:
            work.wait()
        self._sent.clear()
        both = self._ops.concatenate(self._arrays, dim=1)
        self._arrays.clear()
        return both


def _ends(tokens: int, reach: int) -> tuple[slice, slice]:
    """The last tokens of a rank's front chunk and of its back chunk."""
    return slice(tokens // 2 - reach, tokens // 2), slice(tokens - reach, tokens)


def _exchanged(group: Group, received: list[Array], sent: list[Array]) -> list[Pending]:
    """The first goes to the next rank, the second to the one before."""
    return [group.shift([received[0]], [sent[0]]), group.shift([received[1]], [sent[1]], back=True)]


Pieces = tuple[list[Piece], list[Piece], list[Piece]]
"""The pieces against the rank's own keys, in two lists, and against the halo."""


def _pieces(rank: int, documents: Documents, packs: bool) -> Pieces:
    assert documents.window is not None
    reach, chunk, ring = documents.window - 1, documents.length // (2 * documents.ring), documents.ring
    front, back = rank * chunk, (2 * ring - 1 - rank) * chunk
    held = [Run(0, front - reach, front)] if rank else []
    held += [Run(reach, back - reach, back)] if rank < ring - 1 else []
    halo = window_pieces(rank, documents, held)
    return own_pieces(rank, documents, packs), earlier_pieces(rank, documents, packs), halo


def halo_forward(
    env: Environment, parts: list[Array], group: Group, documents: Documents, saved: Saved, scores: Scores
) -> tuple[Array, Array]:
    """`attend_forward` over the ranks of the ring -> [batch, seq_local, heads, value_dim] and the log-sum-exp. Keeps q, k, v and
    the log-sum-exp."""
    ops, (q, k, v) = env.ops, parts
    saved.keep(qkv=(q, k, v))
    parts.clear()
    head_dim, dtype, packs = q.shape[-1], q.dtype, scores.packs(ops, q)
    pieces = documents.once("halo", lambda: _pieces(group.index, documents, packs))
    own, earlier, others = pieces
    assert documents.window is not None
    halo = Halo(ops, group, k, v, documents.window - 1)
    given, own_keys = [q, k, v], [k, v] if earlier else []
    del k, v
    out, lse = own_output(ops, given, own, scores, ops.accumulation_dtype(q))
    if earlier:
        merge_output(ops, out, lse, q, own_keys, earlier, scores)
    both = halo.finish()
    del halo
    merge_output(ops, out, lse, q, list(halves(both, head_dim)), others, scores)
    del both, q
    saved.keep(lse=lse, pieces=pieces, reach=documents.window - 1)
    return out.to(dtype).contiguous(), lse


def halo_backward(env: Environment, given: list[Array], group: Group, saved: Saved, scores: Scores) -> list[Array]:
    """Gradients of q, k and v. `given`: gradient and output [batch, seq_local, heads, value_dim], taken out of the list."""
    ops, (grad, out) = env.ops, given
    given.clear()
    q, k, v = saved.take("qkv")
    head_dim, dtype, reach = q.shape[-1], q.dtype, saved.take("reach")
    own, earlier, others = saved.take("pieces")
    halo = Halo(ops, group, k, v, reach)
    inputs = AttentionInputs(ops, grad, q, out, saved.take("lse"), scores)
    del grad, out, q
    d_q = inputs.q.new_zeros(inputs.q.shape, dtype=ops.accumulation_dtype(inputs.q))
    both = halo.finish()
    del halo
    shares = add_query_gradients(inputs, list(halves(both, head_dim)), others, d_q)
    sums = both.new_zeros(both.shape, dtype=d_q.dtype)
    del both
    add_key_gradients(shares, *halves(sums, head_dim))
    sent = [ops.copy(part) for part in sums.split((reach, reach), dim=1)]
    del sums
    home = [part.new_empty(part.shape) for part in sent]
    works = _exchanged(group, home[::-1], sent[::-1])  # each the way that it came
    shares += add_query_gradients(inputs, [k, v], [*own, *earlier], d_q)
    del inputs
    tokens = k.shape[1]
    d_kv = d_q.new_zeros((*k.shape[:3], head_dim + v.shape[-1]))
    del k, v
    add_key_gradients(shares, *halves(d_kv, head_dim))
    for work in works:
        work.wait()
    sent.clear()
    for span, part in zip(_ends(tokens, reach), home, strict=True):
        d_kv[:, span].add_(part)
    return [d_q.to(dtype), *halves(d_kv.to(dtype), head_dim)]
