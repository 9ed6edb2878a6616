"""Head exchange: ranks that have a part of the tokens and all heads trade for all tokens and a part of the heads, and back
(Jacobs et al. 2023, DeepSpeed-Ulysses).

A rank's tokens are its part of a front chunk and its part of a back chunk. The two are exchanged apart and stand tokens first,
[tokens, batch, ...], so that what arrives, part after part, is each chunk in the order of the sequence.
"""

from math import lcm
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fourfold.model.parallel import Group


def exchange(sent: Tensor, group: Group) -> Tensor:
    """sent [2, ranks, ...] -> the same shape: part [:, i] goes to rank i, and the one that came from it takes its place."""
    received = torch.empty_like(sent)
    works = [group.all_to_all(*pair) for pair in zip(received, sent, strict=True)]
    for work in works:
        work.wait()
    return received


def split_heads(x: Tensor, ranks: int) -> Tensor:
    """x [batch, 2 part, heads, d] -> view [2, ranks, part, batch, heads / ranks, d], as it is sent away by heads."""
    return x.unflatten(1, (2, -1)).unflatten(3, (ranks, -1)).permute(1, 3, 2, 0, 4, 5)


def join_heads(x: Tensor) -> Tensor:
    """[2, ranks, part, batch, heads / ranks, d], as it arrives by heads -> [batch, 2 part, heads, d]."""
    return x.permute(3, 0, 2, 1, 4, 5).flatten(3, 4).flatten(1, 2)


def split_tokens(x: Tensor, ranks: int) -> Tensor:
    """x [batch, 2 ranks part, ...] -> view [2, ranks, part, batch, ...], as it is sent away by tokens."""
    return x.transpose(0, 1).unflatten(0, (2, ranks, -1))


def join_tokens(x: Tensor) -> Tensor:
    """[2, ranks, part, batch, ...], as it arrives by tokens -> view [batch, 2 ranks part, ...]."""
    return x.flatten(0, 2).transpose(0, 1)


class SequenceToHeads(torch.autograd.Function):
    """q [batch, 2 part, heads, head_dim], k [batch, 2 part, kv_heads, head_dim], v [batch, 2 part, kv_heads, value_dim] -> the
    same of [batch, 2 ranks part, a part of the heads, ...], in the order of the sequence. All three travel together.

    Where kv_heads do not divide by the ranks, each is sent `copies` times, so that every rank gets as many and those that its
    queries use; the gradients of the copies are summed.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, group: Group) -> tuple[Tensor, Tensor, Tensor]:
        ranks, heads, kv_heads = group.size, q.shape[2], k.shape[2]
        if heads % ranks:
            raise ValueError(f"{heads} heads cannot be split over {ranks} ulysses ranks; use a divisor of the heads")
        copies = lcm(kv_heads, ranks) // kv_heads
        parts = [q, *(x.repeat_interleave(copies, 2) if copies > 1 else x for x in (k, v))]
        ctx.group, ctx.kv_heads = group, kv_heads
        q, k, v = map(join_tokens, _travel([split_heads(x, ranks) for x in parts], group))
        return q, k, v

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_q: Tensor, d_k: Tensor, d_v: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        group = ctx.group
        d_q, d_k, d_v = map(join_heads, _travel([split_tokens(x, group.size) for x in (d_q, d_k, d_v)], group))
        if d_k.shape[2] != ctx.kv_heads:
            d_k, d_v = (x.unflatten(2, (ctx.kv_heads, -1)).sum(3) for x in (d_k, d_v))
        return d_q, d_k, d_v, None


def _travel(parts: list[Tensor], group: Group) -> list[Tensor]:
    """Exchanges tensors [2, ranks, part, batch, heads, d] of any heads and d as one; gives views of what arrived."""
    widths = [x.shape[-2] * x.shape[-1] for x in parts]
    sent = torch.empty(*parts[0].shape[:4], sum(widths), dtype=parts[0].dtype, device=parts[0].device)
    for x, into in zip(parts, sent.split(widths, -1), strict=True):
        into.unflatten(-1, x.shape[-2:]).copy_(x)
    received = exchange(sent, group).split(widths, -1)
    return [y.unflatten(-1, x.shape[-2:]) for x, y in zip(parts, received, strict=True)]


class HeadsToSequence(torch.autograd.Function):
    """[batch, 2 ranks part, a part of the heads * value_dim] -> [batch, 2 part, heads * value_dim]."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, group: Group) -> Tensor:
        ctx.group = group
        received = exchange(split_tokens(out, group.size).contiguous(), group)
        return join_heads(received.unsqueeze(-2)).flatten(2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        ranks = ctx.group.size
        sent = split_heads(grad.unflatten(-1, (ranks, -1)), ranks).squeeze(4).contiguous()
        return join_tokens(exchange(sent, ctx.group)), None
