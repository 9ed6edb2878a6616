"""Keys and values of all ranks gathered before attention, their gradients scattered after (Llama 3 2024, section 3.3.2).

Front chunks and back chunks are gathered apart, so that the keys which some queries see lie side by side without being moved:
all queries see the front chunks of the ranks before; the back chunk's queries see both chunks of the ranks after.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fourfold.model.context.flash import kernel_width, widen
from fourfold.model.context.partial import (
    Saved,
    add_key_gradients,
    add_query_gradients,
    halves,
    joined,
    merge_output,
    own_output,
    own_work_in_two,
    wide,
)
from fourfold.model.context.pieces import Piece
from fourfold.model.parallel import Group


class Gathering:
    """All ranks' keys and values, in flight. `finish` joins and gives the front chunks, then the back chunks, each a view
    [batch, ranks * chunk, kv_heads, head_dim + value_dim] in rank order."""

    def __init__(self, group: Group, k: Tensor, v: Tensor) -> None:
        # Tokens first, so that the ranks' chunks stand one after the other whatever the batch.
        shards = joined(k.transpose(0, 1), v.transpose(0, 1)).chunk(2)
        wholes = [shard.new_empty(group.size * shard.shape[0], *shard.shape[1:]) for shard in shards]
        self._works = [group.all_gather(*pair) for pair in zip(wholes, shards, strict=True)]
        self._tensors = list(zip(wholes, shards, strict=True))

    def finish(self) -> Iterator[Tensor]:
        for work, (whole, _) in zip(self._works, self._tensors, strict=True):
            work.wait()
            yield whole.transpose(0, 1)


class GatherAttention(torch.autograd.Function):
    """q [batch, seq_local, heads, head_dim], k [batch, seq_local, kv_heads, head_dim], v [batch, seq_local, kv_heads, value_dim]
    -> [batch, seq_local, heads * value_dim]. `own`, `front`, `back`: the pieces against the rank's keys, and against the
    gathered front and back chunks of others. Keeps q, k, v, the output and its log-sum-exp."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        group: Group,
        own: Sequence[Piece],
        front: Sequence[Piece],
        back: Sequence[Piece],
        scale: float,
    ) -> Tensor:
        width = kernel_width(q, v)
        wide_q = widen(q, width)
        gathering = Gathering(group, k, v)
        out, lse = own_output(wide_q, widen(k, width), widen(v, width), own, scale, wide(q.dtype))
        for kv, pieces in zip(gathering.finish(), (front, back), strict=True):
            keys, values = (widen(x, width) for x in halves(kv, q.shape[-1]))
            merge_output(out, lse, wide_q, keys, values, pieces, scale)
            del keys, values
        del gathering, kv
        out = out[..., : v.shape[-1]].to(q.dtype).contiguous()
        ctx.inputs, ctx.out, ctx.lse = (q, k, v), out, lse
        ctx.group, ctx.pieces, ctx.scale = group, (own, front, back), scale
        return out.view(*out.shape[:2], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (q, k, v), group, (own, front, back) = ctx.inputs, ctx.group, ctx.pieces
        width, head_dim = kernel_width(q, v), q.shape[-1]
        gathering = Gathering(group, k, v)
        grad = grad.view_as(ctx.out)
        saved = Saved(widen(grad, width), widen(q, width), widen(ctx.out, width), ctx.lse, ctx.scale)
        first, second = own_work_in_two(own, k.shape[2])
        d_q = torch.zeros_like(saved.q, dtype=wide(q.dtype))
        own_shares = add_query_gradients(saved, widen(k, width), widen(v, width), first[0], d_q, first[1])
        scatterings = []
        for kv, pieces in zip(gathering.finish(), (front, back), strict=True):
            keys, values = (widen(x, width) for x in halves(kv, head_dim))
            shares = add_query_gradients(saved, keys, values, pieces, d_q)
            whole = torch.zeros(kv.transpose(0, 1).shape, dtype=d_q.dtype, device=kv.device)
            add_key_gradients(shares, *halves(whole.transpose(0, 1), head_dim))
            scatterings.append(_scatter(whole, group))
            del keys, values, shares, whole
        del gathering, kv
        own_shares += add_query_gradients(saved, widen(k, width), widen(v, width), second[0], d_q, second[1])
        d_kv = torch.cat([finish() for finish in scatterings]).transpose(0, 1)
        add_key_gradients(own_shares, *halves(d_kv, head_dim))
        del scatterings, own_shares
        ctx.inputs = ctx.out = ctx.lse = None
        d_k, d_v = halves(d_kv.to(q.dtype), head_dim)
        return d_q[..., :head_dim].to(q.dtype), d_k, d_v, *(None,) * 5


def _scatter(whole: Tensor, group: Group) -> Callable[[], Tensor]:
    """Starts the sum over ranks of the gradients of all ranks' chunks, [ranks * chunk, ...]; calling what it returns joins it
    and gives this rank's, [chunk, ...]."""
    into = whole.new_empty(whole.shape[0] // group.size, *whole.shape[1:])
    work = group.sum_scatter(whole, into)

    def finish() -> Tensor:
        work.wait()
        return into

    return finish
