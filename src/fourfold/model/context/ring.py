"""Ring attention: keys and values go round the ranks while each computes on those that it has (Liu, Zaharia & Abbeel 2023).

At step t rank i has the keys of rank i - t; the next ones are in flight meanwhile. Backward sends keys and values round once more,
with the sums of their gradients behind: rank i adds its share to those of rank i - t and passes them on. They come home after
R - 1 steps, where the own share, half of which was computed while they were on the last link, completes them.
"""

from collections.abc import Sequence
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
from fourfold.model.parallel import Group, Work


class Rotation:
    """A tensor that goes round a ring: `start` sends what is here, `finish` puts what came in its place. Two buffers."""

    def __init__(self, group: Group, tensor: Tensor) -> None:
        self.here = tensor
        self._group = group
        self._other: Tensor | None = None
        self._work: Work | None = None

    def start(self) -> None:
        if self._other is None:
            self._other = torch.empty_like(self.here)
        self._work = self._group.shift([self._other], [self.here])

    def finish(self) -> None:
        if self._work is not None:
            assert self._other is not None
            self._work.wait()
            self.here, self._other, self._work = self._other, self.here, None


class RingAttention(torch.autograd.Function):
    """q [batch, seq_local, heads, head_dim], k [batch, seq_local, kv_heads, head_dim], v [batch, seq_local, kv_heads, value_dim]
    -> [batch, seq_local, heads * value_dim]. `steps[t]`: the pieces against the keys of the rank t places before.

    Keeps q, k, v, the output and its log-sum-exp: nothing grows with the ring.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, group: Group, steps: Sequence[Sequence[Piece]], scale: float
    ) -> Tensor:
        width, head_dim = kernel_width(q, v), q.shape[-1]
        wide_q = widen(q, width)
        rotation = Rotation(group, joined(k, v))
        rotation.start()
        out, lse = own_output(wide_q, widen(k, width), widen(v, width), steps[0], scale, wide(q.dtype))
        for step, pieces in enumerate(steps[1:], 1):
            rotation.finish()
            if step + 1 < group.size:
                rotation.start()
            keys, values = (widen(x, width) for x in halves(rotation.here, head_dim))
            merge_output(out, lse, wide_q, keys, values, pieces, scale)
            del keys, values
        del rotation
        out = out[..., : v.shape[-1]].to(q.dtype).contiguous()
        ctx.inputs, ctx.out, ctx.lse = (q, k, v), out, lse
        ctx.group, ctx.steps, ctx.scale = group, steps, scale
        return out.view(*out.shape[:2], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None, None]:
        (q, k, v), group, steps = ctx.inputs, ctx.group, ctx.steps
        width, head_dim = kernel_width(q, v), q.shape[-1]
        grad = grad.view_as(ctx.out)
        saved = Saved(widen(grad, width), widen(q, width), widen(ctx.out, width), ctx.lse, ctx.scale)
        first, second = own_work_in_two(steps[0], k.shape[2])
        rotation = Rotation(group, joined(k, v))
        sums = Rotation(group, torch.empty(0))
        rotation.start()
        d_q = torch.zeros_like(saved.q, dtype=wide(q.dtype))
        own_shares = add_query_gradients(saved, widen(k, width), widen(v, width), first[0], d_q, first[1])
        for step, pieces in enumerate(steps[1:], 1):
            rotation.finish()
            if step + 1 < group.size:
                rotation.start()
            keys, values = (widen(x, width) for x in halves(rotation.here, head_dim))
            shares = add_query_gradients(saved, keys, values, pieces, d_q)
            sums.finish()
            if step == 1:
                sums.here = torch.zeros_like(rotation.here, dtype=d_q.dtype)
            add_key_gradients(shares, *halves(sums.here, head_dim))
            del shares, keys, values
            sums.start()
        del rotation
        own_shares += add_query_gradients(saved, widen(k, width), widen(v, width), second[0], d_q, second[1])
        sums.finish()
        d_kv = sums.here
        add_key_gradients(own_shares, *halves(d_kv, head_dim))
        del sums, own_shares
        ctx.inputs = ctx.out = ctx.lse = None
        d_k, d_v = halves(d_kv.to(q.dtype), head_dim)
        return d_q[..., :head_dim].to(q.dtype), d_k, d_v, None, None, None
