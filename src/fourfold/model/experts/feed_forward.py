"""The routed feed-forward half of a block: x + routed(norm(x)) + shared(norm(x)).

A mixture of experts (Shazeer et al. 2017; DeepSeekMoE, Dai et al. 2024). Tokens are routed by one rank of `tp` each; `etp`
ranks of an expert see the same tokens; rows travel over `ep` while the shared experts compute, forward and backward, and
their gradients while the gate and up gradient is added.

Symbols: T tokens of a microbatch on one rank of `tp`, t those whose hidden states this rank holds (T/tp under sequence
parallelism, else T), n = T/tp those that it routes, N = n x etp those whose experts it serves, m rows that its experts get.
"""

from collections.abc import Generator
from dataclasses import replace

from fourfold.model.environment import Environment, Saved
from fourfold.model.experts.balance import Balancing, balance_gradient, count_choices, z_gradient
from fourfold.model.experts.dispatch import (
    Route,
    Transfer,
    combine,
    combine_pairs,
    dispatch,
    dispatch_pairs,
    keep_within_capacity,
    plan_route,
)
from fourfold.model.experts.parts import Parts
from fourfold.model.experts.router import Choice, choose, score, score_backward, weights_backward
from fourfold.model.experts.shared import join, own_tokens, shared_backward, shared_forward
from fourfold.model.experts.swiglu import experts_backward, experts_forward
from fourfold.model.norm import normalize, normalize_again, normalize_backward
from fourfold.model.operations import Array
from fourfold.model.tensor_parallel import Arriving, gather_over, gather_tokens, scatter_over
from fourfold.model.weights import RoutedWeights, Weight


def routed_forward(
    env: Environment, x: Array, w: RoutedWeights, balancing: Balancing, saved: Saved, residual: Array | None = None
) -> Parts:
    """x [t, hidden] -> the same. `residual` [t, hidden]: is first added to x, in its place. Pauses where tokens are ready to go to
    their experts, and where their outputs are."""
    ops, parallel = env.ops, env.parallel
    normed, statistics = normalize(ops, x, w, env.model.norm_eps, residual)
    saved.keep(x_2=x, statistics_2=statistics, normed_2=normed)
    del statistics
    gathered = gather_tokens(normed, parallel) if w.shared is not None else None
    own = own_tokens(normed, parallel)
    choice = choose(ops, own, w.router.data, balancing.bias, env.model)
    route, rows, scale = _to_experts(env, own, choice)
    saved.keep(choice=choice, route=route)
    del normed, own, choice
    yield
    partial = None
    if w.shared is not None and gathered is not None:
        arriving = [gathered]
        del gathered
        partial = shared_forward(env, arriving, w.shared, saved)
    expert_rows, row_scale = rows.wait(), scale.wait()
    del rows, scale
    output, gate_up = experts_forward(ops, expert_rows, row_scale, w, route.groups)
    saved.keep(rows=expert_rows, row_scale=row_scale, expert_gate_up=gate_up)
    del expert_rows, row_scale, gate_up
    given = [output]
    del output
    returned = combine(route, given)
    yield
    routed = scatter_over(returned.wait(), parallel.etp).wait()
    del returned
    with ops.fused():
        return join(routed, partial, parallel).add_(x)


