"""The routed feed-forward: routed(x) + shared(x).

A mixture of experts (Shazeer et al. 2017; DeepSeekMoE, Dai et al. 2024). Tokens are routed by one rank of `tp` each; `etp`
ranks of an expert see the same tokens; rows travel over `ep` while the shared experts compute, forward and backward, and
their gradients while the gate and up gradient is added.

Symbols: T tokens of a microbatch on one rank of `tp`, t those whose hidden states this rank holds (T/tp under sequence
parallelism, else T), n = T/tp those that it routes, N = n x etp those whose experts it serves, m rows that its experts get.
"""

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import TypeVar

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
from fourfold.model.experts.router import Choice, Routing, choose, score, score_backward, weights_backward
from fourfold.model.experts.shared import join, own_tokens, shared_backward, shared_forward
from fourfold.model.experts.swiglu import ExpertParameters, Scaling, experts_backward, experts_forward
from fourfold.model.kinds.feed_forward import GatedFeedForward, GatedParameters
from fourfold.model.kinds.kind import Pass
from fourfold.model.operations import Array
from fourfold.model.parameter import Declared, Parameters, ParameterSpec, Widths, replicated
from fourfold.model.swiglu import Gate
from fourfold.model.tensor_parallel import Arriving, InputSource, add_bias, gather_over, gather_tokens, scatter_over
from fourfold.model.weights import Weight

T = TypeVar("T")


@dataclass(frozen=True)
class RoutedParameters(Parameters[T]):
    """Router [experts, hidden] and the biases of its logits [experts]; `shared`: the experts that every token passes,
    `shared_gate` [1, hidden]: their gate; `experts`: this rank's others."""

    router: T
    shared: GatedParameters[T] | None
    experts: ExpertParameters[T]
    router_bias: T | None = None
    shared_gate: T | None = None


