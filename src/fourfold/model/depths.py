"""The head for several depths: the next token's loss, and those of the modules of multi-token prediction, weighted.

Loss = main loss + mtp_loss / D x the sum of the modules' losses (DeepSeek-V3, equations 24 and 25), where each depth's token losses
are divided by the number of its own valid targets in the whole global batch.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from fourfold.config import ModelConfig
from fourfold.model.head import head_loss, head_loss_backward
from fourfold.model.parallel import ALONE, Parallel
from fourfold.model.segments import Microbatch
from fourfold.model.weights import HeadWeights


def losses(
    x: Tensor, batch: Microbatch, weights: HeadWeights, model: ModelConfig, parallel: Parallel = ALONE
) -> Tensor:
    """The sums of the token losses of every depth, [1 + D], as in `head_loss`. x [(1 + D) t, hidden]."""
    parts = _depths(x, batch, weights)
    return torch.stack([head_loss(part, targets, own, model, parallel) for part, targets, own in parts])


def losses_backward(
    x: Tensor,
    batch: Microbatch,
    weights: HeadWeights,
    model: ModelConfig,
    num_targets: Tensor,
    parallel: Parallel = ALONE,
) -> tuple[Tensor, Tensor]:
    """As `head_loss_backward`, for every depth. x [(1 + D) t, hidden], num_targets [1 + D] -> (sums [1 + D], gradient of x)."""
    if not weights.depth_norms:
        total, grad = head_loss_backward(x, batch.targets, weights, model, num_targets[0], parallel=parallel)
        return total.view(1), grad
    sums, grads = [], torch.empty_like(x)
    into = grads.chunk(1 + len(weights.depth_norms))
    share = 1.0
    for (part, targets, own), divisor, target in zip(_depths(x, batch, weights), num_targets, into, strict=True):
        total, grad = head_loss_backward(part, targets, own, model, divisor, parallel=parallel, share=share)
        target.copy_(grad)
        del grad
        sums.append(total)
        share = model.mtp_loss / model.mtp_layers
    return torch.stack(sums), grads


def _depths(x: Tensor, batch: Microbatch, weights: HeadWeights) -> Iterator[tuple[Tensor, Tensor, HeadWeights]]:
    """Every depth's hidden states [t, hidden], targets [batch, seq] and weights."""
    parts = x.chunk(1 + len(weights.depth_norms))
    yield parts[0], batch.targets, weights
    for index, norm in enumerate(weights.depth_norms):
        assert batch.ahead_targets is not None
        yield parts[1 + index], batch.ahead_targets[index], replace(weights, norm=norm)
