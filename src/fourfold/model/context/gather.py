"""Keys and values of all ranks gathered before attention, their gradients scattered after (Llama 3 2024, section 3.3.2).

Front chunks and back chunks are gathered apart, so that the keys which some queries see lie side by side without being moved:
all queries see the front chunks of the ranks before; the back chunk's queries see both chunks of the ranks after.
"""

from collections.abc import Iterator

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
from fourfold.model.context.pieces import Documents, Piece, earlier_pieces, gathered_pieces, own_pieces
from fourfold.model.environment import Environment, Saved
from fourfold.model.operations import Array, Operations
from fourfold.model.parallel import Group
from fourfold.model.tensor_parallel import Arriving


class Gathering:
    """All ranks' keys and values, in flight. `finish` joins and gives the front chunks, then the back chunks, each a view
    [batch, ranks * chunk, kv_heads, head_dim + value_dim] in rank order."""

    def __init__(self, ops: Operations, group: Group, k: Array, v: Array) -> None:
        # Tokens first, so that the ranks' chunks stand one after the other whatever the batch.
        shards = joined(ops, k.transpose(0, 1), v.transpose(0, 1)).chunk(2)
        fulls = [shard.new_empty((group.size * shard.shape[0], *shard.shape[1:])) for shard in shards]
        self._works = [group.all_gather(*pair) for pair in zip(fulls, shards, strict=True)]
        self._arrays = list(zip(fulls, shards, strict=True))

    def finish(self) -> Iterator[Array]:
        for work, (full, _) in zip(self._works, self._arrays, strict=True):
            work.wait()
            yield full.transpose(0, 1)


Pieces = tuple[list[Piece], list[Piece], list[Piece], list[Piece]]
"""The pieces against the rank's own keys, in two lists, and against the gathered front and back chunks of others."""


def _pieces(group: Group, documents: Documents, packs: bool) -> Pieces:
    rank = group.index
    return (
        own_pieces(rank, documents, packs),
        earlier_pieces(rank, documents, packs),
        *gathered_pieces(rank, documents),
    )


def gather_forward(
    env: Environment, parts: list[Array], group: Group, documents: Documents, saved: Saved, scores: Scores
) -> tuple[Array, Array]:
    """`attend_forward` over the ranks of the group -> [batch, seq_local, heads, value_dim] and the log-sum-exp. Keeps q, k, v and
    the log-sum-exp."""
    ops, (q, k, v) = env.ops, parts
    saved.keep(qkv=(q, k, v))
    parts.clear()
    head_dim, dtype = q.shape[-1], q.dtype
    packs = scores.packs(ops, q)
    pieces = documents.once("gathered", lambda: _pieces(group, documents, packs))
    own, earlier, *chunks = pieces
    gathering = Gathering(ops, group, k, v)
    given = [q, k, v]
    own_keys = [k, v] if earlier else []
    del k, v
    out, lse = own_output(ops, given, own, scores, ops.accumulation_dtype(q))
    if earlier:
        merge_output(ops, out, lse, q, own_keys, earlier, scores)
    for kv, others in zip(gathering.finish(), chunks, strict=True):
        merge_output(ops, out, lse, q, list(halves(kv, head_dim)), others, scores)
    del gathering, kv, q
    saved.keep(lse=lse, pieces=pieces)
    return out.to(dtype).contiguous(), lse


def gather_backward(env: Environment, given: list[Array], group: Group, saved: Saved, scores: Scores) -> list[Array]:
    """Gradients of q, k and v. `given`: gradient and output [batch, seq_local, heads, value_dim], taken out of the list."""
    ops, (grad, out) = env.ops, given
    given.clear()
    q, k, v = saved.take("qkv")
    head_dim, dtype = q.shape[-1], q.dtype
    own, earlier, *chunks = saved.take("pieces")
    gathering = Gathering(ops, group, k, v)
    lse = saved.take("lse")
    inputs = AttentionInputs(ops, grad, q, out, lse, scores)
    del grad, out, q, lse
    first, second = own_work_in_two([*own, *earlier], k.shape[2])
    d_q = inputs.q.new_zeros(inputs.q.shape, dtype=ops.accumulation_dtype(inputs.q))
    own_shares = add_query_gradients(inputs, [k, v], first[0], d_q, first[1])
    scatterings = []
    for kv, pieces in zip(gathering.finish(), chunks, strict=True):
        shares = add_query_gradients(inputs, list(halves(kv, head_dim)), pieces, d_q)
        batch, tokens, *rest = kv.shape
        full = kv.new_zeros((tokens, batch, *rest), dtype=d_q.dtype)
        add_key_gradients(shares, *halves(full.transpose(0, 1), head_dim))
        into = full.new_empty((tokens // group.size, batch, *rest))
        scatterings.append(Arriving(into, group.sum_scatter(full, into)))
        del shares, full, into
    del gathering, kv
    own_shares += add_query_gradients(inputs, [k, v], second[0], d_q, second[1])
    del inputs, k, v
    d_kv = ops.concatenate([arriving.wait() for arriving in scatterings]).transpose(0, 1)
    del scatterings
    add_key_gradients(own_shares, *halves(d_kv, head_dim))
    return [d_q.to(dtype), *halves(d_kv.to(dtype), head_dim)]
