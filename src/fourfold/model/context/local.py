"""Causal attention of sequences that one rank holds, document by document."""

from fourfold.model.context.partial import (
    AttentionInputs,
    Scores,
    merge_output,
    own_gradients,
    own_output,
    summed_gradients,
)
from fourfold.model.context.pieces import Documents, earlier_pieces, own_pieces
from fourfold.model.environment import Environment, Saved
from fourfold.model.operations import Array


def local_forward(
    env: Environment, parts: list[Array], documents: Documents, saved: Saved, scores: Scores
) -> tuple[Array, Array]:
    """`attend_forward` for full sequences -> [batch, seq, heads, value_dim] and the log-sum-exp. Keeps q, k, v and the
    log-sum-exp."""
    ops, (q, k, v) = env.ops, parts
    saved.keep(qkv=(q, k, v))
    parts.clear()
    packs, dtype = scores.packs(ops, q), q.dtype
    pieces = documents.once("own", lambda: (own_pieces(0, documents, packs), earlier_pieces(0, documents, packs)))
    own, earlier = pieces
    out, lse = own_output(ops, [q, k, v], own, scores, ops.accumulation_dtype(q) if earlier else dtype)
    if earlier:
        merge_output(ops, out, lse, q, [k, v], earlier, scores)
    saved.keep(lse=lse, pieces=pieces)
    return out.to(dtype).contiguous(), lse


def local_backward(env: Environment, given: list[Array], saved: Saved, scores: Scores) -> list[Array]:
    """Gradients of q, k and v. `given`: gradient and output [batch, seq, heads, value_dim], taken out of the list."""
    grad, out = given
    given.clear()
    q, k, v = saved.take("qkv")
    inputs = AttentionInputs(env.ops, grad, q, out, saved.take("lse"), scores)
    keys = [k, v]
    del grad, out, q, k, v
    own, earlier = saved.take("pieces")
    return own_gradients(inputs, keys, own) if not earlier else summed_gradients(inputs, keys, [*own, *earlier])
