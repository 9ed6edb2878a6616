"""The head: final norm, unembedding and cross-entropy, chunk by chunk, so that wide logits exist for one chunk at a time.

The loss's divisor is known before backward (the one loss rule), so in training the head's forward and backward run as
one: each chunk's logits are made once, turned into their own gradient in place, and dropped. Where the vocabulary is split
over `tp`, no rank sees a whole row of logits: three numbers a token are exchanged (Shoeybi et al. 2019, section 3).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fourfold.config import ModelConfig
from fourfold.model.norm import normalize, normalize_backward, wide
from fourfold.model.parallel import ALONE, Group, Parallel
from fourfold.model.shape import chunk_tokens
from fourfold.model.tensor_parallel import gather_tokens, sum_partial
from fourfold.model.weights import HeadWeights


def head_loss(
    x: Tensor, targets: Tensor, weights: HeadWeights, model: ModelConfig, parallel: Parallel = ALONE
) -> Tensor:
    """The sum of the token losses, a scalar in fp32 (fp64 for fp64), the same on every rank of `tp`.

    x [t, hidden], targets [batch, seq].
    """
    normed, _ = normalize(x, weights, model.norm_eps)
    normed = gather_tokens(normed, parallel).wait()
    total = wide(normed.new_zeros(()))
    for part, target in _chunks(normed, targets, weights):
        total += _exponentiate(wide(F.linear(part, weights.unembedding.data)), target, parallel.tp).loss
    return total


def head_logits(x: Tensor, weights: HeadWeights, model: ModelConfig) -> Tensor:
    """Logits of every position. x [tokens, hidden] -> [tokens, vocab]; one process."""
    normed, _ = normalize(x, weights, model.norm_eps)
    return F.linear(normed, weights.unembedding.data)


def head_loss_backward(
    x: Tensor,
    targets: Tensor,
    weights: HeadWeights,
    model: ModelConfig,
    num_targets: Tensor,
    parallel: Parallel = ALONE,
    share: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """The microbatch's loss sum and the gradient of (share * loss sum / num_targets) with respect to x; adds weight gradients,
    at once even while others are put off.

    `num_targets`: valid target tokens of the whole global batch, an integer scalar. Returns (scalar, [t, hidden]).
    """
    normed, statistics = normalize(x, weights, model.norm_eps)
    normed = gather_tokens(normed, parallel).wait()
    total = wide(normed.new_zeros(()))
    divisor = num_targets.clamp(min=1)
    for part, target in _chunks(normed, targets, weights):
        logits = wide(F.linear(part, weights.unembedding.data))
        softmax = _exponentiate(logits, target, parallel.tp)
        total += softmax.loss
        scale = softmax.valid.to(logits.dtype) / divisor
        if share != 1:
            scale.mul_(share)
        logits.mul_((softmax.factor * scale).unsqueeze(-1))
        scale.masked_fill_(~softmax.here, 0).neg_()
        grad = logits.scatter_add_(-1, softmax.column.unsqueeze(-1), scale.unsqueeze(-1)).to(part.dtype)
        del logits, softmax
        weights.unembedding.add_product_now(grad, part)
        torch.mm(grad, weights.unembedding.data, out=part)  # the chunk of `normed` now holds its own gradient
        del grad, part
    grad_normed = sum_partial(normed, parallel)
    del normed
    return total, normalize_backward(grad_normed.wait(), x, statistics, weights)


def _chunks(normed: Tensor, targets: Tensor, weights: HeadWeights) -> Iterator[tuple[Tensor, Tensor]]:
    """normed [T, hidden] and targets in parts of as many tokens as logits may exist for."""
    size = chunk_tokens(weights.unembedding.data.shape[0], normed.is_cuda)
    return zip(normed.split(size), targets.view(-1).split(size), strict=True)


@dataclass(frozen=True)
class Softmax:
    """A chunk's softmax, [tokens] each: probability = what `_exponentiate` left in the logits x `factor`; `column`: the target's
    among this rank's, where it is `here` and `valid`; `loss`: the sum of the chunk's losses."""

    loss: Tensor
    factor: Tensor
    column: Tensor
    valid: Tensor
    here: Tensor


def _exponentiate(logits: Tensor, target: Tensor, tp: Group | None) -> Softmax:
    """Turns logits [tokens, this rank's vocabulary] into exp(logit - this rank's maximum) in place. target [tokens], -100: none."""
    columns = logits.shape[-1]
    valid = target != -100
    column = target if tp is None else target - tp.index * columns
    here = valid if tp is None else valid & (column >= 0) & (column < columns)
    column = column.clamp(0, columns - 1)
    maximum = logits.amax(-1)
    picked = logits.gather(-1, column.unsqueeze(-1)).squeeze(-1).masked_fill_(~here, 0)
    total = logits.sub_(maximum.unsqueeze(-1)).exp_().sum(-1)
    highest = maximum
    if tp is not None:
        highest, total, picked = _combine(torch.stack((maximum, total, picked)), tp)
    loss = (total.log() + (highest - picked)).masked_fill_(~valid, 0).sum()
    return Softmax(loss, maximum.sub_(highest).exp_().div_(total), column, valid, here)


def _combine(local: Tensor, tp: Group) -> tuple[Tensor, Tensor, Tensor]:
    """(maximum, sum of exponentials, target's logit) of each token over all ranks, from each rank's own. local [3, tokens]."""
    every = local.new_empty((tp.size, *local.shape))
    tp.all_gather(every, local).wait()
    maxima, sums, picked = every.unbind(1)
    highest = maxima.amax(0)
    return highest, (maxima - highest).exp_().mul_(sums).sum(0), picked.sum(0)
