"""Causal attention over a sequence split across ranks: the entry, which composes ring or gather with head exchange."""

from collections.abc import Sequence

from torch import Tensor

from fourfold.model.context.gather import GatherAttention
from fourfold.model.context.local import LocalAttention
from fourfold.model.context.pieces import Documents, gathered_pieces, own_pieces, ring_pieces
from fourfold.model.context.ring import RingAttention
from fourfold.model.context.ulysses import HeadsToSequence, SequenceToHeads
from fourfold.model.parallel import ContextParallel


def context_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    context: ContextParallel,
    document_lengths: Sequence[Sequence[int]] | None = None,
    scale: float | None = None,
) -> Tensor:
    """Causal attention within each document, for one rank's tokens (`ContextParallel` says which they are).

    q [batch, seq_local, heads, head_dim], k [batch, seq_local, kv_heads, head_dim], v [batch, seq_local, kv_heads, value_dim] ->
    [batch, seq_local, heads * value_dim]. `document_lengths`: per row the lengths of its documents over the whole sequence.
    `scale`: of the scores, 1 / sqrt(head_dim) unless given. All ranks of `ring` and of `ulysses` call it together, in forward and
    in backward. With more than one rank seq_local is even; heads are a multiple of kv_heads and of the ulysses ranks.

    Ring attention: Liu, Zaharia & Abbeel 2023; the zig-zag is Brandon et al. 2023's balance by two chunks. Gathered keys: Llama 3
    (2024), section 3.3.2. Head exchange: Jacobs et al. 2023 (DeepSpeed-Ulysses); both together: Fang & Zhao 2024 (USP).
    """
    scale = scale if scale is not None else q.shape[-1] ** -0.5
    if context.ulysses is not None:
        q, k, v = SequenceToHeads.apply(q, k, v, context.ulysses)
    out = _attend_sequence(q, k, v, context, document_lengths, scale)
    return out if context.ulysses is None else HeadsToSequence.apply(out, context.ulysses)


def _attend_sequence(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    context: ContextParallel,
    document_lengths: Sequence[Sequence[int]] | None,
    scale: float,
) -> Tensor:
    """The same for ranks that have whole chunks."""
    group = context.ring
    batch, length = q.shape[0], q.shape[1] * (group.size if group is not None else 1)
    documents = Documents(batch, length, document_lengths)
    if group is None:
        return LocalAttention.apply(q, k, v, own_pieces(0, 1, length, documents), scale)
    rank, size = group.index, group.size
    own = own_pieces(rank, size, length, documents)
    if context.gather:
        front, back = gathered_pieces(rank, size, length, documents)
        return GatherAttention.apply(q, k, v, group, own, front, back, scale)
    others = [ring_pieces(rank, (rank - step) % size, size, length, documents) for step in range(1, size)]
    return RingAttention.apply(q, k, v, group, [own, *others], scale)