@dataclass(frozen=True)
class RoutedFeedForward:
    """Experts of `ffn_size`, each a SwiGLU, of which every token passes some; and `num_shared_experts` that it passes always, as
    one feed-forward of as many times that size. `bias`: of the experts' projections, `router_bias`: of the router's logits.
    `shared_gate`: the shared experts' output is multiplied by the sigmoid of a number of each token (Qwen3-Next). `scaling`: what
    routing weights multiply."""

    ffn_size: int
    routing: Routing
    num_shared_experts: int = 0
    activation: Gate = "silu"
    bias: bool = False
    router_bias: bool = False
    shared_gate: bool = False
    scaling: Scaling = "output"

    @property
    def shared(self) -> GatedFeedForward | None:
        size = self.num_shared_experts * self.ffn_size
        return GatedFeedForward(size, "mlp.shared_experts.", self.activation) if size else None

    @property
    def words(self) -> str:
        return f"{self.routing.top_k} of {self.routing.num_experts} experts of {self.ffn_size:,}"

    def declare(self, widths: Widths) -> RoutedParameters[Declared]:
        """The router, which sees each token on one rank alone, the shared experts, and the experts' matrices, stacked."""
        experts, hidden, ffn = self.routing.num_experts, widths.hidden, self.ffn_size
        gate_up, down = (experts, 2, ffn, hidden), (experts, hidden, ffn)
        down_bias = ParameterSpec("mlp.experts.down_proj_bias", down[:2], 0.0, False, 1, domain="expert")
        gate_up_bias = ParameterSpec("mlp.experts.gate_up_proj_bias", gate_up[:3], 0.0, False, 2, domain="expert")
        router_bias = ParameterSpec("mlp.gate.bias", (experts,), 0.0, False, None, summed="always")
        return RoutedParameters(
            router=replicated("mlp.gate.weight", (experts, hidden), widths.std, "always"),
            shared=self.shared.declare(widths) if self.shared is not None else None,
            experts=ExpertParameters(
                ParameterSpec("mlp.experts.gate_up_proj", gate_up, widths.std, True, 2, domain="expert"),
                ParameterSpec("mlp.experts.down_proj", down, widths.residual_std, True, 2, domain="expert"),
                gate_up_bias if self.bias else None,
                down_bias if self.bias else None,
            ),
            router_bias=router_bias if self.router_bias else None,
            shared_gate=replicated("mlp.shared_expert_gate.weight", (1, hidden), widths.std, "always")
            if self.shared_gate
            else None,
        )

    def forward(
        self, run: Pass, given: list[Array], w: RoutedParameters[Weight], residual: Array | None = None
    ) -> Parts:
        """residual + the output. `given`: x [t, hidden], taken out of the list -> [t, hidden]. Pauses where tokens are ready to go
        to their experts, and where their outputs are."""
        env, ops, parallel, saved = run.env, run.ops, run.parallel, run.saved
        x = given.pop()
        gathered = gather_tokens(x, parallel) if w.shared is not None else None
        own = own_tokens(x, parallel)
        added = w.router_bias.data if w.router_bias is not None else None
        choice = choose(ops, own, w.router.data, _balancing(run).bias, self.routing, added)
        route, rows, scale = self._to_experts(run, own, choice)
        saved.keep(choice=choice, route=route)
        del x, own, choice
        yield
        partial = None
        if w.shared is not None and gathered is not None:
            arriving = [gathered]
            del gathered
            partial = shared_forward(env, arriving, w.shared, saved, self.activation, w.shared_gate)
        expert_rows, row_scale = rows.wait(), scale.wait()
        del rows, scale
        output, gate_up = experts_forward(
            ops, expert_rows, row_scale, w.experts, route.groups, self.activation, parallel.etp, self.scaling
        )
        saved.keep(rows=expert_rows, row_scale=row_scale, expert_gate_up=gate_up)
        del expert_rows, row_scale, gate_up
        given.append(output)
        del output
        returned = combine(route, given)
        yield
        routed = scatter_over(returned.wait(), parallel.etp).wait()
        del returned
        with ops.fused():
            out = join(routed, partial, parallel)
            return out if residual is None else out.add_(residual)

    def backward(self, run: Pass, grad: Array, w: RoutedParameters[Weight], source: InputSource) -> Parts:
        """grad [t, hidden] of the output -> the gradient of the residual stream; adds the weights' gradients, and records loads and
        auxiliary losses. Pauses where gradients are ready to go to the experts, and where those of the tokens are."""
        env, ops, parallel, saved = run.env, run.ops, run.parallel, run.saved
        grad = grad.contiguous()
        choice, route = saved.take("choice"), replace(saved.take("route"), ep=parallel.ep)
        gathered = gather_tokens(grad, parallel) if w.shared is not None else None
        spread = gather_over(own_tokens(grad, parallel), parallel.etp).wait()
        incoming = dispatch(route, spread)
        del spread
        yield
        balancing = _balancing(run)
        counts = count_choices(env, choice, balancing, self.routing)
        x = source.input()
        partial = None
        if w.shared is not None and gathered is not None:
            given = [gathered]
            del gathered
            partial = shared_backward(env, given.pop(), x, w.shared, saved, self.activation, w.shared_gate)
        grad_own, grad_weights = yield from self._from_experts(run, incoming, route, w)
        del incoming, route
        grad_logits = self._logits_backward(run, grad_weights, counts, choice, balancing)
        del choice, counts, grad_weights
        router_gradient = ops.matmul(grad_logits, ops.upcast(w.router.data))
        with ops.fused():
            grad_own.add_(router_gradient)
        del router_gradient
        add_bias(ops, w.router_bias, grad_logits)
        _add_router_matmul(run, w.router, grad_logits, own_tokens(x, parallel))
        del x, grad_logits
        parts = [grad_own, partial]
        del grad_own, partial
        return source.gradient(lambda: join(parts.pop(0), parts.pop(), parallel))

    def _to_experts(self, run: Pass, own: Array, choice: Choice) -> tuple[Route, Transfer, Transfer]:
        """Starts sending own [n, hidden] and the choice's weights to the experts."""
        ops, etp = run.ops, run.parallel.etp
        arriving = (
            gather_over(own, etp),
            gather_over(keep_within_capacity(ops, choice, self.routing), etp),
            gather_over(choice.weights, etp),
        )
        tokens, experts, weights = (part.wait() for part in arriving)
        routing = self.routing
        route = plan_route(ops, experts, routing.num_experts, run.parallel.ep, all_kept=routing.capacity_factor is None)
        return route, dispatch(route, tokens), dispatch_pairs(route, weights)

    def _from_experts(
        self, run: Pass, incoming: Transfer, route: Route, w: RoutedParameters[Weight]
    ) -> Generator[None, None, tuple[Array, Array]]:
        """The gradient of the experts' output [m, hidden], as it comes in -> gradients of this rank's tokens [n, hidden] and of
        their routing weights [n, top_k]."""
        ops, saved, etp = run.ops, run.saved, run.parallel.etp
        given = [incoming.wait(), saved.take("rows"), saved.take("expert_gate_up")]
        row_scale = saved.take("row_scale")
        grad_rows, grad_scale, add_gate_up = experts_backward(
            ops, given, row_scale, w.experts, route.groups, self.activation, etp, self.scaling
        )
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
        arriving = scatter_over(tokens, etp), scatter_over(pairs, etp)
        del tokens, pairs
        return arriving[0].wait(), arriving[1].wait()

    def _logits_backward(
        self, run: Pass, grad_weights: Array, counts: Arriving | None, choice: Choice, balancing: Balancing
    ) -> Array:
        """Gradient of the router's logits [n, experts]: by the routing weights, and by the auxiliary losses."""
        ops, routing = run.ops, self.routing
        full = counts.wait() if counts is not None else None
        with ops.fused():
            scores = score(choice.logits, routing)
            grad = weights_backward(choice, scores, grad_weights, routing)
            if full is not None:
                grad.add_(balance_gradient(run.env, choice, scores, full, balancing, routing))
            grad = score_backward(grad, scores, routing)
            if routing.z_loss:
                grad.add_(z_gradient(choice, balancing, routing))
            return grad


def _add_router_matmul(run: Pass, router: Weight, grad_logits: Array, x: Array) -> None:
    """router.grad += grad_logits^T @ x in the router's format, now or deferred. grad_logits [n, experts], x [n, hidden]."""
    router.add_later(lambda: router.add_matmul_now(run.ops, grad_logits, run.ops.upcast(x)))


def _balancing(run: Pass) -> Balancing:
    """The pass's own, else one as if the microbatch were the full global batch, and its sequences lay on the ranks of `tp`."""
    if run.balancing is not None:
        return run.balancing
    sequences, length = run.batch.tokens.shape
    tp = run.parallel.tp
    return Balancing(sequences, length, sequences, () if tp is None else (tp,))
