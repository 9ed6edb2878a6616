"""Balance among experts: what the router's auxiliary losses add to its gradient, the counts, the bias that needs no loss.

Everything is recorded in backward, which runs once for a microbatch whatever is recomputed. Losses are normalised by numbers of
the whole global batch, so that their sum over microbatches and over all ranks that hold different tokens is the loss, and every
gradient is reduced by a sum.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fourfold.config import ModelConfig
from fourfold.model.experts.router import Choice, probabilities, probabilities_backward
from fourfold.model.parallel import Group, Parallel
from fourfold.model.tensor_parallel import Arriving


@dataclass(frozen=True)
class Balancing:
    """What one block's router reads and records beside its weights.

    `sequences`: rows of the microbatch, of `sequence_length` tokens before any rank's part is taken; `global_sequences`: rows of
    the global batch. `groups`: the ranks over which a sequence's tokens are split (`cp` and `tp`, as one group or several).
    `bias` [experts], read by sigmoid routers. Added to in backward: `load` [experts], tokens that chose each expert on this rank
    (before capacity drops any); `losses` [2], this rank's share of the balance loss and of the z-loss, with their weights.
    """

    sequences: int
    sequence_length: int
    global_sequences: int
    groups: tuple[Group, ...] = ()
    bias: Tensor | None = None
    load: Tensor | None = None
    losses: Tensor | None = None


def count_choices(choice: Choice, balancing: Balancing, model: ModelConfig, parallel: Parallel) -> Arriving | None:
    """Records the load; for the balance loss, starts counting how many tokens of each whole sequence chose each expert:
    [sequences, experts] int64."""
    if balancing.load is not None:
        ones = torch.ones_like(choice.experts, dtype=balancing.load.dtype)
        balancing.load.scatter_add_(0, choice.experts.view(-1), ones.view(-1))
    if not model.balance_loss:
        return None
    experts = choice.logits.shape[1]
    rows = _sequence_of(choice, balancing, parallel)
    counts = torch.zeros(balancing.sequences * experts, dtype=torch.int64, device=rows.device)
    places = (rows.unsqueeze(-1) * experts + choice.experts).view(-1)
    counts.scatter_add_(0, places, torch.ones_like(places))
    for group in balancing.groups[:-1]:
        group.all_reduce(counts).wait()
    last = balancing.groups[-1].all_reduce(counts) if balancing.groups else None
    return Arriving(counts.view(balancing.sequences, experts), last)


def _sequence_of(choice: Choice, balancing: Balancing, parallel: Parallel) -> Tensor:
    """The sequence of each of this rank's tokens [n]: the flat microbatch is split over `tp` wherever that falls."""
    tokens = len(choice.logits)
    ranks, index = (parallel.tp.size, parallel.tp.index) if parallel.tp is not None else (1, 0)
    own = torch.arange(index * tokens, (index + 1) * tokens, device=choice.logits.device)
    return own // (tokens * ranks // balancing.sequences)


def balance_gradient(
    choice: Choice, scores: Tensor, counts: Tensor, balancing: Balancing, model: ModelConfig, parallel: Parallel
) -> Tensor:
    """Gradient of the scores [n, experts] by the balance loss: per sequence sum_i f_i P_i, f_i = experts / (top_k T) x the number
    of its T tokens that chose i (constant), P_i = the mean probability of i (DeepSeek-V3, equations 17 to 20; with softmax
    Fedus et al. 2022, equations 4 to 6, a sequence)."""
    length = balancing.sequence_length
    frequency = counts.to(scores.dtype) * (counts.shape[1] / (model.top_k * length))
    weight = model.balance_loss / (balancing.global_sequences * length)
    grad = frequency.mul_(weight)[_sequence_of(choice, balancing, parallel)]
    if balancing.losses is not None:
        balancing.losses[0] += (grad * probabilities(scores, model)).sum()
    return probabilities_backward(grad, scores, model)


def z_gradient(choice: Choice, balancing: Balancing, model: ModelConfig) -> Tensor:
    """Gradient of the logits [n, experts] by the mean over all tokens of logsumexp(logits) squared (Zoph et al. 2022, eq. 5)."""
    level = choice.logits.logsumexp(-1, keepdim=True)
    weight = model.z_loss / (balancing.global_sequences * balancing.sequence_length)
    if balancing.losses is not None:
        balancing.losses[1] += weight * level.square().sum()
    return (choice.logits - level).exp_().mul_(level.mul_(2 * weight))


def update_bias(bias: Tensor, counts: Tensor, speed: float) -> None:
    """bias += speed x sign(mean - count), in place, both [experts] (Wang et al. 2024, algorithm 1). `counts`: of the whole global
    batch, the same on every rank."""
    loads = counts.to(bias.dtype)
    bias.add_(torch.sign(loads.mean() - loads), alpha=speed)
