"""Our forwards and backwards as functions that autograd and finite differences can be compared with."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fourfold.model.block import block_backward, block_forward
from fourfold.model.environment import SELECTIVE, Environment, Microbatch, Saved
from fourfold.model.spec import Segment

Backward = Callable[..., Sequence[Tensor]]
"""From the gradients of the outputs to those of the inputs."""


def rebuilding(keep: bool) -> Saved:
    """For a forward with a backward: everything is kept, or what selective recomputation rebuilds is not."""
    return Saved() if keep else Saved(SELECTIVE)


class _Pair(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: Callable[..., tuple[Any, Backward]], *inputs: Tensor) -> Any:
        outputs, ctx.backward_of = run(*inputs)
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        return (None, *ctx.backward_of(*grads))


def differentiable(run: Callable[..., tuple[Any, Backward]], *inputs: Tensor) -> Any:
    """`run(*inputs)` -> the output or outputs, and their backward. Returns the outputs, in autograd's graph."""
    return _Pair.apply(run, *inputs)


def differentiable_block(
    segment: Segment, env: Environment, x: Tensor, weights: Any, batch: Microbatch, keep: bool
) -> Tensor:
    """`block_forward` of x [t, hidden], with `block_backward` behind it."""

    def run(x: Tensor) -> tuple[Tensor, Backward]:
        saved = rebuilding(keep)
        out = block_forward(segment, env, x, weights, batch, saved)
        return out, lambda grad: (block_backward(segment, env, grad, x, weights, batch, saved),)

    return differentiable(run, x)
