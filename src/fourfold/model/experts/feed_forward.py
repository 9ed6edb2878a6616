"""The routed feed-forward half of a block as one operator: x + routed(norm(x)) + shared(norm(x)).

Symbols: T tokens of a microbatch on one rank of `tp`, t those whose hidden states this rank holds (T/tp under sequence
parallelism, else T), n = T/tp those that it routes, N = n x etp those whose experts it serves, m rows that its experts get.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fourfold.config import ModelConfig
from fourfold.model.experts.balance import Balancing, balance_gradient, count_choices, z_gradient
from fourfold.model.experts.dispatch import (
    Route,
    Transfer,
    combine,
    combine_pairs,
    dispatch,
    dispatch_pairs,
    gather_over,
    keep_within_capacity,
    plan_route,
    scatter_over,
)
from fourfold.model.experts.router import Choice, choose, score, score_backward, weights_backward
from fourfold.model.experts.shared import SharedState, begin_sum, join, own_tokens, shared_backward, shared_forward
from fourfold.model.experts.swiglu import experts_backward, experts_forward
from fourfold.model.norm import apply_rms, rms_norm, rms_norm_backward, wide
from fourfold.model.parallel import Parallel
from fourfold.model.tensor_parallel import Arriving, gather_tokens
from fourfold.model.weights import RoutedWeights, Weight


@dataclass
class RoutedState:
    """Kept for backward: the choice, the route, the experts' rows [m, hidden], their routing weights [m], gate_up [m, 2 ffn]."""

    choice: Choice
    route: Route
    rows: Tensor
    scale: Tensor
    gate_up: Tensor
    shared: SharedState | None


class RoutedFeedForward(torch.autograd.Function):
    """A mixture of experts after a norm (Shazeer et al. 2017; DeepSeekMoE, Dai et al. 2024). x [t, hidden] -> the same.

    Tokens are routed by one rank of `tp` each; `etp` ranks of an expert see the same tokens; rows travel over `ep` while the
    shared experts compute, forward and backward, and their gradients while the gate and up gradient is added.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weights: RoutedWeights,
        model: ModelConfig,
        balancing: Balancing,
        parallel: Parallel,
        keep: bool,
    ) -> Tensor:
        normed, ctx.scale = rms_norm(x, weights.norm.data, model.norm_eps)
        gathered = gather_tokens(normed, parallel) if weights.shared is not None else None
        own = own_tokens(normed, parallel)
        choice = choose(own, weights.router.data, balancing.bias, model)
        route, rows, scale = _to_experts(own, choice, model, parallel)
        ctx.normed = normed if keep else None
        del normed, own
        partial, shared = None, None
        if weights.shared is not None and gathered is not None:
            partial, shared = _begin_shared(gathered, weights, parallel, keep)
            del gathered
        state_rows, state_scale = rows.wait(), scale.wait()
        output, gate_up = experts_forward(state_rows, state_scale, weights, route.groups)
        routed = scatter_over(combine(route, output).wait(), parallel.etp).wait()
        del output
        ctx.x, ctx.weights, ctx.model, ctx.balancing, ctx.parallel = x, weights, model, balancing, parallel
        ctx.state = RoutedState(choice, route, state_rows, state_scale, gate_up, shared)
        return join(routed, partial, parallel).add_(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weights, parallel, state = ctx.weights, ctx.parallel, ctx.state
        ctx.state = None
        grad = grad.contiguous()
        gathered = gather_tokens(grad, parallel) if weights.shared is not None else None
        spread = gather_over(own_tokens(grad, parallel), parallel.etp).wait()
        incoming = dispatch(state.route, spread)
        del spread
        counts = count_choices(state.choice, ctx.balancing, ctx.model, parallel)
        normed = ctx.normed if ctx.normed is not None else apply_rms(ctx.x, ctx.scale, weights.norm.data)
        ctx.normed = None
        partial = None
        if weights.shared is not None and gathered is not None:
            partial = shared_backward(gathered, state.shared, normed, weights.shared, parallel)
            state.shared = None
            del gathered
        grad_own, grad_weights = _from_experts(incoming, state, weights, parallel)
        del incoming
        grad_logits = _logits_backward(grad_weights, counts, state.choice, ctx)
        grad_own.add_(grad_logits @ wide(weights.router.data))
        _add_router_product(weights.router, grad_logits, own_tokens(normed, parallel))
        del normed, state, grad_logits
        grad_x = rms_norm_backward(join(grad_own, partial, parallel), ctx.x, ctx.scale, weights.norm)
        ctx.x = ctx.scale = None
        return grad_x.add_(grad), None, None, None, None, None


def _to_experts(
    own: Tensor, choice: Choice, model: ModelConfig, parallel: Parallel
) -> tuple[Route, Transfer, Transfer]:
    """Starts sending own [n, hidden] and the choice's weights to the experts."""
    etp = parallel.etp
    arriving = (
        gather_over(own, etp),
        gather_over(keep_within_capacity(choice, model), etp),
        gather_over(choice.weights, etp),
    )
    tokens, experts, weights = (part.wait() for part in arriving)
    route = plan_route(experts, model.num_experts, parallel.ep)
    return route, dispatch(route, tokens), dispatch_pairs(route, weights)


def _begin_shared(
    gathered: Arriving, weights: RoutedWeights, parallel: Parallel, keep: bool
) -> tuple[Arriving, SharedState]:
    assert weights.shared is not None
    partial, state = shared_forward(gathered, weights.shared, keep)
    return begin_sum(partial, parallel), state


def _from_experts(
    incoming: Transfer, state: RoutedState, weights: RoutedWeights, parallel: Parallel
) -> tuple[Tensor, Tensor]:
    """The gradient of the experts' output [m, hidden], as it comes in -> gradients of this rank's tokens [n, hidden] and of their
    routing weights [n, top_k]."""
    grad_rows, grad_scale, add_gate_up = experts_backward(
        incoming.wait(), state.rows, state.scale, state.gate_up, weights, state.route.groups
    )
    del state.rows, state.gate_up
    back, back_weights = combine(state.route, grad_rows), combine_pairs(state.route, grad_scale)
    del grad_rows
    add_gate_up()
    del add_gate_up
    tokens, pairs = back.wait(), back_weights.wait()
    arriving = scatter_over(tokens, parallel.etp), scatter_over(pairs, parallel.etp)
    del tokens
    return arriving[0].wait(), arriving[1].wait()


def _add_router_product(router: Weight, grad_logits: Tensor, x: Tensor) -> None:
    """router.grad += grad_logits^T @ x in the router's format, now or put off. grad_logits [n, experts], x [n, hidden]."""
    router.add_later(lambda: router.add_product_now(grad_logits, wide(x)))


def _logits_backward(grad_weights: Tensor, counts: Arriving | None, choice: Choice, ctx: Any) -> Tensor:
    """Gradient of the router's logits [n, experts]: by the routing weights, and by the auxiliary losses."""
    model, balancing = ctx.model, ctx.balancing
    scores = score(choice.logits, model)
    grad = weights_backward(choice, scores, grad_weights, model)
    if counts is not None:
        grad.add_(balance_gradient(choice, scores, counts.wait(), balancing, model, ctx.parallel))
    grad = score_backward(grad, scores, model)
    if model.z_loss:
        grad.add_(z_gradient(choice, balancing, model))
    return grad
