"""Balance among experts: what the router's auxiliary losses add to its gradient, the counts, the bias that needs no loss.

Everything is recorded in backward, which runs once for a microbatch whatever is recomputed. Losses are normalised by numbers of
the full global batch, so that their sum over microbatches and over all ranks that hold different tokens is the loss, and every
gradient is reduced by a sum.
"""

from dataclasses import dataclass

from fourfold.model.environment import Environment
from fourfold.model.experts.router import Choice, Routing, probabilities, probabilities_backward
from fourfold.model.operations import Array
from fourfold.model.parallel import Group
from fourfold.model.tensor_parallel import Arriving


@dataclass(frozen=True)
class Balancing:
    """The state of one block's router beside its weights: what it reads, and what it records.

    `sequences`: rows of the microbatch, of `sequence_length` tokens before any rank's part is taken; `global_sequences`: rows of
    the global batch. `groups`: the ranks over which a sequence's tokens are split (`cp` and `tp`, as one group or several).
    `bias` [experts], read by sigmoid routers. Added to in backward: `load` [experts], tokens that chose each expert on this rank
    (before capacity drops any); `losses` [2], this rank's share of the balance loss and of the z-loss, with their weights.
    """

    sequences: int
    sequence_length: int
    global_sequences: int
    groups: tuple[Group, ...] = ()
    bias: Array | None = None
    load: Array | None = None
    losses: Array | None = None


def count_choices(env: Environment, choice: Choice, balancing: Balancing, routing: Routing) -> Arriving | None:
    """Records the load; for the balance loss, starts counting how many tokens of each full sequence chose each expert:
    [sequences, experts] int64."""
    ops, chosen = env.ops, choice.experts.view(-1)
    if balancing.load is not None:
        with ops.fused():
            balancing.load.scatter_add_(0, chosen, balancing.load.new_ones(chosen.shape))
    if not routing.balance_loss:
        return None
    experts = choice.logits.shape[1]
    with ops.fused():
        rows = _sequence_of(env, choice, balancing)
        counts = chosen.new_zeros((balancing.sequences * experts,))
        places = (rows.unsqueeze(-1) * experts + choice.experts).view(-1)
        counts.scatter_add_(0, places, places.new_ones(places.shape))
        del places, rows
    for group in balancing.groups[:-1]:
        group.all_reduce(counts).wait()
    last = balancing.groups[-1].all_reduce(counts) if balancing.groups else None
    return Arriving(counts.view(balancing.sequences, experts), last)


def _sequence_of(env: Environment, choice: Choice, balancing: Balancing) -> Array:
    """The sequence of each of this rank's tokens [n]: the flat microbatch is split over `tp` wherever that falls."""
    tokens, tp = len(choice.logits), env.parallel.tp
    ranks, index = (tp.size, tp.index) if tp is not None else (1, 0)
    own = env.ops.arange(index * tokens, (index + 1) * tokens, choice.logits)
    return own // (tokens * ranks // balancing.sequences)


def balance_gradient(
    env: Environment, choice: Choice, scores: Array, counts: Array, balancing: Balancing, routing: Routing
) -> Array:
    """Gradient of the scores [n, experts] by the balance loss: per sequence sum_i f_i P_i, f_i = experts / (top_k T) x the number
    of its T tokens that chose i (constant), P_i = the mean probability of i (DeepSeek-V3, equations 17 to 20; with softmax
    Fedus et al. 2022, equations 4 to 6, a sequence)."""
    length = balancing.sequence_length
    frequency = counts.to(scores.dtype) * (counts.shape[1] / (routing.top_k * length))
    weight = routing.balance_loss / (balancing.global_sequences * length)
    grad = env.ops.take(frequency.mul_(weight), _sequence_of(env, choice, balancing))
    if balancing.losses is not None:
        balancing.losses[0].add_((grad * probabilities(scores, routing)).sum())
    return probabilities_backward(grad, scores, routing)


def z_gradient(choice: Choice, balancing: Balancing, routing: Routing) -> Array:
    """Gradient of the logits [n, experts] by the mean over all tokens of logsumexp(logits) squared (Zoph et al. 2022, eq. 5)."""
    level = choice.logits.logsumexp(-1, keepdim=True)
    weight = routing.z_loss / (balancing.global_sequences * balancing.sequence_length)
    if balancing.losses is not None:
        balancing.losses[1].add_(level.square().sum(), alpha=weight)
    return (choice.logits - level).exp_().mul_(level.mul_(2 * weight))
