"""Causal attention over a sequence split across ranks: the entry, which composes ring or gather with head exchange.

Ring attention: Liu, Zaharia & Abbeel 2023; the zig-zag is Brandon et al. 2023's balance by two chunks. Gathered keys: Llama 3
(2024), section 3.3.2. Head exchange: Jacobs et al. 2023 (DeepSpeed-Ulysses); both together: Fang & Zhao 2024 (USP)."""

from collections.abc import Hashable, Sequence

from fourfold.model.context import halo, sinks
from fourfold.model.context.gather import gather_backward, gather_forward
from fourfold.model.context.local import local_backward, local_forward
from fourfold.model.context.partial import Scores
from fourfold.model.context.pieces import Documents
from fourfold.model.context.placement import Placement
from fourfold.model.context.ring import ring_backward, ring_forward
from fourfold.model.context.ulysses import (
    heads_to_sequence,
    heads_to_sequence_backward,
    sequence_to_heads,
    sequence_to_heads_backward,
)
from fourfold.model.environment import Environment, Saved
from fourfold.model.operations import Array
from fourfold.model.parallel import ContextParallel
from fourfold.model.weights import Weight

NOT_SPLIT = ContextParallel()
"""One rank has the full sequence."""


def attend_forward(
    env: Environment,
    parts: list[Array],
    document_lengths: Sequence[Sequence[int]] | None,
    saved: Saved,
    made: dict[Hashable, Documents] | None = None,
    placement: Placement | None = None,
    window: int | None = None,
    chunk: int | None = None,
    sink: Weight | None = None,
    cap: float | None = None,
) -> Array:
    """Causal attention within each document, for one rank's tokens (`ContextParallel` says which they are).

    `parts`: q [batch, seq_local, heads, head_dim], k [batch, seq_local, kv_heads, head_dim], v [batch, seq_local, kv_heads,
    value_dim], taken out of the list -> [batch, seq_local, heads * value_dim]. `document_lengths`: per row the lengths of its
    documents over the full sequence. `made`: keeps what is derived from the documents for the microbatch's next layers.
    `placement`: which chunks of the rows each ring rank has, zig-zag where None. `window`, `chunk`: as `Documents` has them. `sink`
    [heads]: a logit more of each head. `cap`: as `Scores` has it. All ranks of `ring` and of `ulysses` call it together, in forward
    and in backward. With more than one rank seq_local is even; heads are a multiple of kv_heads and of the ulysses ranks."""
    context = env.parallel.context or NOT_SPLIT
    if context.ulysses is not None:
        kv_heads = parts[1].shape[2]
        sequence_to_heads(env, parts, context.ulysses)
        saved.keep(kv_heads=kv_heads)
    ring, scores = context.ring, Scores(parts[0].shape[-1] ** -0.5, cap)
    saved.keep(scores=scores)
    ranks = ring.size if ring is not None else 1
    made, sizes = {} if made is None else made, (parts[0].shape[0], parts[0].shape[1] * ranks)
    key = (*sizes, window, chunk)
    if key not in made:
        made[key] = Documents(*sizes, document_lengths, ranks, placement, window, chunk)
    out, lse = attend_pieces(env, parts, context, made[key], saved, scores)
    if sink is not None:
        sinks.apply_(env.ops, out, lse, sinks.own_heads(sink.data, context.ulysses))
    del lse
    if context.ulysses is None:
        return out.view(*out.shape[:2], -1)
    saved.keep(heads_out=out)
    given = [out.view(*out.shape[:2], -1)]
    del out
    return heads_to_sequence(env, given, context.ulysses)


def attend_pieces(
    env: Environment, parts: list[Array], context: ContextParallel, documents: Documents, saved: Saved, scores: Scores
) -> tuple[Array, Array]:
    """Output [batch, seq_local, heads, value_dim] and log-sum-exp [batch, seq_local, heads] of q, k and v, taken out of the list.
    Heads are those that this rank has after an exchange."""
    ring = context.ring
    if ring is None:
        return local_forward(env, parts, documents, saved, scores)
    if halo.takes(documents):
        saved.keep(halo=True)
        return halo.halo_forward(env, parts, ring, documents, saved, scores)
    if context.gather:
        return gather_forward(env, parts, ring, documents, saved, scores)
    return ring_forward(env, parts, ring, documents, saved, scores)


def attend_backward(env: Environment, given: list[Array], saved: Saved, sink: Weight | None = None) -> list[Array]:
    """Gradients of q, k and v; adds the sink's. `given`: the gradient of the output [T, heads * value_dim], taken out of the
    list."""
    context = env.parallel.context or NOT_SPLIT
    attention = saved.take("attention")
    if context.ulysses is not None:
        del attention
        out = saved.take("heads_out")
        grad = given.pop()
        given.append(grad.view(out.shape[0], -1, grad.shape[1]))
        del grad
        heads_to_sequence_backward(env, given, context.ulysses)
    else:
        q = saved.see("qkv")[0]
        out = attention.view(*q.shape[:3], -1)
        del attention, q
    given[0] = given[0].view(*out.shape)
    if sink is not None:
        sinks.add_gradient(env.ops, given[0], out, saved.see("lse"), sink, context.ulysses)
    given.append(out)
    del out
    scores = saved.take("scores")
    if context.ring is None:
        grads = local_backward(env, given, saved, scores)
    elif saved.take_if_kept("halo"):
        grads = halo.halo_backward(env, given, context.ring, saved, scores)
    elif context.gather:
        grads = gather_backward(env, given, context.ring, saved, scores)
    else:
        grads = ring_backward(env, given, context.ring, saved, scores)
    if context.ulysses is not None:
        sequence_to_heads_backward(env, grads, context.ulysses, saved.take("kv_heads"))
    return grads
