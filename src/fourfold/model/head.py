"""The head: final norm, unembedding and cross-entropy, chunk by chunk, so that fp32 logits exist for one chunk at a time.

The loss's divisor is known before backward (the one loss rule), so in training the head's forward and backward run as
one: each chunk's logits are made once, turned into their own gradient in place, and dropped.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from fourfold.config import ModelConfig
from fourfold.model.footprint import chunk_tokens
from fourfold.model.norm import rms_norm, rms_norm_backward, wide
from fourfold.model.parallel import ALONE, Parallel
from fourfold.model.weights import HeadWeights


def head_loss(
    x: Tensor, targets: Tensor, weights: HeadWeights, model: ModelConfig, parallel: Parallel = ALONE
) -> Tensor:
    """The sum of the token losses, a scalar in fp32 (fp64 for fp64). x [tokens, hidden], targets [batch, seq]."""
    normed, _ = rms_norm(x, weights.norm.data, model.norm_eps)
    total = wide(normed.new_zeros(()))
    size = chunk_tokens(model.vocab_size)
    for part, target in zip(normed.split(size), targets.reshape(-1).split(size), strict=True):
        logits = wide(F.linear(part, weights.unembedding.data))
        total += F.cross_entropy(logits, target, ignore_index=-100, reduction="sum")
    return total


def head_logits(x: Tensor, weights: HeadWeights, model: ModelConfig) -> Tensor:
    """Logits of every position. x [tokens, hidden] -> [tokens, vocab]; one process."""
    normed, _ = rms_norm(x, weights.norm.data, model.norm_eps)
    return F.linear(normed, weights.unembedding.data)


def head_loss_backward(
    x: Tensor,
    targets: Tensor,
    weights: HeadWeights,
    model: ModelConfig,
    num_targets: Tensor,
    parallel: Parallel = ALONE,
) -> tuple[Tensor, Tensor]:
    """The microbatch's loss sum and the gradient of (loss sum / num_targets) with respect to x; adds weight gradients.

    `num_targets`: valid target tokens of the whole global batch, an integer scalar. Returns (scalar, [tokens, hidden]).
    """
    normed, scale = rms_norm(x, weights.norm.data, model.norm_eps)
    total = wide(normed.new_zeros(()))
    size = chunk_tokens(model.vocab_size)
    divisor = num_targets.clamp(min=1)
    for part, target in zip(normed.split(size), targets.reshape(-1).split(size), strict=True):
        logits = wide(F.linear(part, weights.unembedding.data))
        valid = target != -100
        index = target.clamp(min=0).unsqueeze(-1)
        log_probs = torch.log_softmax(logits, dim=-1)
        del logits
        total -= log_probs.gather(-1, index).squeeze(-1).masked_fill(~valid, 0.0).sum()
        grad = log_probs.exp_()
        grad.scatter_add_(-1, index, torch.full_like(index, -1, dtype=grad.dtype))
        grad.mul_((valid.to(grad.dtype) / divisor).unsqueeze(-1))
        grad = grad.to(part.dtype)
        del log_probs
        weights.unembedding.add_product_now(grad, part)
        torch.mm(grad, weights.unembedding.data, out=part)  # the chunk of `normed` now holds its own gradient
        del grad
    return total, rms_norm_backward(normed, x, scale, weights.norm)
