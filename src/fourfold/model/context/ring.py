"""Ring attention: keys and values go round the ranks while each computes on those that it has (Liu, Zaharia & Abbeel 2023).

At step t rank i has the keys of rank i - t; the next ones are in flight meanwhile. Backward sends keys and values round once more,
with the sums of their gradients behind: rank i adds its share to those of rank i - t and passes them on. They come home after
R - 1 steps, where the own share, half of which was computed while they were on the last link, completes them.
"""

from collections.abc import Sequence
from functools import partial

from fourfold.model.context.partial import (
    AttentionInputs,
    Scores,
    add_key_gradients,
    add_query_gradients,
    halves,
    joined,
    merge_output,
    own_output,
    own_work_in_two,
)
from fourfold.model.context.pieces import Documents, Piece, earlier_pieces, own_pieces, ring_pieces
from fourfold.model.environment import Environment, Saved
from fourfold.model.operations import Array
from fourfold.model.parallel import Group, Pending


class Rotation:
    """An array that goes round a ring: `start` sends what is here, `finish` puts what came in its place. Two buffers."""

    def __init__(self, group: Group, array: Array = None) -> None:
        self.here = array
        self._group = group
        self._other: Array | None = None
        self._work: Pending | None = None

    def start(self) -> None:
        if self._other is None:
            self._other = self.here.new_empty(self.here.shape)
        self._work = self._group.shift([self._other], [self.here])

    def finish(self) -> None:
        if self._work is not None:
            self._work.wait()
            self.here, self._other, self._work = self._other, self.here, None


def _pieces_of_steps(group: Group, documents: Documents, packs: bool) -> list[Sequence[Piece]]:
    """The pieces against the rank's own keys, in two lists, and against those of the rank t places before, for every step t."""
    rank, size = group.index, group.size
    others = [ring_pieces(rank, (rank - step) % size, documents) for step in range(1, size)]
    return [own_pieces(rank, documents, packs), earlier_pieces(rank, documents, packs), *others]


def _place(size: int, step: tuple[int, Sequence[Piece]]) -> object:
    """A key for steps that do the same work. The first and the last step start other transfers."""
    return step[0] == 1, step[0] + 1 == size, tuple(step[1])


def ring_forward(
    env: Environment, parts: list[Array], group: Group, documents: Documents, saved: Saved, scores: Scores
) -> tuple[Array, Array]:
    """`attend_forward` over the ranks of the ring -> [batch, seq_local, heads, value_dim] and the log-sum-exp. Keeps q, k, v and
    the log-sum-exp: nothing grows with the ring."""
    ops, (q, k, v) = env.ops, parts
    saved.keep(qkv=(q, k, v))
    parts.clear()
    head_dim, dtype = q.shape[-1], q.dtype
    packs = scores.packs(ops, q)
    steps = documents.once("ring", lambda: _pieces_of_steps(group, documents, packs))
    own, earlier, *others = steps
    rotation = Rotation(group, joined(ops, k, v))
    rotation.start()
    given = [q, k, v]
    own_keys = [k, v] if earlier else []
    del k, v
    out, lse = own_output(ops, given, own, scores, ops.accumulation_dtype(q))
    if earlier:
        merge_output(ops, out, lse, q, own_keys, earlier, scores)
    for step, pieces in ops.repeats(enumerate(others, 1), partial(_place, group.size)):
        rotation.finish()
        if step + 1 < group.size:
            rotation.start()
        merge_output(ops, out, lse, q, list(halves(rotation.here, head_dim)), pieces, scores)
    del rotation, q
    saved.keep(lse=lse, steps=steps)
    return out.to(dtype).contiguous(), lse


def ring_backward(env: Environment, given: list[Array], group: Group, saved: Saved, scores: Scores) -> list[Array]:
    """Gradients of q, k and v. `given`: gradient and output [batch, seq_local, heads, value_dim], taken out of the list."""
    ops, (grad, out) = env.ops, given
    given.clear()
    q, k, v = saved.take("qkv")
    head_dim, dtype = q.shape[-1], q.dtype
    own, earlier, *others = saved.take("steps")
    lse = saved.take("lse")
    inputs = AttentionInputs(ops, grad, q, out, lse, scores)
    del grad, out, q, lse
    first, second = own_work_in_two([*own, *earlier], k.shape[2])
    rotation, sums = Rotation(group, joined(ops, k, v)), Rotation(group)
    rotation.start()
    d_q = inputs.q.new_zeros(inputs.q.shape, dtype=ops.accumulation_dtype(inputs.q))
    own_shares = add_query_gradients(inputs, [k, v], first[0], d_q, first[1])
    for step, pieces in ops.repeats(enumerate(others, 1), partial(_place, group.size)):
        rotation.finish()
        if step + 1 < group.size:
            rotation.start()
        shares = add_query_gradients(inputs, list(halves(rotation.here, head_dim)), pieces, d_q)
        sums.finish()
        if step == 1:
            sums.here = rotation.here.new_zeros(rotation.here.shape, dtype=d_q.dtype)
        add_key_gradients(shares, *halves(sums.here, head_dim))
        sums.start()
    del rotation, shares
    own_shares += add_query_gradients(inputs, [k, v], second[0], d_q, second[1])
    del inputs, k, v
    sums.finish()
    d_kv = sums.here
    del sums
    add_key_gradients(own_shares, *halves(d_kv, head_dim))
    return [d_q.to(dtype), *halves(d_kv.to(dtype), head_dim)]
