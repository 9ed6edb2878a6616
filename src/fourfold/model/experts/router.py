"""The router: which experts a token passes and with what weights. Everything in fp32, or fp64 where the model computes in it."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fourfold.config import ModelConfig
from fourfold.model.norm import wide

EPSILON = 1e-20
"""Added to a sum of sigmoid scores before dividing by it, as in the released DeepSeek-V3."""


@dataclass(frozen=True)
class Choice:
    """What the router chose for n tokens: logits [n, experts], experts [n, top_k] int64, weights [n, top_k]."""

    logits: Tensor
    experts: Tensor
    weights: Tensor


def choose(x: Tensor, router: Tensor, bias: Tensor | None, model: ModelConfig) -> Choice:
    """x [n, hidden], router [experts, hidden] -> the `top_k` experts of every token.

    Softmax (Mixtral, Qwen3-MoE): the highest probabilities, divided by their sum where `normalize_top_k`. Sigmoid (DeepSeek-V3,
    equations 12 to 16): the highest of score + `bias` [experts] within the `top_groups` best groups, weighted by the scores
    without it. Both times `routed_scaling`.
    """
    logits = wide(x) @ wide(router).t()
    scores = score(logits, model)
    experts = _select(scores, bias, model)
    return Choice(logits, experts, _weigh(scores.gather(1, experts), model))


def score(logits: Tensor, model: ModelConfig) -> Tensor:
    """Every expert's score for every token [n, experts]."""
    return logits.sigmoid() if model.router == "sigmoid" else logits.softmax(-1)


def _select(scores: Tensor, bias: Tensor | None, model: ModelConfig) -> Tensor:
    if model.router == "softmax":
        return scores.topk(model.top_k, dim=-1).indices
    preference = scores if bias is None else scores + bias
    if model.num_expert_groups > 1:
        grouped = preference.view(len(scores), model.num_expert_groups, -1)
        best = grouped.topk(2, dim=-1).values.sum(-1).topk(model.top_groups, dim=-1).indices
        shut = torch.ones(grouped.shape[:2], dtype=torch.bool, device=scores.device).scatter_(1, best, False)
        preference = grouped.masked_fill(shut.unsqueeze(-1), -math.inf).view_as(scores)
    return preference.topk(model.top_k, dim=-1).indices


def _weigh(chosen: Tensor, model: ModelConfig) -> Tensor:
    """Scores of the chosen experts [n, top_k] -> weights."""
    if model.normalize_top_k:
        chosen = chosen / _total(chosen, model)
    return chosen * model.routed_scaling


def _total(scores: Tensor, model: ModelConfig) -> Tensor:
    total = scores.sum(-1, keepdim=True)
    return total + EPSILON if model.router == "sigmoid" else total


def weights_backward(choice: Choice, scores: Tensor, grad_weights: Tensor, model: ModelConfig) -> Tensor:
    """Gradient of all scores [n, experts] from that of the chosen weights [n, top_k]."""
    grad = grad_weights * model.routed_scaling
    if model.normalize_top_k:
        chosen = scores.gather(1, choice.experts)
        total = _total(chosen, model)
        grad = (grad - (grad * chosen).sum(-1, keepdim=True) / total) / total
    return torch.zeros_like(scores).scatter_(1, choice.experts, grad)


def probabilities(scores: Tensor, model: ModelConfig) -> Tensor:
    """Scores that sum to one over the experts (DeepSeek-V3, equation 19)."""
    return scores if model.router == "softmax" else scores / _total(scores, model)


def probabilities_backward(grad: Tensor, scores: Tensor, model: ModelConfig) -> Tensor:
    """Gradient of the scores from that of `probabilities`, both [n, experts]."""
    if model.router == "softmax":
        return grad
    total = _total(scores, model)
    return (grad - (grad * scores).sum(-1, keepdim=True) / total) / total


def score_backward(grad: Tensor, scores: Tensor, model: ModelConfig) -> Tensor:
    """Gradient of the logits from that of the scores, both [n, experts]."""
    if model.router == "sigmoid":
        return grad * scores * (1 - scores)
    return scores * (grad - (grad * scores).sum(-1, keepdim=True))
