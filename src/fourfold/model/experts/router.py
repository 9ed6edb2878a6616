"""The router: which experts a token passes and with what weights. Everything in fp32, or fp64 where the model computes in it."""

import math
from dataclasses import dataclass

from fourfold.model.operations import Array, Operations

EPSILON = 1e-20
"""Added to a sum of sigmoid scores before dividing by it, as in the released DeepSeek-V3."""


@dataclass(frozen=True)
class Routing:
    """How tokens find their experts. Each passes `top_k` of `num_experts`."""

    num_experts: int
    top_k: int
    router: str = "softmax"
    """`softmax` (Mixtral, Qwen3-MoE) or `sigmoid` (DeepSeek-V3) scores."""
    normalize_top_k: bool = True
    """Whether a token's chosen scores are divided by their sum."""
    routed_scaling: float = 1.0
    num_expert_groups: int = 1
    top_groups: int = 1
    balance_loss: float = 0.0
    """Weight of the sequence-wise load-balancing loss."""
    z_loss: float = 0.0
    """Weight of the router z-loss."""
    capacity_factor: float | None = None
    """Limit of an expert's tokens of a rank's microbatch: capacity_factor x top_k x tokens / num_experts. None: dropless."""


@dataclass(frozen=True)
class Choice:
    """The router's choice for n tokens: logits [n, experts], experts [n, top_k] int64, weights [n, top_k]."""

    logits: Array
    experts: Array
    weights: Array


def choose(
    ops: Operations, x: Array, router: Array, bias: Array | None, routing: Routing, added: Array | None = None
) -> Choice:
    """x [n, hidden], router [experts, hidden], `added` [experts] to its logits -> the `top_k` experts of every token.

    Softmax (Mixtral, Qwen3-MoE): the highest probabilities, divided by their sum where `normalize_top_k`. Sigmoid (DeepSeek-V3,
    equations 12 to 16): the highest of score + `bias` [experts] within the `top_groups` best groups, weighted by the scores
    without it. Both times `routed_scaling`.
    """
    logits = ops.linear(ops.upcast(x), ops.upcast(router), None if added is None else ops.upcast(added))
    with ops.fused():
        scores = score(logits, routing)
        experts = _select(ops, scores, bias, routing)
        return Choice(logits, experts, _weigh(scores.gather(1, experts), routing))


def score(logits: Array, routing: Routing) -> Array:
    """Every expert's score for every token [n, experts]."""
    return logits.sigmoid() if routing.router == "sigmoid" else logits.softmax(-1)


def _select(ops: Operations, scores: Array, bias: Array | None, routing: Routing) -> Array:
    if routing.router == "softmax":
        return ops.top_indices(scores, routing.top_k)
    preference = scores if bias is None else scores + bias
    if routing.num_expert_groups > 1:
        grouped = preference.view(len(scores), routing.num_expert_groups, -1)
        best = ops.top_indices(ops.top_values(grouped, 2).sum(-1), routing.top_groups)
        shut = grouped.new_ones(grouped.shape[:2], dtype=ops.boolean).scatter_(1, best, False)
        preference = grouped.masked_fill(shut.unsqueeze(-1), -math.inf).view_as(scores)
    return ops.top_indices(preference, routing.top_k)


def _weigh(chosen: Array, routing: Routing) -> Array:
    """Scores of the chosen experts [n, top_k] -> weights."""
    if routing.normalize_top_k:
        chosen = chosen / _total(chosen, routing)
    return chosen * routing.routed_scaling


def _total(scores: Array, routing: Routing) -> Array:
    total = scores.sum(-1, keepdim=True)
    return total + EPSILON if routing.router == "sigmoid" else total


def weights_backward(choice: Choice, scores: Array, grad_weights: Array, routing: Routing) -> Array:
    """Gradient of all scores [n, experts] from that of the chosen weights [n, top_k]."""
    grad = grad_weights * routing.routed_scaling
    if routing.normalize_top_k:
        chosen = scores.gather(1, choice.experts)
        total = _total(chosen, routing)
        grad = (grad - (grad * chosen).sum(-1, keepdim=True) / total) / total
    return scores.new_zeros(scores.shape).scatter_(1, choice.experts, grad)


def probabilities(scores: Array, routing: Routing) -> Array:
    """Scores that sum to one over the experts (DeepSeek-V3, equation 19)."""
    return scores if routing.router == "softmax" else scores / _total(scores, routing)


def probabilities_backward(grad: Array, scores: Array, routing: Routing) -> Array:
    """Gradient of the scores from that of `probabilities`, both [n, experts]."""
    if routing.router == "softmax":
        return grad
    total = _total(scores, routing)
    return (grad - (grad * scores).sum(-1, keepdim=True) / total) / total


def score_backward(grad: Array, scores: Array, routing: Routing) -> Array:
    """Gradient of the logits from that of the scores, both [n, experts]."""
    if routing.router == "sigmoid":
        return grad * scores * (1 - scores)
    return scores * (grad - (grad * scores).sum(-1, keepdim=True))
