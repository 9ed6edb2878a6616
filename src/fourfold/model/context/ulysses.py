"""Head exchange: ranks that have a part of the tokens and all heads trade for all tokens and a part of the heads, and back
(Jacobs et al. 2023, DeepSpeed-Ulysses).

A rank's tokens are its part of a front chunk and its part of a back chunk. The two are exchanged apart and stand tokens first,
[tokens, batch, ...], so that what arrives, part after part, is each chunk in the order of the sequence.
"""

from math import lcm

from fourfold.model.environment import Environment
from fourfold.model.operations import Array, Operations
from fourfold.model.parallel import Group


def exchange(sent: Array, group: Group) -> Array:
    """sent [2, ranks, ...] -> the same shape: part [:, i] goes to rank i, and the one that came from it takes its place."""
    received = sent.new_empty(sent.shape)
    works = [group.all_to_all(*pair) for pair in zip(received.unbind(), sent.unbind(), strict=True)]
    for work in works:
        work.wait()
    return received


def split_heads(x: Array, ranks: int) -> Array:
    """x [batch, 2 part, heads, d] -> view [2, ranks, part, batch, heads / ranks, d], as it is sent away by heads."""
    return x.unflatten(1, (2, -1)).unflatten(3, (ranks, -1)).permute(1, 3, 2, 0, 4, 5)


def join_heads(x: Array) -> Array:
    """[2, ranks, part, batch, heads / ranks, d], as it arrives by heads -> [batch, 2 part, heads, d]."""
    return x.permute(3, 0, 2, 1, 4, 5).flatten(3, 4).flatten(1, 2)


def split_tokens(x: Array, ranks: int) -> Array:
    """x [batch, 2 ranks part, ...] -> view [2, ranks, part, batch, ...], as it is sent away by tokens."""
    return x.transpose(0, 1).unflatten(0, (2, ranks, -1))


def join_tokens(x: Array) -> Array:
    """[2, ranks, part, batch, ...], as it arrives by tokens -> view [batch, 2 ranks part, ...]."""
    return x.flatten(0, 2).transpose(0, 1)


def sequence_to_heads(env: Environment, parts: list[Array], group: Group) -> None:
    """In place on the list: q [batch, 2 part, heads, head_dim], k [batch, 2 part, kv_heads, head_dim], v [batch, 2 part,
    kv_heads, value_dim] -> the same of [batch, 2 ranks part, a part of the heads, ...], in the order of the sequence. All
    three travel together.

    Where kv_heads do not divide by the ranks, each is sent `copies` times, so that every rank gets as many and those that its
    queries use; the gradients of the copies are summed.
    """
    ranks, heads, kv_heads = group.size, parts[0].shape[2], parts[1].shape[2]
    if heads % ranks:
        raise ValueError(f"{heads} heads cannot be split over {ranks} ulysses ranks; use a divisor of the heads")
    copies = lcm(kv_heads, ranks) // kv_heads
    for i in (1, 2) if copies > 1 else ():
        batch, tokens, _, width = parts[i].shape
        copied = parts[i].unsqueeze(3).expand(batch, tokens, kv_heads, copies, width)
        parts[i] = copied.reshape(batch, tokens, kv_heads * copies, width)
        del copied
    _travel(env.ops, parts, [split_heads(x, ranks) for x in parts], group)
    parts[:] = map(join_tokens, parts)


def sequence_to_heads_backward(env: Environment, grads: list[Array], group: Group, kv_heads: int) -> None:
    """In place on the list: the gradients of q, k and v, back to all heads of a part of the tokens."""
    _travel(env.ops, grads, [split_tokens(x, group.size) for x in grads], group)
    for i in range(3):
        grads[i] = join_heads(grads[i])
        if i and grads[i].shape[2] != kv_heads:
            grads[i] = grads[i].unflatten(2, (kv_heads, -1)).sum(3)


def _travel(ops: Operations, parts: list[Array], views: list[Array], group: Group) -> None:
    """Exchanges arrays [2, ranks, part, batch, heads, d] of any heads and d as one. `parts`: the list whose arrays the
    `views` are of; it gets views of what arrived."""
    shapes = [tuple(x.shape[-2:]) for x in views]
    widths = [heads * d for heads, d in shapes]
    sent = views[0].new_empty((*views[0].shape[:4], sum(widths)))
    with ops.fused():
        for x, into, shape in zip(views, sent.split(widths, -1), shapes, strict=True):
            into.unflatten(-1, shape).copy_(x)
        del x, into
    views.clear()
    parts.clear()
    received = exchange(sent, group).split(widths, -1)
    parts += [y.unflatten(-1, shape) for y, shape in zip(received, shapes, strict=True)]


def heads_to_sequence(env: Environment, given: list[Array], group: Group) -> Array:
    """[batch, 2 ranks part, a part of the heads * value_dim], taken out of the list -> [batch, 2 part, heads * value_dim]."""
    sent = split_tokens(given.pop(), group.size).contiguous()
    received = exchange(sent, group)
    del sent
    return join_heads(received.unsqueeze(-2)).flatten(2)


def heads_to_sequence_backward(env: Environment, given: list[Array], group: Group) -> None:
    """In place on the list: the gradient [batch, 2 part, heads * value_dim] -> [batch, 2 ranks part, a part of them]."""
    ranks = group.size
    sent = split_heads(given.pop().unflatten(-1, (ranks, -1)), ranks).squeeze(4).contiguous()
    given.append(join_tokens(exchange(sent, group)))