def routed_backward(env: Environment, grad: Array, w: RoutedWeights, balancing: Balancing, saved: Saved) -> Parts:
    """grad [t, hidden] -> the gradient of x; adds the weights' gradients, and records loads and auxiliary losses. Pauses where
    gradients are ready to go to the experts, and where those of the tokens are."""
    ops, parallel = env.ops, env.parallel
    grad = grad.contiguous()
    x, statistics = saved.take("x_2"), saved.take("statistics_2")
    choice, route = saved.take("choice"), replace(saved.take("route"), ep=parallel.ep)
    gathered = gather_tokens(grad, parallel) if w.shared is not None else None
    spread = gather_over(own_tokens(grad, parallel), parallel.etp).wait()
    incoming = dispatch(route, spread)
    del spread
    yield
    counts = count_choices(env, choice, balancing)
    normed = saved.take_if_kept("normed_2")
    if normed is None:
        normed = normalize_again(ops, x, statistics, w, env.model.norm_eps)
    partial = None
    if w.shared is not None and gathered is not None:
        given = [gathered]
        del gathered
        partial = shared_backward(env, given.pop(), normed, w.shared, saved)
    grad_own, grad_weights = yield from _from_experts(env, incoming, route, w, saved)
    del incoming, route
    grad_logits = _logits_backward(env, grad_weights, counts, choice, balancing)
    del choice, counts, grad_weights
    router_gradient = ops.matmul(grad_logits, ops.upcast(w.router.data))
    with ops.fused():
        grad_own.add_(router_gradient)
    del router_gradient
    _add_router_matmul(env, w.router, grad_logits, own_tokens(normed, parallel))
    del normed, grad_logits
    with ops.fused():
        joined = join(grad_own, partial, parallel)
        del grad_own, partial
        return normalize_backward(ops, joined, x, statistics, w, grad)


def _to_experts(env: Environment, own: Array, choice: Choice) -> tuple[Route, Transfer, Transfer]:
    """Starts sending own [n, hidden] and the choice's weights to the experts."""
    etp = env.parallel.etp
    arriving = (
        gather_over(own, etp),
        gather_over(keep_within_capacity(env.ops, choice, env.model), etp),
        gather_over(choice.weights, etp),
    )
    tokens, experts, weights = (part.wait() for part in arriving)
    model = env.model
    route = plan_route(env.ops, experts, model.num_experts, env.parallel.ep, all_kept=model.capacity_factor is None)
    return route, dispatch(route, tokens), dispatch_pairs(route, weights)


def _from_experts(
    env: Environment, incoming: Transfer, route: Route, w: RoutedWeights, saved: Saved
) -> Generator[None, None, tuple[Array, Array]]:
    """The gradient of the experts' output [m, hidden], as it comes in -> gradients of this rank's tokens [n, hidden] and of their
    routing weights [n, top_k]."""
    given = [incoming.wait(), saved.take("rows"), saved.take("expert_gate_up")]
    row_scale = saved.take("row_scale")
    grad_rows, grad_scale, add_gate_up = experts_backward(env.ops, given, row_scale, w, route.groups)
    del row_scale
    given = [grad_rows]
    del grad_rows
    back, back_weights = combine(route, given), combine_pairs(route, grad_scale)
    del grad_scale
    yield
    add_gate_up()
    del add_gate_up
    tokens, pairs = back.wait(), back_weights.wait()
    del back, back_weights
    arriving = scatter_over(tokens, env.parallel.etp), scatter_over(pairs, env.parallel.etp)
    del tokens, pairs
    return arriving[0].wait(), arriving[1].wait()


def _add_router_matmul(env: Environment, router: Weight, grad_logits: Array, x: Array) -> None:
    """router.grad += grad_logits^T @ x in the router's format, now or deferred. grad_logits [n, experts], x [n, hidden]."""
    router.add_later(lambda: router.add_matmul_now(env.ops, grad_logits, env.ops.upcast(x)))


def _logits_backward(
    env: Environment, grad_weights: Array, counts: Arriving | None, choice: Choice, balancing: Balancing
) -> Array:
    """Gradient of the router's logits [n, experts]: by the routing weights, and by the auxiliary losses."""
    model = env.model
    full = counts.wait() if counts is not None else None
    with env.ops.fused():
        scores = score(choice.logits, model)
        grad = weights_backward(choice, scores, grad_weights, model)
        if full is not None:
            grad.add_(balance_gradient(env, choice, scores, full, balancing))
        grad = score_backward(grad, scores, model)
        if model.z_loss:
            grad.add_(z_gradient(choice, balancing, model))
        return grad
